package limiter

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

const unlimitedBills = `rules:
  - {name: mixed, key: [k], usage: monthly, limits: [{unlimited: true, unit: tokens}, {limit: 4000, per: 24h, algorithm: fixed-window}]}
  - {name: all, key: [k], usage: monthly, tiered: true}
  - {name: kept, key: [k], usage: monthly, reservations: {on_expiry: charge}, limits: unlimited}
  - {name: unbilled, key: [k], limits: unlimited}
tiers:
  vip: {limits: unlimited}
  low: {limits: [{limit: 4000, per: 24h, algorithm: fixed-window, unit: tokens}]}
default_tier: vip`

// TestUnlimitedIsBilledAsSettled: a reservation of what has no limit is billed
// as it is settled, or as its end says, at every node, and the answer names the
// costs.
func TestUnlimitedIsBilledAsSettled(t *testing.T) {
	type costs = []UnitCost
	for name, tt := range map[string]struct {
		end    *OnExpiry
		settle bool
		costs  costs // of the settlement
		late   bool
		billed int64
		answer costs
	}{
		"less":           {nil, true, costs{{"tokens", 20}}, false, 20, costs{{"tokens", 20}}},
		"more":           {nil, true, costs{{"tokens", 80}}, false, 80, costs{{"tokens", 80}}},
		"nothing":        {nil, true, nil, false, 0, costs{{"requests", 0}, {"tokens", 0}}},
		"others":         {nil, true, costs{{"apples", 3}}, false, 50, nil},
		"charge":         {nil, false, nil, false, 50, nil},
		"refund":         {refundAll, false, nil, false, 0, nil},
		"costs":          {charge10, false, nil, false, 10, nil},
		"refund in time": {refundAll, true, costs{{"tokens", 20}}, false, 20, costs{{"tokens", 20}}},
		"charge, late":   {nil, true, costs{{"tokens", 20}}, true, 20, costs{{"tokens", 20}}},
		"refund, late":   {refundAll, true, costs{{"tokens", 20}}, true, 20, costs{{"tokens", 20}}},
		"costs, late":    {charge10, true, nil, true, 0, costs{{"requests", 0}, {"tokens", 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nextWindow(24 * time.Hour)
				for _, size := range []int{1, 3} {
					w := newTestCluster(t, size, unlimitedBills)
					bill := w.useMeter()
					for _, rule := range []string{"mixed", "all"} {
						for i, n := range w.nodes {
							key := w.keyOf("mixed", w.nodes[(i+1)%size], nil)
							billed := fmt.Sprintf("%s[%s] tokens", rule, key)
							before := bill.billed(billed)
							id := n.reserveTokens(rule, key, 50, tt.end)
							if !tt.settle || tt.late {
								time.Sleep(5 * time.Second)
							}
							for repeat := 0; tt.settle && repeat < 2; repeat++ {
								out, err := w.nodes[(i+repeat)%size].Settle(id, tt.costs)
								if err != nil {
									t.Fatalf("%s: %v", rule, err)
								}
								if got := sortedCosts(out.Costs); len(got)+len(tt.answer) > 0 &&
									!reflect.DeepEqual(got, tt.answer) {
									t.Errorf("%s: the answer has costs %v, want %v", rule, got, tt.answer)
								}
							}
							expect.Equal(t, bill.billed(billed)-before, tt.billed, "%s, billed", rule)
						}
					}
				}
			})
		})
	}
}

// TestUnlimitedReservationsFollowTheirRule: a rule without limit can forbid an
// end, and what no bill counts is still in the answer.
func TestUnlimitedReservationsFollowTheirRule(t *testing.T) {
	l := open(t, unlimitedBills)
	var a Answer
	for _, tt := range []struct {
		rule string
		end  *OnExpiry
	}{{"kept", refundAll}, {"all", &OnExpiry{Costs: []UnitCost{{"tokens", 51}}}}, {"all",
		&OnExpiry{Costs: []UnitCost{{"requests", 2}}}}} {
		q := tokens(tt.rule, "x", 50)
		q.OnExpiry = tt.end
		if _, err := l.Reserve(&q, time.Minute, &a); !errors.Is(err, ErrOnExpiry) {
			t.Errorf("%s, %+v: got %v", tt.rule, tt.end, err)
		}
	}

	q := tokens("unbilled", "x", 50)
	id, err := l.Reserve(&q, time.Minute, &a)
	expect.NoError(t, err)
	out, err := l.Settle(id, []UnitCost{{"tokens", 20}})
	if want := []UnitCost{{"tokens", 20}}; err != nil || !reflect.DeepEqual(out.Costs, want) || out.Remaining != -1 {
		t.Errorf("got %+v, %v; want %v", out, err, want)
	}
	expect.Equal(t, l.table.Stats().Counters, 0, "counters")
}

// TestAdjustmentsWithoutLimitAreBilled: an adjustment with a bill corrects that
// in units without limit, once, and makes no counter. Without a bill there is
// nothing to adjust.
func TestAdjustmentsWithoutLimitAreBilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := newTestCluster(t, 3, unlimitedBills)
		bill := w.useMeter()
		for _, rule := range []string{"mixed", "all"} {
			key := w.keyOf(rule, w.nodes[1], nil)
			billed := fmt.Sprintf("%s[%s] tokens", rule, key)
			for i, tt := range []struct{ cost, billed int64 }{{30, 30}, {-10, 20}} {
				q := &Query{Rule: rule, Key: []string{key}, Costs: []UnitCost{{"tokens", tt.cost}},
					Bill: true, RequestID: fmt.Sprint(rule, i)}
				for _, n := range w.nodes { // repeated at the others
					u, err := n.Adjust(q)
					if err != nil || !reflect.DeepEqual(u.Applied(), q.Costs) {
						t.Fatalf("%s: got %+v, %v; want %v applied", rule, u, err, q.Costs)
					}
				}
				expect.Equal(t, bill.billed(billed), tt.billed, "%s, billed", rule)
			}
			for _, q := range []*Query{
				{Costs: []UnitCost{{"tokens", 1}}},
				{Costs: []UnitCost{{"apples", 1}}, Bill: true},
			} {
				q.Rule, q.Key = rule, []string{key}
				if _, err := w.nodes[0].Adjust(q); !errors.Is(err, ErrNoLimitInUnit) {
					t.Errorf("%s, %+v: %v", rule, q.Costs, err)
				}
			}
		}
		for _, n := range w.nodes {
			expect.Equal(t, n.table.Stats().Counters, 0, "counters")
		}
	})
}

// TestZeroIsBilledAsSettled: what a reservation used of a limit of 0 all the
// same is billed, but not counted.
func TestZeroIsBilledAsSettled(t *testing.T) {
	l, bill := open(t, zeroRules), billed{}
	l.UseMeter(bill)
	var a Answer
	q := costing(byKey("none", "x"), 0)
	id, err := l.Reserve(&q, time.Minute, &a)
	expect.NoError(t, err)
	if _, err := l.Settle(id, []UnitCost{{document.Requests, 7}}); err != nil || bill["none/requests"] != 7 {
		t.Errorf("got the bill %v, %v; want 7 requests", bill, err)
	}
}
