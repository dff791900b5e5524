package limiter

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// blockLength is longer than the time after which the limits admit again.
const blockLength = 8000 * time.Hour

const blockRules = `rules:
  - {name: login, key: [k], limits: [{limit: 3, per: 1440h, algorithm: fixed-window}], block: 8000h}
  - {name: other, key: [o], limits: [{limit: 2, per: 1440h, algorithm: fixed-window}]}
  - {name: many, key: [k], limits: [{limit: 1000, per: 1440h}], block: 8000h}`

func nearly(have, want time.Duration) bool { return have > want-time.Minute && have <= want }

// expectBlockedEverywhere checks on every node that a subject is blocked for
// the duration want; zero for not blocked.
func (w *testCluster) expectBlockedEverywhere(what, rule, key string, want time.Duration) {
	w.t.Helper()
	for i, n := range w.nodes {
		q := byKey(rule, key)
		q.Costs = []UnitCost{{"requests", 0}}
		a := n.check(q)
		if a.Allowed != (want == 0) || len(a.Limits) != 1 {
			w.t.Errorf("%s: node %d says %v", what, i, a.Allowed)
		}
		if want > 0 && (!a.Limits[0].Blocked || !nearly(a.Limits[0].RetryAfter, want) || a.Limits[0].Remaining != 0) {
			w.t.Errorf("%s: node %d says %+v", what, i, a.Limits[0])
		}
		u, err := n.Usage(&Query{Rule: rule, Key: []string{key}})
		if err != nil || len(u.Limits) != 1 || want == 0 && u.Blocked != 0 || want > 0 && !nearly(u.Blocked, want) {
			w.t.Errorf("%s: node %d says %+v, %v", what, i, u, err)
			continue
		}
		// Nothing remains before the block ends.
		if l := &u.Limits[0]; want > 0 &&
			(l.Remaining != 0 || l.ResetAfter < u.Blocked || l.MoreAfter < u.Blocked || !nearly(l.MoreAfter, want)) {
			w.t.Errorf("%s: node %d says %+v of a subject blocked for %v", what, i, l, u.Blocked)
		}
	}
}

// A block that a check on one node triggers holds on all nodes, moves with its
// partition, and is lifted by a reset on any node.
func TestBlockHoldsEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, blockRules)
		key := w.keyOf("login", w.nodes[0], nil)
		for i := range 3 {
			if a := w.nodes[i].check(byKey("login", key)); !a.Allowed || a.DecidedBy == ByLease {
				t.Fatalf("check %d: %v by %s", i, a.Allowed, a.DecidedBy)
			}
		}
		w.expectBlockedEverywhere("before", "login", key, 0)
		peek := byKey("login", key)
		peek.Mode = counters.PeekMode
		if a := w.nodes[1].check(peek); a.Allowed || !nearly(a.Limits[0].RetryAfter, blockLength) {
			t.Errorf("peek: have %+v", a.Limits)
		}
		w.expectBlockedEverywhere("after a peek", "login", key, 0)
		if a := w.nodes[2].check(byKey("login", key)); a.Allowed || a.DecidedBy != ByForward ||
			a.Limits[0].RetryAfter < blockLength {
			t.Errorf("the fourth: have %v by %s, %+v", a.Allowed, a.DecidedBy, a.Limits)
		}
		if _, err := w.nodes[1].Adjust(adjustment("login", []string{key}, -3, "")); err != nil {
			t.Fatal(err)
		}
		w.expectBlockedEverywhere("begun", "login", key, blockLength)
		w.handOver(w.partition("login", key), w.nodes[1])
		w.expectBlockedEverywhere("handed over", "login", key, blockLength)
		if _, err := w.nodes[2].Reset(&Query{Rule: "login", Key: []string{key}}); err != nil {
			t.Fatal(err)
		}
		w.expectBlockedEverywhere("reset", "login", key, 0)
	})
}

// Many checks run at once on all nodes. After its first refusal a node admits
// none, and all nodes together admit no more than the limit.
func TestBlockUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, blockRules)
		key := w.keyOf("many", w.nodes[0], nil)
		var wg sync.WaitGroup
		var admitted atomic.Int64
		for i := range 12 {
			wg.Go(func() {
				refused := false
				var a Answer
				q := byKey("many", key)
				for range 150 {
					if err := w.nodes[i%3].Check(&q, &a); err != nil {
						t.Error(err)
					}
					switch {
					case !a.Allowed && !a.Limits[0].Blocked:
						t.Errorf("refused, and not blocked: %+v", a.Limits[0])
					case a.Allowed && refused:
						t.Error("admitted during the block")
					case a.Allowed:
						admitted.Add(1)
					}
					refused = refused || !a.Allowed
				}
			})
		}
		wg.Wait()
		expect.Equal(t, admitted.Load(), 1000, "admitted")
	})
}

// A refusal by another rule, on this node or another, triggers no block. All of
// the check's cost is given back.
func TestBlockOfTheRuleThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, blockRules)
		for i := range 3 {
			key, other := w.keyOf("login", w.nodes[i], nil), w.keyOf("other", w.nodes[(i+1)%3], nil)
			q := Query{Attributes: attrs("k", key, "o", other)}
			n := w.nodes[0]
			for range 2 {
				if !n.check(q).Allowed {
					t.Fatal("refused too early")
				}
			}
			for range 3 {
				if a := n.check(q); a.Allowed || a.Limits[a.TightestIndex].Rule.Name != "other" ||
					a.Limits[a.TightestIndex].Blocked {
					t.Fatalf("owner %d: have %+v", i, a.Limits)
				} else if len(a.Limits) != 1 {
					t.Errorf("owner %d: rules with a block were asked before the others had admitted", i)
				}
			}
			w.calls.Wait()
			w.expectBlockedEverywhere("another rule refused", "login", key, 0)
			expect.Equal(t, n.used("login", key), 2, "owner %d: used", i)
			n.check(byKey("login", key))
			if a := n.check(Query{Attributes: attrs("k", key)}); a.Allowed ||
				!a.Limits[0].Blocked || a.Limits[a.TightestIndex].Rule.Name != "login" {
				t.Errorf("owner %d: have %+v", i, a.Limits)
			}
			w.expectBlockedEverywhere("the rule itself refused", "login", key, blockLength)
		}
	})
}

// A block that became longer holds everywhere, whichever node triggers it, and
// after its owner has moved.
func TestLongerBlocksHoldEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 1, per: 1m, algorithm: sliding-window-log}], block: [5m, 1h, 1d]}")
		key := w.keyOf("r", w.nodes[0], nil)
		for i, length := range []time.Duration{5 * time.Minute, time.Hour, 24 * time.Hour, 24 * time.Hour} {
			asker := w.nodes[i%3]
			for _, want := range []bool{true, false} {
				if a := asker.check(byKey("r", key)); a.Allowed != want {
					t.Fatalf("block %d: got allowed %v, want %v", i, a.Allowed, want)
				}
			}
			w.expectBlockedEverywhere(fmt.Sprint("block ", i), "r", key, length)
			time.Sleep(length)
		}
	})
}

// A cut-off node and an acting standby begin blocks themselves. Nodes divide
// limits, but not blocks.
func TestBlockAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: share, key: [k], on_partition: share, limits: [{limit: 6, per: 1440h, algorithm: token-bucket}], block: 8000h}
  - {name: full, key: [k], on_partition: full, limits: [{limit: 2, per: 1440h}], block: 8000h}
  - {name: deny, key: [k], on_partition: deny, limits: [{limit: 2, per: 1440h}], block: 8000h}
  - {name: allow, key: [k], on_partition: allow, limits: [{limit: 2, per: 1440h}], block: 8000h}
  - {name: local, key: [k], consistency: local, limits: [{limit: 6, per: 1440h}], block: 8000h}`)
		acting := w.keyOf("share", w.nodes[0], w.nodes[1])
		w.setCut(w.nodes[1], w.nodes[0], true)
		w.setCut(w.nodes[2], w.nodes[0], true)
		for i, want := range []bool{true, true, false, false} {
			a := w.nodes[2].check(byKey("share", acting))
			if a.Allowed != want || a.DecidedBy != ByStandby || a.Limits[0].Blocked == want {
				t.Errorf("acting, check %d: %v by %s, %+v", i, a.Allowed, a.DecidedBy, a.Limits)
			}
		}
		w.setCut(w.nodes[1], w.nodes[2], true)
		for rule, want := range map[string]int{"share": 2, "full": 2, "deny": 0, "allow": 5, "local": 2} {
			for i, n := range w.nodes[1:] {
				key := w.keyOf(rule, w.nodes[0], w.nodes[2-i])
				admitted := 0
				var last *Answer
				for range 5 {
					last = n.check(byKey(rule, key))
					if last.Allowed {
						admitted++
					}
				}
				blocks := rule != "deny" && rule != "allow"
				if admitted != want || last.Limits[0].Blocked != blocks || blocks &&
					!nearly(last.Limits[0].RetryAfter, blockLength) {
					t.Errorf("%s on node %d: %d admitted, then %+v", rule, i+1, admitted, last.Limits[0])
				}
			}
		}
	})
}

// Counts take their cost during a block and begin it, wherever they are decided.
func TestCountsAreNotBlockedAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, blockRules)
		key := w.keyOf("login", w.nodes[0], w.nodes[1])
		count := byKey("login", key)
		count.Mode, count.Costs = counters.CountMode, []UnitCost{{"requests", 2}}
		for i, n := range w.nodes {
			if a := n.check(count); a.Allowed != (i == 0) || a.Counted == a.Allowed ||
				a.Limits[0].Blocked == a.Allowed {
				t.Errorf("node %d: have %v, counted %v, %+v", i, a.Allowed, a.Counted, a.Limits)
			}
		}
		w.expectBlockedEverywhere("counted over the limit", "login", key, blockLength)
		count.RequestID = "x"
		for range 2 {
			if a := w.nodes[1].check(count); a.Allowed || !a.Counted || !a.Limits[0].Blocked {
				t.Errorf("with an id: have %v, counted %v, %+v", a.Allowed, a.Counted, a.Limits)
			}
		}
		expect.Equal(t, w.nodes[1].used("login", key), 8, "used")
		w.setCut(w.nodes[1], w.nodes[0], true)
		w.setCut(w.nodes[2], w.nodes[0], true)
		count.RequestID = ""
		for _, want := range []DecidedBy{ByStandby, ByFallback} {
			for i, n := range w.nodes[1:] {
				key := w.keyOf("login", w.nodes[0], w.nodes[2-i])
				if want == ByStandby {
					key = w.keyOf("login", w.nodes[0], w.nodes[1])
				}
				count.Key = []string{key}
				for range 2 {
					if a := n.check(count); !a.Allowed && !a.Counted || a.DecidedBy != want {
						t.Errorf("node %d: refused by %s, want %s: %+v", i+1, a.DecidedBy, want, a.Limits)
					}
				}
				if a := n.check(byKey("login", key)); a.Allowed || !a.Limits[0].Blocked {
					t.Errorf("%s on node %d: have %+v after the counts", want, i+1, a.Limits)
				}
			}
			w.setCut(w.nodes[1], w.nodes[2], true)
		}
	})
}

// If a copy's refusal stops a cut-off node, the block begins on that node, even
// if the copy is read-only.
func TestBlockByACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2,
			"rules:\n  - {name: r, key: [k], on_partition: full, limits: [{limit: 4, per: 1440h, algorithm: fixed-window}], block: 8000h}")
		n := w.nodes[1]
		key := w.keyOf("r", w.nodes[0], nil)
		w.setCut(w.nodes[0], n, true)
		w.change(func() { w.place[w.partition("r", key)].standby = w.nodes[0].id })
		u, err := n.Locate(&Query{Rule: "r", Key: []string{key}})
		expect.NoError(t, err)
		c := newChange(verbAdjust, u, []UnitCost{{Unit: document.Requests, Cost: 2}})
		expect.NoError(t,
			n.copies.Amend(n.clock.Now(),
				&counters.Amendment{Ops: []counters.Op{{Key: c.ops[0].Key, Limit: c.ops[0].Limit, Cost: 2}}}))
		for i, want := range []bool{true, true, false} {
			if a := n.check(byKey("r", key)); a.Allowed != want || a.DecidedBy != ByFallback ||
				a.Limits[0].Blocked == want {
				t.Errorf("check %d: %v by %s, %+v", i, a.Allowed, a.DecidedBy, a.Limits)
			}
		}
		// The block holds even without the copy.
		n.copies.Drop(w.partition("r", key))
		if a := n.check(byKey("r", key)); a.Allowed || !a.Limits[0].Blocked {
			t.Errorf("without the copy: have %+v", a.Limits)
		}
	})
}
