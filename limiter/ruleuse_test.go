package limiter

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
)

// TestLimiter_Use: each use of a rule at any node counts for an hour: checks,
// peeks, and checks that only name it.
func TestLimiter_Use(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `
lists: {deny: [{k: bad}]}
rules:
  - {name: r, key: [k], limits: [{limit: 100, per: 1440h}]}
  - {name: tier, key: [t], tiered: true}
  - {name: idle, key: [i], limits: [{limit: 1, per: 1440h}]}
tiers: {free: {limits: [{limit: 1, per: 1h}]}}
`)
		pass := func(seconds int) {
			for range seconds {
				time.Sleep(time.Second)
				for _, n := range w.nodes {
					n.Tick()
				}
			}
		}
		pass(1)
		w.nodes[0].check(byKey("r", "x"))
		w.nodes[1].check(byKey("r", "x"))
		peek := byKey("r", "x")
		peek.Mode = counters.PeekMode
		w.nodes[2].check(peek)
		w.nodes[2].check(byKey("r", "bad"))
		w.nodes[0].check(byKey("tier", "nobody"))

		want := map[string]int64{"r": 4, "tier": 1}
		for _, at := range []int{0, 30, 1800, 1700} {
			pass(at)
			for i, n := range w.nodes {
				use := n.RuleUse(nil)
				if len(use.Nodes) != 3 || use.Nodes[0] != n.id || use.Checks["r"] != want["r"] ||
					use.Checks["tier"] != want["tier"] || use.Checks["idle"] != 0 {
					t.Fatalf("node %d: got %+v, want %v", i, use, want)
				}
			}
		}
		if use := w.nodes[0].RuleUse(nil); use.Counted >= RuleUseWindow {
			t.Errorf("got counted for %v, want less than %v", use.Counted, RuleUseWindow)
		}
		pass(120)
		use := w.nodes[0].RuleUse(nil)
		if use.Counted != RuleUseWindow || len(use.Checks) != 0 {
			t.Errorf("after an hour: got %+v, want nothing", use)
		}

		// A rule that is kept keeps its count when others change.
		w.nodes[0].check(byKey("r", "x"))
		set := w.nodes[0].Rules()
		w.nodes[0].SetRules(set)
		use = w.nodes[0].RuleUse(nil)
		if use.Checks["r"] != 1 {
			t.Errorf("after new rules: got %+v, want one use of r", use)
		}
		w.setCut(w.nodes[0], w.nodes[1], true)
		time.Sleep(time.Second)
		use = w.nodes[0].RuleUse(nil)
		if len(use.Nodes) != 2 || slices.Contains(use.Nodes, w.nodes[1].id) {
			t.Errorf("with a node that can't be reached: got %+v, want two nodes", use)
		}
		use = w.nodes[0].RuleUse([]string{"eu"})
		if !slices.Equal(use.Silent, []string{"eu"}) {
			t.Errorf("with an unknown region: got %+v, want it silent", use)
		}
	})
}

// What a region has counted is in the report even if one of its nodes does not
// answer. The region is then listed as silent.
func TestRuleUse_OfARegionWithASlowNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestRegions(t, "rules: [{name: r, key: [k], limits: [{limit: 100, per: 1440h}]}]", "eu", "us")
		e.change(func() { e.pause = func() time.Duration { return 50 * time.Millisecond } })
		eu := e.all["eu"]
		for _, n := range eu.nodes {
			n.check(byKey("r", "x"))
		}
		eu.change(func() {
			for _, n := range eu.nodes {
				eu.slow[n.id] = 3 * time.Second
			}
		})

		use := e.all["us"].nodes[0].RuleUse([]string{"eu"})
		expect.Equal(t, use.Checks["r"], 1, "checks at the node that was asked")
		expect.EqualSlices(t, use.Silent, []string{"eu"}, "silent regions")
	})
}

func TestUsedSteps_Missed(t *testing.T) {
	var u usedIntervals
	u.endInterval(1000, 5)
	u.endInterval(1050, 8) // the machine slept
	for _, test := range []struct{ now, all, want int64 }{{1051, 8, 8}, {1051, 9, 9}, {1121, 8, 3},
		{1171, 8, 0}, {1171, 9, 1}, {1050, 8, 8}} {
		expect.Equal(t, u.recent(test.now, test.all), test.want, "interval %d, %d uses", test.now, test.all)
	}
}

func FuzzUseReport(f *testing.F) {
	f.Add(wire.Encode(nil, &useReport{counted: time.Minute, silent: 2, rules: []usedRule{{"a", 1}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r useReport
		if wire.Decode(b, &r, "use") != nil {
			return
		}
		out := &RuleUse{Checks: map[string]int64{}}
		out.add(&r)
		for name, n := range out.Checks {
			if n < 0 {
				t.Errorf("%q: got %d uses", name, n)
			}
		}
	})
}
