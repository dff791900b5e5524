package limiter

import (
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

const namedRules = `rules:
  - name: r
    key: [k]
    block: 1h
    usage: monthly
    limits:
      - {limit: 20, per: 1h, algorithm: fixed-window, name: hour}
      - {limit: 1000, per: 24h, algorithm: fixed-window}
      - {limit: 500, per: 24h, algorithm: token-bucket, unit: tokens}
  - {name: free, key: [k], limits: [{limit: 20, per: 1h}]}
  - name: local
    key: [k]
    consistency: local
    limits: [{limit: 300, per: 1h, algorithm: fixed-window, name: hour}, {limit: 3000, per: 24h, algorithm: fixed-window, name: day}]`

// usedOf returns what a subject has used of each limit.
func (n *testNode) usedOf(rule, key string) (list []int64) {
	n.w.t.Helper()
	u, err := n.Usage(&Query{Rule: rule, Key: []string{key}})
	expect.NoError(n.w.t, err)
	for _, lu := range u.Limits {
		list = append(list, lu.Used)
	}
	return list
}

// An adjustment or a reset that names a limit leaves the others, and blocks, as
// they are. It does not keep others from getting back what was taken before.
func TestChangesOfOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := newTestCluster(t, 3, namedRules)
		for i, n := range w.nodes {
			key := w.keyOf("r", w.nodes[(i+1)%3], nil)
			costs := Query{Rule: "r", Key: []string{key}, ByKey: true,
				Costs: []UnitCost{{document.Requests, 10}, {"tokens", 100}}}
			id := n.reserve(costs, time.Minute)
			want := func(what string, want ...int64) {
				t.Helper()
				expect.DeepEqual(t, n.usedOf("r", key), want, "at %d, %s: used", i, what)
			}
			want("reserved", 10, 10, 100)

			q := Query{Rule: "r", Key: []string{key}, LimitName: "r/requests/24h",
				Costs: []UnitCost{{document.Requests, 5}}}
			if u, err := n.Adjust(&q); err != nil || len(u.Limits) != 1 || u.Limits[0].Used != 15 ||
				u.Limits[0].Applied != 5 {
				t.Fatalf("%+v, %v", u, err)
			}
			want("adjusted", 10, 15, 100)
			if u, err := n.Reset(&Query{Rule: "r", Key: []string{key},
				LimitName: "hour"}); err != nil || u.Limits[0].Used != 0 {
				t.Fatalf("%+v, %v", u, err)
			}
			want("reset", 0, 15, 100)
			if _, err := n.Settle(id, nil); err != nil {
				t.Fatal(err)
			}
			want("what came back", 0, 5, 0)

			costs.Costs = []UnitCost{{document.Requests, 21}}
			if n.check(costs).Allowed {
				t.Fatal("not refused")
			}
			u, err := n.Reset(&Query{Rule: "r", Key: []string{key}, LimitName: "hour"})
			if err != nil || u.Blocked != time.Hour || u.Limits[0].Remaining != 0 {
				t.Errorf("%+v, %v: want the block to stay", u, err)
			}
			if a := n.check(byKey("r", key)); a.Allowed {
				t.Error("the block was lifted")
			}
			if _, err := n.Reset(&Query{Rule: "r", Key: []string{key}}); err != nil ||
				!n.check(byKey("r", key)).Allowed {
				t.Error("the block was not lifted by a reset of everything")
			}
			for _, name := range []string{"day", "r", "r/requests", "r/block"} {
				q.LimitName = name
				if _, err := n.Adjust(&q); !errors.Is(err, ErrUnknownLimit) {
					t.Errorf("adjust %q: %v", name, err)
				}
				if _, err := n.Reset(&q); !errors.Is(err, ErrUnknownLimit) {
					t.Errorf("reset %q: %v", name, err)
				}
			}
			q.LimitName = "r/tokens/24h"
			if _, err := n.Adjust(&q); !errors.Is(err, ErrNoLimitInUnit) {
				t.Errorf("a cost in another unit: %v", err)
			}

			local := Query{Rule: "local", Key: []string{key}, ByKey: true, Costs: []UnitCost{{document.Requests, 30}}}
			n.check(local)
			local.LimitName = "hour"
			if _, err := n.Reset(&local); err != nil {
				t.Fatal(err)
			}
			if got := n.usedOf("local", key); !reflect.DeepEqual(got, []int64{0, 30}) {
				t.Errorf("of a local rule, %d are used, want 0 and 30", got)
			}
		}
	})
}

// An adjustment says what it has applied, and corrects the bill by that if it is asked to: once.
func TestAdjustmentsAreBilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(24 * time.Hour)
		w := newTestCluster(t, 3, namedRules)
		bill := w.useMeter()
		for i, n := range w.nodes {
			key := w.keyOf("r", w.nodes[(i+1)%3], nil)
			n.check(Query{Rule: "r", Key: []string{key}, ByKey: true,
				Costs: []UnitCost{{document.Requests, 4}, {"tokens", 7}}})
			n.Reset(&Query{Rule: "r", Key: []string{key}, LimitName: "hour"})
			for _, tt := range []struct {
				costs   []UnitCost
				bill    bool
				applied []int64 // by limit
				billed  [2]int64
			}{
				{[]UnitCost{{document.Requests, -50}, {"tokens", -3}}, true, []int64{0, -4, -3}, [2]int64{0, 4}},
				{[]UnitCost{{document.Requests, 6}}, false, []int64{6, 6, 0}, [2]int64{0, 4}},
				{[]UnitCost{{document.Requests, 30}}, true, []int64{30, 30, 0}, [2]int64{30, 4}},
				{[]UnitCost{{"tokens", -1000}}, true, []int64{0, 0, -4}, [2]int64{30, 0}},
				{[]UnitCost{{document.Requests, -1}}, false, []int64{-1, -1, 0}, [2]int64{30, 0}},
			} {
				q := &Query{Rule: "r", Key: []string{key}, Costs: tt.costs, Bill: tt.bill,
					RequestID: time.Now().String()}
				for _, at := range w.nodes { // repeated at the others
					u, err := at.Adjust(q)
					expect.NoError(t, err)
					var got []int64
					for _, lu := range u.Limits {
						got = append(got, lu.Applied)
					}
					expect.DeepEqual(t, got, tt.applied, "%v: applied", tt.costs)
				}
				got := [2]int64{bill.cost["r["+key+"] requests"], bill.cost["r["+key+"] tokens"]}
				expect.Equal(t, got, tt.billed, "%v, bill %t: billed", tt.costs, tt.bill)
				time.Sleep(time.Millisecond)
			}
			if _, err := n.Adjust(&Query{Rule: "free", Key: []string{key},
				Costs: []UnitCost{{document.Requests, 1}},
				Bill:  true}); !errors.Is(err, ErrNotBilled) {
				t.Errorf("a rule in no bill: %v", err)
			}
		}
	})
}
