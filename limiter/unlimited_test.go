package limiter

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

const unlimitedRules = `
rules:
  - {name: free, key: [k], usage: monthly, limits: unlimited}
  - {name: mixed, key: [m], usage: monthly, limits: [{unlimited: true, unit: tokens}, {limit: 2, per: 1440h, algorithm: fixed-window}]}
  - {name: plan, key: [tenant], usage: monthly, tiered: true}
  - {name: none, key: [n], block: 1h, limits: [{limit: 0, per: 1h}, {limit: 5, per: 1h, unit: tokens}]}
tiers:
  vip: {limits: unlimited}
  low: {limits: [{limit: 1, per: 1440h, algorithm: fixed-window}, {limit: 100, per: 1440h, algorithm: fixed-window, unit: tokens}]}
  closed: {limits: [{limit: 0, per: day}]}
default_tier: low
subjects:
  tenant:
    acme: {tier: vip}
    shut: {tier: closed}
    dear: {limits: {plan: unlimited}}
`

// billed is a Meter that sums up costs by rule and unit.
type billed map[string]int64

func (b billed) Add(int64, rules.Hash, string, int64, int64) bool { return false }

func (b billed) AddNamed(_ int64, _ rules.Hash, rule string, _ []string, unit string, cost, _ int64) {
	b[rule+"/"+unit] += cost
}

// TestUnlimited: a rule, a tier or an override without limit applies, counts
// nothing in memory, is never the tightest, and bills requests and the units
// that call and rule name.
func TestUnlimited(t *testing.T) {
	l, bill := open(t, unlimitedRules), billed{}
	l.UseMeter(bill)
	ask := func(attributes []string, costs ...UnitCost) *Answer {
		a := check(t, l, epoch, Query{Attributes: attrs(attributes...), Costs: costs})
		return a
	}
	for _, attributes := range [][]string{{"k", "x"}, {"tenant", "acme"}, {"tenant", "dear"}} {
		for range 5 {
			a := ask(attributes, UnitCost{"tokens", 7}, UnitCost{"other", 1})
			if !a.Allowed || a.TightestLimit() != nil || a.UnlimitedRule() == nil ||
				a.DecidedBy != ByOwner || len(a.Limits) != 0 {
				t.Fatalf("%v: got %+v", attributes, a)
			}
		}
	}
	expect.Equal(t, l.table.Stats().Counters, 0, "counters")
	if want := (billed{"free/requests": 15, "plan/requests": 10,
		"plan/tokens": 70}); bill["free/requests"] != 5 || bill["plan/requests"] != want["plan/requests"] ||
		bill["plan/tokens"] != want["plan/tokens"] || len(bill) != 3 {
		t.Errorf("got the bill %v", bill)
	}

	// Beside other limits, it changes nothing.
	for i, want := range []bool{true, true, false} {
		a := ask([]string{"k", "x", "m", "y"}, UnitCost{"tokens", 1000})
		if a.Allowed != want || a.TightestLimit() == nil ||
			a.TightestLimit().Rule.Name != "mixed" || len(a.Unlimited()) != 2 {
			t.Errorf("check %d: got %+v", i, a)
		}
	}
	if bill["mixed/requests"] != 2 || bill["mixed/tokens"] != 2000 || bill["free/requests"] != 7 {
		t.Errorf("got the bill %v", bill)
	}
	if u, err := l.Usage(&Query{Rule: "plan", Key: []string{"acme"}}); err != nil ||
		len(u.Limits) != 0 || len(u.Unlimited) != 1 {
		t.Errorf("usage: got %+v, %v", u, err)
	}
}

// TestLimitOfZero: nothing but a cost of 0 is allowed, for good. No counter is
// used, and no block begins.
func TestLimitOfZero(t *testing.T) {
	l := open(t, unlimitedRules)
	for _, q := range []Query{
		byKey("none", "x"), byKey("plan", "shut"),
		{Subjects: []Subject{{InlineSubject: rules.InlineSubject{Key: []string{"x"},
			Limits: []document.InlineLimit{{Limit: 0, Per: "1m"}}}, Costs: []UnitCost{{"requests", 1}}}}},
	} {
		for range 2 {
			expectRefusal(t, q.Rule, check(t, l, epoch, q), CostAboveLimit, algorithms.Never,
				"not allowed by this rule")
		}
	}
	expect.Equal(t, l.table.Stats().Counters, 0, "counters")
	tokens := Query{Rule: "none", Key: []string{"x"}, ByKey: true, Costs: []UnitCost{{"requests", 0}, {"tokens", 1}}}
	if a := check(t, l, epoch, tokens); !a.Allowed || len(a.Limits) != 2 {
		t.Errorf("tokens alone: got %+v", a.Limits)
	}
}

// TestWithoutOwner: a node that is cut off decides rules without limit, and
// limits of 0, as any other.
func TestWithoutOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, strings.ReplaceAll(unlimitedRules, "usage: monthly", "on_partition: deny")+`
  `)
		n := w.nodes[1]
		w.setCut(n, w.nodes[0], true)
		w.setCut(n, w.nodes[2], true)
		before := maps.Clone(w.owed)
		if a := n.check(Query{Attributes: attrs("k", "x")}); !a.Allowed || a.DecidedBy != ByOwner {
			t.Errorf("unlimited: got %+v", a)
		}
		began := time.Now()
		expectRefusal(t, "0", n.check(byKey("none", "x")), CostAboveLimit, algorithms.Never, "not allowed")
		if time.Since(began) > 0 || len(w.owed) != len(before) {
			t.Error("it asked somebody")
		}
	})
}

const zeroRules = `
rules:
  - {name: none, key: [n], usage: monthly, block: 1h, limits: [{limit: 0, per: 1h}]}
  - {name: some, key: [s], block: 1h, limits: [{limit: 0, per: 1h}, {limit: 5, per: 1h, unit: tokens}]}
  - {name: watched, key: [w], shadow: true, block: 1h, limits: [{limit: 0, per: 1h}]}
`

// TestNothingCountsForALimitOfZero: neither a count, an adjustment, a
// reservation nor a shadow rule makes a counter for a limit of 0, or begins a
// block. The limit still refuses every cost but 0.
func TestNothingCountsForALimitOfZero(t *testing.T) {
	l := open(t, zeroRules)
	bill := billed{}
	l.UseMeter(bill)
	count := byKey("none", "x")
	count.Mode = counters.CountMode
	inline := Query{Subjects: []Subject{{
		InlineSubject: rules.InlineSubject{Key: []string{"x"}, Limits: []document.InlineLimit{{Limit: 0, Per: "1m"}}},
		Costs:         []UnitCost{{"requests", 1}}, Mode: counters.CountMode,
	}}}
	for range 2 {
		for _, q := range []Query{count, inline} {
			a := check(t, l, epoch, q)
			expectRefusal(t, "count", a, CostAboveLimit, algorithms.Never, "not allowed by this rule")
			if !a.Counted {
				t.Error("the check was not counted")
			}
		}
		watched := check(t, l, epoch, byKey("watched", "x"))
		if !watched.Allowed || watched.Limits[0].Allowed || watched.Limits[0].Blocked {
			t.Errorf("shadow: got %+v", watched.Limits)
		}
	}
	if bill["none/requests"] != 2 {
		t.Errorf("got the bill %v, want 2 requests", bill)
	}

	u, err := l.Adjust(&Query{Rule: "none", Key: []string{"x"}, Costs: []UnitCost{{"requests", 3}}})
	if err != nil || u.Limits[0].Used != 0 || len(u.Applied()) != 1 || u.Applied()[0].Cost != 0 {
		t.Errorf("adjust: got %+v, applied %v, %v; want nothing used or applied", u, u.Applied(), err)
	}

	a := &Answer{}
	q := costing(byKey("none", "x"), 0)
	id, err := l.Reserve(&q, time.Minute, a)
	if err != nil || !a.Allowed {
		t.Fatalf("a reservation of 0: got %+v, %v", a, err)
	}
	if _, err := l.Settle(id, []UnitCost{{"requests", 7}}); err != nil {
		t.Error(err)
	}

	expect.Equal(t, l.table.Stats().Counters, 0, "counters")
	if a := check(t, l, epoch, costing(byKey("none", "x"), 0)); !a.Allowed {
		t.Errorf("a cost of 0: got %+v", a.Limits)
	}
}

// TestZeroBesideALimit: a count charges the other limits of a rule with a limit
// of 0, and begins no block.
func TestZeroBesideALimit(t *testing.T) {
	l := open(t, zeroRules)
	q := Query{Rule: "some", Key: []string{"x"}, ByKey: true, Mode: counters.CountMode,
		Costs: []UnitCost{{"requests", 1}, {"tokens", 2}}}
	expectRefusal(t, "count", check(t, l, epoch, q), CostAboveLimit, algorithms.Never, "not allowed by this rule")
	q.Mode, q.Costs = counters.CheckMode, []UnitCost{{"requests", 0}, {"tokens", 1}}
	a := check(t, l, epoch, q)
	if !a.Allowed || l.table.Stats().Counters != 1 {
		t.Errorf("got %+v with %d counters, want a check that is allowed, and one counter",
			a.Limits, l.table.Stats().Counters)
	}
	for i := range a.Limits {
		if la := &a.Limits[i]; la.Limit.Unit == "tokens" && la.Remaining != 2 {
			t.Errorf("%d tokens remain, want 2", la.Remaining)
		}
	}
}

// TestCountOfZeroInACluster: it is the same at every node.
func TestCountOfZeroInACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, zeroRules)
		key := w.keyOf("none", w.nodes[1], nil)
		q := byKey("none", key)
		q.Mode = counters.CountMode
		for _, n := range w.nodes {
			expectRefusal(t, "count", n.check(q), CostAboveLimit, algorithms.Never, "not allowed")
			u, err := n.Adjust(&Query{Rule: "none", Key: []string{key}, Costs: []UnitCost{{"requests", 3}}})
			if err != nil || u.Limits[0].Used != 0 || u.Blocked != 0 {
				t.Errorf("adjust: got %+v, %v", u, err)
			}
		}
		for _, n := range w.nodes {
			expect.Equal(t, n.table.Stats().Counters, 0, "counters")
		}
	})
}

// TestWindowsBeginWithTheirSubject: with `from: first`, each subject of a rule
// has a window that begins with its own first check, at whichever node, and so
// subjects don't come back in the same instant.
func TestWindowsBeginWithTheirSubject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 10 * time.Minute
		w := newTestCluster(t, 3,
			"rules: [{name: r, key: [k], limits: [{limit: 300, per: 10m, algorithm: fixed-window, from: first}]}]")
		nextWindow(window)

		type subject struct {
			key   string
			began time.Time
		}
		var all []subject
		by := map[DecidedBy]int{}
		for i, owner := range w.nodes {
			time.Sleep(time.Duration(i+1) * time.Minute)
			one := subject{w.keyOf("r", owner, nil), time.Now()}
			all = append(all, one)
			for j := range 90 { // one in three by the owner
				n := w.nodes[j%3]
				a := n.check(byKey("r", one.key))
				by[a.DecidedBy]++
				if !a.Allowed || a.Limits[0].ResetAfter.Round(time.Second) != window {
					t.Fatalf("%s, check %d: got allowed %v, reset after %v; want %v", one.key, j,
						a.Allowed, a.Limits[0].ResetAfter, window)
				}
			}
		}

		if by[ByOwner] != 90 || by[ByForward] != 180 { // such windows are never leased
			t.Errorf("got checks decided by %v", by)
		}
		for _, one := range all {
			for i := range 300 {
				w.nodes[i%3].check(byKey("r", one.key))
			}
			for _, n := range w.nodes {
				a := n.check(byKey("r", one.key))
				left := time.Until(one.began.Add(window))
				if la := a.Limits[0]; a.Allowed || (la.RetryAfter-left).Abs() > time.Second {
					t.Errorf("%s is refused: got allowed %v, retry after %v; want %v", one.key,
						a.Allowed, la.RetryAfter, left)
				}
			}
		}

		time.Sleep(time.Until(all[0].began.Add(window + time.Second)))
		for i, one := range all {
			a := w.nodes[1].check(byKey("r", one.key))
			if isNew := i == 0; a.Allowed != isNew {
				t.Errorf("subject %d, once the first window has ended: got allowed %v, want %v", i, a.Allowed, isNew)
			}
		}
	})
}
