package limiter

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

var kinds = []string{"fixed-window", "sliding-window", "token-bucket", "leaky-bucket", "sliding-window-log"}

// G1: the nodes of a cluster together admit exactly the limit, with every
// algorithm, through any node, and while the partition moves from node to node.
func TestG1_ExactTogether(t *testing.T) {
	for _, moving := range []bool{false, true} {
		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s, moving %v", kind, moving), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testExactTogether(t, kind, moving) })
			})
		}
	}
}

func testExactTogether(t *testing.T, kind string, moving bool) {
	const limit = 1000
	w := newTestCluster(t, 3,
		fmt.Sprintf("rules:\n  - {name: r, key: [k], consistency: exact, limits: [{limit: %d, per: 1440h, algorithm: %s}]}", limit, kind))
	w.pause = func() time.Duration { return rand.N(300 * time.Microsecond) }
	p := w.partition("r", "x")
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 9 {
		wg.Go(func() {
			var a Answer
			q := byKey("r", "x")
			for range limit / 5 {
				time.Sleep(rand.N(200 * time.Microsecond)) // a check that its own node decides takes no virtual time
				if err := w.nodes[i%3].Check(&q, &a); err != nil {
					t.Error(err)
				} else if a.DecidedBy < ByForward {
					t.Errorf("decided by %s", a.DecidedBy)
				} else if a.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	over, moves := make(chan struct{}), 0
	var mover sync.WaitGroup
	mover.Go(func() {
		for ; moving; moves++ {
			select {
			case <-over:
				return
			case <-time.After(100 * time.Microsecond):
				w.handOver(p, w.nodes[moves%3])
			}
		}
	})
	wg.Wait()
	close(over)
	mover.Wait()
	expect.Equal(t, admitted.Load(), limit, "admitted")
	if moving && moves < 20 {
		t.Errorf("have %d moves, want some", moves)
	}
}

// G1: a check over subjects of several owners takes from all of them or from none.
func TestG1_NothingLeaks(t *testing.T) {
	for _, kind := range kinds[:4] {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testNothingLeaks(t, kind) })
		})
	}
}

func testNothingLeaks(t *testing.T, kind string) {
	w := newTestCluster(t, 3, fmt.Sprintf(`rules:
  - {name: a, key: [a], consistency: exact, limits: [{limit: 100000, per: 1440h, algorithm: %[1]s}]}
  - {name: b, key: [b], consistency: exact, limits: [{limit: 40, per: 1440h, algorithm: %[1]s}, {limit: 10000, per: 1680h, algorithm: %[1]s}]}
  - {name: c, key: [c], consistency: exact, limits: [{limit: 50000, per: 1440h, algorithm: %[1]s}]}`, kind))
	w.pause = func() time.Duration { return rand.N(300 * time.Microsecond) }
	time.Sleep(time.Minute) // until the nodes know that rates are as they were
	a, b, c := w.keyOf("a", w.nodes[0], nil), w.keyOf("b", w.nodes[1], nil), w.keyOf("c", w.nodes[2], nil)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			var answer Answer
			q := Query{Attributes: attrs("a", a, "b", b, "c", c)}
			for range 60 {
				if err := w.nodes[i%3].Check(&q, &answer); err != nil {
					t.Error(err)
				}
				if answer.Allowed {
					admitted.Add(1)
				} else if last := answer.Limits[answer.TightestIndex]; last.Rule.Name != "b" {
					t.Errorf("refused by %s", last.Rule.Name)
				}
			}
		})
	}
	wg.Wait()
	w.calls.Wait()
	if n := admitted.Load(); n > 40 || n < 1 {
		t.Errorf("have %d admitted, want at most 40", n)
	}
	for rule, key := range map[string]string{"a": a, "b": b, "c": c} {
		expect.Equal(t, w.nodes[0].used(rule, key), admitted.Load(), "%s, used", rule)
	}
}

// Sequential checks through any node get the same answers and the same usage as
// on a standalone node: checks, peeks and counts, of rules and of limits in the
// call.
func TestSameAnswersAsAlone(t *testing.T) {
	for _, kind := range append(slices.Clone(kinds), "first") {
		for _, inline := range []bool{false, true} {
			if kind == "first" && !inline {
				continue // rules can't express it
			}
			t.Run(fmt.Sprintf("%s, inline %v", kind, inline), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testSameAnswers(t, kind, inline) })
			})
		}
	}
}

func testSameAnswers(t *testing.T, kind string, inline bool) {
	text, modes := "rules: []", [...]counters.Mode{counters.PeekMode, counters.CheckMode,
		counters.CountMode, 6: counters.CheckMode}
	if !inline {
		text = fmt.Sprintf("rules:\n  - {name: r, key: [k], consistency: exact, limits: [{limit: 20, per: 1440h, algorithm: %[1]s}, {limit: 30, per: 1200h, algorithm: %[1]s, unit: tokens}]}", kind)
	}
	limits := []document.InlineLimit{{Limit: 20, Per: "60d", Algorithm: kind},
		{Limit: 30, Per: "50d", Algorithm: kind, Unit: "tokens"}}
	if kind == "first" {
		limits[0].Algorithm, limits[0].From, limits[1].Algorithm, limits[1].From = "fixed-window", kind, "fixed-window", kind
	}
	over := 0
	w, one := newTestCluster(t, 3, text), open(t, text)
	for i := range 400 {
		key, mode, costs := fmt.Sprint(i%5), modes[i%7], []UnitCost{{"tokens", int64(i % 4)},
			{"requests", int64(i % 3)}}
		q := byKey("r", key)
		q.Mode, q.Costs = mode, costs
		if inline {
			q = Query{Subjects: []Subject{{InlineSubject: rules.InlineSubject{Key: []string{key},
				Limits: limits, Exact: true}, Mode: mode, Costs: costs}}}
		}
		have, want := w.nodes[i%3].check(q), &Answer{}
		expect.NoError(t, one.Check(&q, want))
		if have.Allowed != want.Allowed || have.Counted != want.Counted ||
			have.TightestIndex != want.TightestIndex || len(have.Limits) != len(want.Limits) {
			t.Fatalf("check %d: have %+v, want %+v", i, have.Limits, want.Limits)
		}
		for j := range have.Limits {
			h, o := have.Limits[j], want.Limits[j]
			near := func(a, b time.Duration) bool { return (a - b).Abs() < time.Minute }
			if h.Allowed != o.Allowed || h.Used != o.Used || h.Remaining != o.Remaining ||
				!near(h.ResetAfter, o.ResetAfter) || !near(h.RetryAfter, o.RetryAfter) || !near(h.Delay, o.Delay) {
				t.Fatalf("check %d, limit %d: have %+v, want %+v", i, j, h.Decision, o.Decision)
			}
			if h.Used > h.Limit.Capacity() {
				over++
			}
		}
	}
	if over == 0 {
		t.Error("no count went over its limit")
	}
}

func TestDecidedByWeakest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: a, key: [a], consistency: exact, limits: [{limit: 10, per: 1440h}]}
  - {name: b, key: [b], consistency: exact, limits: [{limit: 10, per: 1440h}]}`)
		here, there := w.keyOf("a", w.nodes[0], nil), w.keyOf("b", w.nodes[1], w.nodes[2])
		if a := w.nodes[0].check(byKey("a", here)); a.DecidedBy != ByOwner {
			t.Errorf("have %s", a.DecidedBy)
		}
		q := Query{Attributes: attrs("a", here, "b", there)}
		if a := w.nodes[0].check(q); a.DecidedBy != ByForward || !a.Allowed || len(a.Limits) != 2 {
			t.Errorf("have %s", a.DecidedBy)
		}
		// The link to the owner is broken: the standby relays.
		w.setCut(w.nodes[0], w.nodes[1], true)
		if a := w.nodes[0].check(q); a.DecidedBy != ByForward || w.nodes[2].figure("relayed_total") != 1 {
			t.Errorf("by relay: have %s", a.DecidedBy)
		}
		// The owner is gone: the standby acts, within its share.
		w.setCut(w.nodes[2], w.nodes[1], true)
		for i := range 3 {
			if a := w.nodes[0].check(q); a.DecidedBy != ByStandby || !a.Allowed {
				t.Errorf("standby, check %d: have %v by %s", i, a.Allowed, a.DecidedBy)
			}
		}
		if a := w.nodes[2].check(byKey("b", there)); a.Allowed || a.DecidedBy != ByStandby {
			t.Errorf("asked at the standby: have %v by %s", a.Allowed, a.DecidedBy)
		}
		expect.Equal(t, w.nodes[2].figure("standby_decisions_total"), 4, "decisions as standby")
		// The standby is gone too.
		w.setCut(w.nodes[0], w.nodes[2], true)
		if a := w.nodes[0].check(q); a.DecidedBy != ByFallback || !a.Allowed {
			t.Errorf("alone: have %v by %s", a.Allowed, a.DecidedBy)
		}
		if s := w.nodes[0].figure("fallback_total", "share"); s != 1 {
			t.Errorf("have %+v", s)
		}
	})
}

func TestFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: share, key: [k], on_partition: share, limits: [{limit: 10, per: 1440h, algorithm: fixed-window}]}
  - {name: little, key: [k], on_partition: share, limits: [{limit: 2, per: 1440h, algorithm: token-bucket}]}
  - {name: full, key: [k], on_partition: full, limits: [{limit: 10, per: 1440h}]}
  - {name: allow, key: [k], on_partition: allow, limits: [{limit: 1, per: 1440h}]}
  - {name: deny, key: [k], on_partition: deny, limits: [{limit: 10, per: 1440h}]}`)
		for i := range w.nodes {
			for j := range i {
				w.setCut(w.nodes[i], w.nodes[j], true)
			}
		}
		for rule, want := range map[string][]int{"share": {0, 3, 3}, "little": {0, 1, 0},
			"full": {0, 10, 10}, "allow": {0, 20, 20}, "deny": {0, 0, 0}} {
			// on nodes without the counters: nodes[0] owns the key, and the other node is
			// its standby
			for i := 1; i < 3; i++ {
				key := w.keyOf(rule, w.nodes[0], w.nodes[3-i])
				n := 0
				for range 20 {
					a := w.nodes[i].check(byKey(rule, key))
					if a.DecidedBy != ByFallback {
						t.Fatalf("%s: decided by %s", rule, a.DecidedBy)
					}
					if a.Allowed {
						n++
					} else if a.Limits[0].RetryAfter <= 0 {
						t.Fatalf("%s: retry after %v", rule, a.Limits[0].RetryAfter)
					}
				}
				expect.Equal(t, n, want[i], "%s at node %d, admitted", rule, i)
			}
		}
		// A fallback that refuses gives back what it took from the fallback counters.
		own, other := w.keyOf("full", w.nodes[1], nil), w.keyOf("deny", w.nodes[0], w.nodes[2])
		w.nodes[1].SetRules(compile(t, 2, `version: 1
rules:
  - {name: full, key: [own], on_partition: full, limits: [{limit: 10, per: 1440h}]}
  - {name: deny, key: [other], on_partition: deny, limits: [{limit: 10, per: 1440h}]}`))
		if a := w.nodes[1].check(Query{Attributes: attrs("own", own, "other", other)}); a.Allowed ||
			a.DecidedBy != ByFallback {
			t.Errorf("have %v by %s", a.Allowed, a.DecidedBy)
		}
		expect.Equal(t, w.nodes[1].used("full", own), 0, "used")
	})
}

func TestLocalConsistency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], consistency: local, limits: [{limit: 10, per: 1440h}]}")
		for i, want := range []int{4, 3, 3} {
			n := 0
			for range 10 {
				if a := w.nodes[i].check(byKey("r", "x")); a.DecidedBy != ByOwner {
					t.Fatalf("decided by %s", a.DecidedBy)
				} else if a.Allowed {
					n++
				}
			}
			if n != want || w.nodes[i].figure("forward_seconds") != 0 {
				t.Errorf("node %d: have %d admitted, want %d", i, n, want)
			}
		}
	})
}

// Without authority an owner decides nothing, not even if it loses authority during the Take.
func TestWithoutAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2, "rules:\n  - {name: r, key: [k], limits: [{limit: 10, per: 1440h}]}")
		key := w.keyOf("r", w.nodes[0], w.nodes[1])
		w.nodes[0].authority.Store(false)
		expect.Equal(t, w.nodes[0].check(byKey("r", key)).DecidedBy, ByFallback, "at the owner")
		expect.Equal(t, w.nodes[1].check(byKey("r", key)).DecidedBy, ByFallback, "at the standby")
		if _, err := w.nodes[1].Usage(&Query{Rule: "r", Key: []string{key}}); !errors.Is(err, ErrNoOwner) {
			t.Errorf("have %v", err)
		}
		w.nodes[0].authority.Store(true)
		expect.Equal(t, w.nodes[1].used("r", key), 0, "used")
		calls := 0
		w.nodes[0].cluster.ReadAuthority = func() (int64, bool) { calls++; return 0, calls%2 == 1 } // lost during each decision
		if a := w.nodes[0].check(byKey("r", key)); a.DecidedBy == ByOwner || a.DecidedBy == ByForward {
			t.Errorf("lost during the decision: have %s", a.DecidedBy)
		}
	})
}

// A batch reads authority before its first check, and after every
// maxProvisional checks decided here. Once a reading finds none, the checks
// since the last reading don't count as the owner's decisions.
func TestBatchLosesAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2, "rules:\n  - {name: r, key: [k], limits: [{limit: 1000, per: 1440h}]}")
		key := w.keyOf("r", w.nodes[0], w.nodes[1])
		for looks := range 6 {
			calls := 0
			w.nodes[0].cluster.ReadAuthority = func() (int64, bool) { calls++; return 0, calls <= looks }
			queries, answers := make([]*Query, 3*maxProvisional+1), make([]*Answer, 3*maxProvisional+1)
			for i := range queries {
				q := byKey("r", key)
				queries[i], answers[i] = &q, &Answer{}
			}
			errs := make([]error, len(queries))
			w.nodes[0].CheckAll(queries, answers, errs)
			want := min(max(0, looks-1)*maxProvisional, len(queries))
			for i, a := range answers {
				if errs[i] != nil || a.DecidedBy != ByOwner && a.DecidedBy != ByFallback {
					t.Fatalf("%d readings, check %d: have %s, %v", looks, i, a.DecidedBy, errs[i])
				}
				if have := a.DecidedBy == ByOwner; have != (i < want) {
					t.Fatalf("%d readings, check %d: have %s; the first %d are the owner's", looks,
						i, a.DecidedBy, want)
				}
			}
		}
	})
}

// A node with older rules waits for the newer ones. If it does not get them,
// owners decide by its version as long as it has authority: then it gets the
// newer ones soon.
func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const text = "version: 1\nrules:\n  - {name: r, key: [k], limits: [{limit: %d, per: 1440h}]}"
		w := newTestCluster(t, 2, fmt.Sprintf(text[11:], 10))
		key := w.keyOf("r", w.nodes[0], nil)
		newer := compile(t, 2, fmt.Sprintf(text, 20))
		w.nodes[0].SetRules(newer)
		if a := w.nodes[1].check(byKey("r", key)); a.RulesVersion != 1 ||
			a.Limits[0].Remaining != 9 || a.DecidedBy != ByForward {
			t.Errorf("the caller's version: have %d, %+v", a.RulesVersion, a.Limits[0].Decision)
		}
		w.nodes[1].authority.Store(false)
		if a := w.nodes[1].check(byKey("r", key)); a.RulesVersion != 1 || a.DecidedBy != ByFallback {
			t.Errorf("without authority: have %d by %s", a.RulesVersion, a.DecidedBy)
		}
		w.nodes[1].authority.Store(true)
		w.mu.Lock()
		w.detail = func(from, _ ring.NodeID, m peer.Method, _ []byte) {
			if from == w.nodes[1].id && m == MethodAsk {
				w.nodes[1].SetRules(newer) // after matching, before the owner answers
			}
		}
		w.mu.Unlock()
		if a := w.nodes[1].check(byKey("r", key)); a.RulesVersion != 2 || a.Limits[0].Remaining != 18 {
			t.Errorf("the newer version: have %d, %+v", a.RulesVersion, a.Limits[0].Decision)
		}
		w.mu.Lock()
		w.detail = nil
		w.mu.Unlock()
		// The owner is behind.
		w.nodes[1].SetRules(compile(t, 3, fmt.Sprintf(text, 30)))
		if a := w.nodes[1].check(byKey("r", key)); a.RulesVersion != 3 ||
			a.Limits[0].Remaining != 27 || a.DecidedBy != ByForward {
			t.Errorf("an owner that is behind: have %d, %+v", a.RulesVersion, a.Limits[0].Decision)
		}
	})
}

// Identical checks travel together and share one refusal.
func TestCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2,
			"rules:\n  - {name: r, key: [k], consistency: exact, limits: [{limit: 30, per: 1440h}]}")
		key := w.keyOf("r", w.nodes[1], nil)
		w.slow[w.nodes[1].id] = 50 * time.Millisecond
		var messages, admitted atomic.Int64
		w.detail = func(ring.NodeID, ring.NodeID, peer.Method, []byte) { messages.Add(1) }
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if a := w.nodes[0].check(byKey("r", key)); a.DecidedBy != ByForward {
					t.Errorf("have %s", a.DecidedBy)
				} else if a.Allowed {
					admitted.Add(1)
				}
			})
		}
		wg.Wait()
		joined, forwards := w.nodes[0].figure("forward_coalesced_total"), w.nodes[0].figure("forward_seconds")
		if admitted.Load() != 30 || messages.Load() > 20 || joined+messages.Load() != 100 ||
			forwards != messages.Load() {
			t.Errorf("have %d admitted, %d messages, %d answered, %d coalesced", admitted.Load(),
				messages.Load(), forwards, joined)
		}
		for i := range w.nodes[0].cluster.flights.shard {
			expect.Equal(t, len(w.nodes[0].cluster.flights.shard[i].byKey), 0, "flights are left")
		}
	})
}

// A check waits for a node that is reachable but does not answer, but no longer
// than a check may take.
func TestSlowOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], consistency: exact, limits: [{limit: 30, per: 1440h}]}")
		key := w.keyOf("r", w.nodes[1], w.nodes[2])
		w.slow[w.nodes[1].id] = 2 * time.Second
		began := time.Now()
		a := w.nodes[0].check(byKey("r", key))
		if took := time.Since(began); a.DecidedBy != ByFallback || took < checkTimeout/2 || took > 2*checkTimeout {
			t.Errorf("have %s after %v", a.DecidedBy, took)
		}
		if w.nodes[2].figure("standby_decisions_total") != 0 {
			t.Error("a slow check made the standby act")
		}
	})
}

// Other nodes correct a node that is wrong about the owner.
func TestWrongOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], consistency: exact, limits: [{limit: 30, per: 1440h}]}")
		key := w.keyOf("r", w.nodes[1], w.nodes[0])
		p := w.partition("r", key)
		w.nodes[0].wrong.Store(p, w.nodes[2].id)
		w.nodes[2].wrong.Store(p, w.nodes[1].id)
		if a := w.nodes[0].check(byKey("r", key)); a.DecidedBy != ByForward || a.Limits[0].Remaining != 29 {
			t.Errorf("have %s, %+v", a.DecidedBy, a.Limits[0].Decision)
		}
		// Frozen forever: there is no owner, and the standby may not act.
		w.change(func() { w.place[p].frozen = true })
		w.nodes[1].table.Shut(p)
		began := time.Now()
		for i, n := range w.nodes {
			expect.Equal(t, n.check(byKey("r", key)).DecidedBy, ByFallback, "node %d, frozen", i)
		}
		if took := time.Since(began); took > 3*checkTimeout {
			t.Errorf("took %v", took)
		}
	})
}

func TestUsageOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 10, per: 1440h}, {limit: 100, per: 1440h, unit: tokens}]}")
		for i := range w.nodes {
			key := w.keyOf("r", w.nodes[i], nil)
			asked := w.nodes[(i+1)%3]
			if u, err := asked.Adjust(adjustment("r", []string{key}, 12, "")); err != nil ||
				u.Limits[0].Used != 12 || u.Limits[1].Used != 0 {
				t.Errorf("have %+v, %v", u, err)
			}
			if u, err := asked.Adjust(adjustment("r", []string{key}, -5, "")); err != nil ||
				u.Limits[0].Used != 7 || u.Limits[0].Remaining != 3 {
				t.Errorf("have %+v, %v", u, err)
			}
			if _, err := asked.Reset(&Query{Rule: "r", Key: []string{key}}); err != nil {
				t.Error(err)
			}
			expect.Equal(t, w.nodes[i].used("r", key), 0, "used")
		}
		w.setCut(w.nodes[0], w.nodes[1], true)
		key := w.keyOf("r", w.nodes[1], w.nodes[2])
		if u, err := w.nodes[0].Adjust(adjustment("r", []string{key}, 3, "")); err != nil || u.Limits[0].Used != 3 {
			t.Errorf("by the standby: have %+v, %v", u, err)
		}
		w.setCut(w.nodes[0], w.nodes[2], true)
		if _, err := w.nodes[0].Usage(&Query{Rule: "r", Key: []string{key}}); !errors.Is(err, ErrNoOwner) {
			t.Errorf("have %v", err)
		}
		if _, err := w.nodes[0].Reset(&Query{Rule: "r", Key: []string{key}}); !errors.Is(err, ErrNoOwner) {
			t.Errorf("have %v", err)
		}
	})
}

func TestTopOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, "rules:\n  - {name: r, key: [k], limits: [{limit: 1, per: 1440h}]}")
		for i := range 30 {
			w.nodes[i%3].check(byKey("r", "x"))
			if i < 3 {
				w.nodes[0].check(byKey("r", "y"))
			}
		}
		want := []top.Subject{{Rule: "r", Key: []string{"x"}, Count: 29, Checks: 30},
			{Rule: "r", Key: []string{"y"}, Count: 2, Checks: 3}}
		for i, n := range w.nodes {
			have := n.mostRefused(10)
			if len(have) != 2 || have[0].Count != 29 || have[1].Count != want[1].Count ||
				!slices.Equal(have[0].Key, want[0].Key) {
				t.Errorf("node %d: have %+v, want %+v", i, have, want)
			}
		}
		w.setCut(w.nodes[0], w.nodes[1], true)
		if have := w.nodes[0].mostRefused(1); len(have) != 1 || have[0].Count >= 29 {
			t.Errorf("without one node: have %+v", have)
		}
	})
}

// A batch is decided in order, check by check, although its questions are sent together.
func TestCheckAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 10, per: 1440h}]}\n  - {name: s, key: [o], limits: [{limit: 7, per: 1440h}]}")
		one := open(t,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 10, per: 1440h}]}\n  - {name: s, key: [o], limits: [{limit: 7, per: 1440h}]}")
		var queries []*Query
		var answers []*Answer
		for i := range 700 {
			q := Query{Attributes: attrs("k", fmt.Sprint(i%40), "o", fmt.Sprint(i%90))}
			switch i % 5 {
			case 0:
				q = byKey("r", fmt.Sprint(i%3))
			case 1:
				q = byKey("nope", "x")
			}
			q.Costs = []UnitCost{{"requests", int64(i % 7 / 2)}}
			queries, answers = append(queries, &q), append(answers, &Answer{})
		}
		errs := make([]error, len(queries))
		w.nodes[1].CheckAll(queries, answers, errs)
		for i, q := range queries {
			want := &Answer{}
			if err := one.Check(q, want); !errors.Is(errs[i], err) && (err == nil) != (errs[i] == nil) {
				t.Fatalf("check %d: have %v, want %v", i, errs[i], err)
			} else if err != nil {
				continue
			}
			if answers[i].Allowed != want.Allowed ||
				answers[i].Limits[answers[i].TightestIndex].Remaining != want.Limits[want.TightestIndex].Remaining &&
					want.Allowed {
				t.Fatalf("check %d: have %v %+v, want %v %+v", i, answers[i].Allowed,
					answers[i].Limits, want.Allowed, want.Limits)
			}
		}
		if s := w.nodes[1].figure("forward_seconds"); s == 0 {
			t.Error("nothing was forwarded")
		}
	})
}

// What an answer took is given back if it arrives too late for its check.
func TestLateAnswerIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2,
			"rules:\n  - {name: r, key: [k], consistency: exact, limits: [{limit: 30, per: 1440h}]}")
		key := w.keyOf("r", w.nodes[1], nil)
		q := byKey("r", key)
		a := &Answer{}
		if over, err := w.nodes[0].prepare(w.nodes[0].clock.Now(), &q, a); over || err != nil {
			t.Fatal(err)
		}
		w.slow[w.nodes[1].id] = 30 * time.Millisecond
		if w.nodes[0].tryDecide(&q, a) {
			t.Fatal("decided at once")
		}
		asked := a.scratch.clusterCheck.asks[0]
		asked.deadline = time.Now()
		if asked.wait() {
			t.Fatal("answered at once")
		}
		process.Eventually(t, "the cost is given back",
			func() bool { return w.nodes[0].figure("given_back_total") == 1 })
		w.calls.Wait()
		expect.Equal(t, w.nodes[1].used("r", key), 0, "used")
	})
}

// A node drops a refund of another lineage.
func TestRefundsAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 2,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 30, per: 1440h, algorithm: token-bucket}]}")
		n := w.nodes[1]
		time.Sleep(time.Minute) // until the node knows that rates are as they were
		key := w.keyOf("r", n, nil)
		a := n.check(Query{Rule: "r", Key: []string{key}, ByKey: true, Costs: []UnitCost{{"requests", 5}}})
		op := a.scratch.ops[0]
		life := n.table.Life(op.Key.Partition())
		other := counters.Life{Lineage: life.Lineage + 1}
		for _, tt := range []struct {
			name string
			gift takenCosts
			want int64
		}{
			{"another lineage", takenCosts{boot: n.boot, life: other}, 5},
			{"no lineage", takenCosts{boot: n.boot}, 5},
			{"as it was taken", takenCosts{boot: n.boot, life: life}, 0},
		} {
			tt.gift.subject, tt.gift.steady, tt.gift.marks, tt.gift.ops = op.Key.Subject, a.Now.Steady, []algorithms.TakeMark{markOf(&op, a.Now)}, []counters.Op{op}
			n.ServeNear(w.nodes[0].id, MethodRefund,
				wire.Encode(nil, &refundList{[]refund{{takenCosts: tt.gift}}}), &testResponder{})
			expect.Equal(t, n.used("r", key), tt.want, "%s, used", tt.name)
		}
	})
}

type decisionCounter struct {
	clock atomic.Int64
	mu    sync.Mutex // guards seen
	seen  map[DecidedBy]int
}

func (t *decisionCounter) Clock() int64 { return t.clock.Add(1) }
func (t *decisionCounter) Decided(by DecidedBy, _ int, _ uint64, began, ended int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if began >= ended {
		by = ByNone
	}
	t.seen[by]++
}

func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], consistency: exact, limits: [{limit: 30, per: 1440h}]}")
		rec := &decisionCounter{seen: map[DecidedBy]int{}}
		for _, n := range w.nodes {
			n.cluster.Recorder = rec
		}
		key := w.keyOf("r", w.nodes[1], w.nodes[2])
		for _, n := range w.nodes {
			n.check(byKey("r", key))
		}
		w.setCut(w.nodes[0], w.nodes[1], true)
		w.setCut(w.nodes[2], w.nodes[1], true)
		w.nodes[0].check(byKey("r", key))
		if rec.seen[ByOwner] != 3 || rec.seen[ByStandby] != 1 || rec.seen[ByNone] != 0 {
			t.Errorf("have %v", rec.seen)
		}
	})
}

func TestOwnChecksDoNotAllocate(t *testing.T) {
	w := newTestCluster(t, 2, "rules:\n  - {name: r, key: [k], limits: [{limit: 100000, per: 1440h}]}")
	q := byKey("r", w.keyOf("r", w.nodes[0], nil))
	var a Answer
	w.nodes[0].Check(&q, &a)
	if n := testing.AllocsPerRun(1000, func() { w.nodes[0].Check(&q, &a) }); n != 0 || a.DecidedBy != ByOwner {
		t.Errorf("have %v allocations, by %s", n, a.DecidedBy)
	}
}

func TestLeasedChecksDoNotAllocate(t *testing.T) {
	large := newTestCluster(t, 2, "rules:\n  - {name: r, key: [k], limits: [{limit: 100000000, per: 1440h}]}")
	spend := byKey("r", large.keyOf("r", large.nodes[1], nil))
	var leased Answer
	// Leases grow while they are used. A renewal allocates, but then only one check
	// in thousands renews.
	process.Eventually(t, "a thousand checks from a lease allocate nothing", func() bool {
		n := testing.AllocsPerRun(1000, func() { large.nodes[0].Check(&spend, &leased) })
		return n == 0 && leased.DecidedBy == ByLease && leased.Allowed
	})
	w := newTestCluster(t, 2,
		"rules:\n  - {name: r, key: [k], limits: [{limit: 1000, per: 1440h}, {limit: 100000000, per: 1h}]}")
	q := byKey("r", w.keyOf("r", w.nodes[1], nil))
	var a Answer
	process.Eventually(t, "leases are large enough", func() bool {
		for range 100 {
			w.nodes[0].Check(&q, &a)
		}
		return a.Limits[0].Remaining < 100 && !a.Allowed
	})
	if n := testing.AllocsPerRun(1000, func() { w.nodes[0].Check(&q, &a) }); n != 0 || a.DecidedBy != ByLease {
		t.Errorf("have %v allocations for a remembered refusal, by %s", n, a.DecidedBy)
	}
}

// BenchmarkWays compares the ways to decide: as the owner, from a lease, and by asking.
func BenchmarkWays(b *testing.B) {
	w := newTestCluster(b, 2, `rules:
  - {name: r, key: [k], limits: [{limit: 9007199254740991, per: 1440h}]}
  - {name: x, key: [k], consistency: exact, limits: [{limit: 9007199254740991, per: 1440h}]}`)
	for name, q := range map[string]Query{
		"owner": byKey("r", w.keyOf("r", w.nodes[0], nil)), "lease": byKey("r", w.keyOf("r", w.nodes[1], nil)),
		"forward": byKey("x", w.keyOf("x", w.nodes[1], nil)),
	} {
		b.Run(name, func(b *testing.B) {
			var a Answer
			b.ReportAllocs()
			for b.Loop() {
				w.nodes[0].Check(&q, &a)
			}
		})
	}
}
