package limiter

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// totalDebt returns the sum of all debts.
func (w *testCluster) totalDebt() (sum int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.owed {
		sum += n
	}
	return sum
}

// G4: what a fallback with share or full admits becomes a debt to the owner,
// and nothing else does. If another limit refuses the check, the debt is
// cancelled.
func TestG4_FallbackOwes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: share, key: [k], on_partition: share, limits: [{limit: 9, per: 1440h}]}
  - {name: full, key: [k], on_partition: full, limits: [{limit: 9, per: 1440h}]}
  - {name: allow, key: [k], on_partition: allow, limits: [{limit: 9, per: 1440h}]}
  - {name: deny, key: [k], on_partition: deny, limits: [{limit: 9, per: 1440h}]}
  - {name: local, key: [k], consistency: local, limits: [{limit: 9, per: 1440h}]}`)
		n := w.nodes[1]
		for rule, want := range map[string]int64{"share": 3, "full": 9, "allow": 0, "deny": 0, "local": 0} {
			w.setCut(n, w.nodes[0], true)
			w.setCut(n, w.nodes[2], true)
			before := w.totalDebt()
			key := w.keyOf(rule, w.nodes[0], w.nodes[2])
			n.check(Query{Rule: rule, Key: []string{key}, ByKey: true, Mode: counters.PeekMode})
			for range 20 {
				n.check(byKey(rule, key))
			}
			expect.Equal(t, w.totalDebt()-before, want, "%s, owed", rule)
		}
		n.SetRules(compile(t, 2, `version: 1
rules:
  - {name: share, key: [k], on_partition: share, limits: [{limit: 9, per: 1440h}]}
  - {name: deny, key: [other], on_partition: deny, limits: [{limit: 9, per: 1440h}]}
  - {name: own, key: [k], limits: [{limit: 1, per: 1440h}]}`))
		before := w.totalDebt()
		for _, other := range []string{w.keyOf("deny", w.nodes[0], w.nodes[2]),
			w.keyOf("deny", w.nodes[2], w.nodes[0])} {
			if a := n.check(Query{Attributes: attrs("k", "new", "other", other)}); a.Allowed {
				t.Error("admitted")
			}
		}
		expect.Equal(t, w.totalDebt()-before, 0, "owed for refused checks")
	})
}

// A check that on_partition: deny refuses takes nothing, whatever its other
// limits say: what remains in each of them is as it was.
func TestFallback_RemainingOfARefusedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: tight, key: [tight], on_partition: full, limits: [{limit: 1, per: 1440h}]}
  - {name: loose, key: [loose], on_partition: full, limits: [{limit: 9, per: 1440h}]}
  - {name: deny, key: [deny], on_partition: deny, limits: [{limit: 9, per: 1440h}]}`)
		n := w.nodes[1]
		w.setCut(n, w.nodes[0], true)
		w.setCut(n, w.nodes[2], true)
		tight := w.keyOf("tight", w.nodes[0], w.nodes[2])
		loose := w.keyOf("loose", w.nodes[0], w.nodes[2])
		attributes := attrs("tight", tight, "loose", loose, "deny", w.keyOf("deny", w.nodes[0], w.nodes[2]))
		for range 6 {
			n.check(byKey("loose", loose))
		}

		for _, used := range []int64{0, 1} {
			for _, cost := range []int64{1, 3} {
				a := n.check(Query{Attributes: attributes, Costs: []UnitCost{{"requests", cost}}})
				got := map[string]int64{}
				for i := range a.Limits {
					got[a.Limits[i].Rule.Name] = a.Limits[i].Remaining
				}
				want := map[string]int64{"tight": 1 - used, "loose": 3}
				if a.Allowed || got["tight"] != want["tight"] || got["loose"] != want["loose"] {
					t.Errorf("%d used, a cost of %d: got allowed %v, remaining %v; want a refusal and %v",
						used, cost, a.Allowed, got, want)
				}
			}
			expect.Equal(t, n.check(byKey("tight", tight)).Allowed, used == 0, "the tight limit alone")
		}
	})
}

// What counts take beyond the share is owed, too, even if there is no share.
func TestG4_CountsBeyondTheShareAreOwed(t *testing.T) {
	for limit, share := range map[string]int{"9": 3, "1": 0} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, 3, "rules:\n  - {name: r, key: [k], limits: [{limit: "+limit+", per: 1440h}]}")
			n := w.nodes[1]
			w.setCut(n, w.nodes[0], true)
			w.setCut(n, w.nodes[2], true)
			q := byKey("r", w.keyOf("r", w.nodes[0], w.nodes[2]))
			q.Mode = counters.CountMode
			for i := range 20 {
				if a := n.check(q); a.Allowed != (i < share) || a.Counted == a.Allowed || a.DecidedBy != ByFallback {
					t.Errorf("limit %s, count %d: have %+v", limit, i, a)
				}
			}
			expect.Equal(t, w.totalDebt(), 20, "limit %s: owed", limit)
		})
	}
}

// G4: if the node's copy is at its limit, it refuses, and the share stays as it was.
func TestG4_FallbackGoesOnFromACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules:\n  - {name: r, key: [k], limits: [{limit: 9, per: 1440h}]}")
		n := w.nodes[1]
		w.setCut(n, w.nodes[0], true)
		w.setCut(n, w.nodes[2], true)
		key := w.keyOf("r", w.nodes[0], w.nodes[2])
		u, err := n.Locate(&Query{Rule: "r", Key: []string{key}})
		expect.NoError(t, err)
		limit := n.check(Query{Rule: "r", Key: []string{key}, ByKey: true, Mode: counters.PeekMode}).Limits[0].Limit
		at := counters.Key{Subject: u.Hash.Hi, Counter: u.Hash.Lo ^ limit.ID}
		n.copies.Take(n.clock.Now(), []counters.Op{{Key: at, Limit: &limit.Limit, Cost: 7}})
		for i, want := range []int64{1, 0} {
			peek := n.check(Query{Rule: "r", Key: []string{key}, ByKey: true, Mode: counters.PeekMode})
			a := n.check(byKey("r", key))
			if !a.Allowed || a.DecidedBy != ByFallback || a.Limits[0].Remaining != want ||
				peek.Limits[0].Remaining != want {
				t.Errorf("check %d: have %v by %s, %+v, a peek %+v", i, a.Allowed, a.DecidedBy,
					a.Limits[0].Decision, peek.Limits[0].Decision)
			}
			expect.Equal(t, a.Limits[0].Used, int64(8+i), "check %d: used", i)
		}
		peek := n.check(Query{Rule: "r", Key: []string{key}, ByKey: true, Mode: counters.PeekMode})
		a := n.check(byKey("r", key))
		if a.Allowed || peek.Allowed || a.Limits[0].RetryAfter <= 0 ||
			peek.Limits[0].RetryAfter <= 0 || a.Limits[0].Remaining != 0 {
			t.Errorf("have %v, %+v, a peek %v, %+v", a.Allowed, a.Limits[0].Decision, peek.Allowed,
				peek.Limits[0].Decision)
		}
		if used, _ := n.cluster.Fallback.Usage(n.clock.Now(), at, &limit.Limit); used != 2 {
			t.Errorf("have %d used of the share, want 2", used)
		}
	})
}

// A check that can't be decided fails in a batch as it does by itself: the owner
// of a limit of slots is away, and its standby is about to take over.
func TestCheckAll_FailsAsCheckDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules: []")
		n := w.nodes[2]
		w.setCut(n, w.nodes[0], true)
		w.setCut(n, w.nodes[1], true)
		failed := 0
		for i := range 20 { // this node owns some of them
			q := &Query{Subjects: []Subject{
				{Mode: counters.PeekMode, InlineSubject: rules.InlineSubject{Key: []string{fmt.Sprint("slots ", i)},
					Limits: []document.InlineLimit{{Limit: 2, TTL: "10s", Algorithm: "concurrency"}}}},
				{InlineSubject: rules.InlineSubject{Key: []string{fmt.Sprint("counted ", i)},
					Limits: []document.InlineLimit{{Limit: 9, Per: "1h"}}}},
			}}

			var a Answer
			want := n.Check(q, &a)
			if want == nil {
				continue
			}
			failed++
			errs := make([]error, 2)
			n.CheckAll([]*Query{q, q}, []*Answer{{}, {}}, errs)
			for j, got := range errs {
				if !errors.Is(got, want) {
					t.Errorf("%d, check %d of a batch: got %v, want %v as by itself", i, j, got, want)
				}
			}
		}
		if failed == 0 {
			t.Error("no check failed: the test shows nothing")
		}
	})
}
