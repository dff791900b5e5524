package limiter

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

// Delays through any node are the same as on a standalone node, for every algorithm.
func TestDelaysAsAlone(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				text := fmt.Sprintf(`rules:
  - {name: r, key: [k], on_limit: delay, max_delay: 20h, limits: [{limit: 20, per: 24h, algorithm: %[1]s}, {limit: 30, per: 20h, algorithm: %[1]s, unit: tokens}]}`, kind)
				w, one := newTestCluster(t, 3, text), open(t, text)
				delayed, refused := 0, 0
				for i := range 300 {
					q := byKey("r", fmt.Sprint(i%5))
					if i%7 == 0 {
						q.Mode = counters.PeekMode
					}
					q.Costs = []UnitCost{{"tokens", int64(i % 4)}, {"requests", int64(i % 3)}}
					have, want := w.nodes[i%3].check(q), &Answer{}
					expect.NoError(t, one.Check(&q, want))
					near := func(a, b time.Duration) bool { return (a - b).Abs() < time.Minute }
					if have.Allowed != want.Allowed || !near(have.Delay(), want.Delay()) || have.DecidedBy == ByLease {
						t.Fatalf("check %d: have %+v, want %+v", i, have.Limits, want.Limits)
					}
					for j := range have.Limits {
						h, o := have.Limits[j], want.Limits[j]
						if h.Allowed != o.Allowed || h.Remaining != o.Remaining ||
							!near(h.ResetAfter, o.ResetAfter) ||
							!near(h.RetryAfter, o.RetryAfter) || !near(h.Delay, o.Delay) {
							t.Fatalf("check %d, limit %d: have %+v, want %+v", i, j, h.Decision, o.Decision)
						}
					}
					switch {
					case !have.Allowed:
						refused++
					case have.Delay() > 0:
						delayed++
					}
				}
				if delayed == 0 || refused == 0 {
					t.Errorf("have %d delayed, %d refused", delayed, refused)
				}
			})
		})
	}
}

// Each check gets its own turn in the queue, however it reaches the owner:
// alone, with identical checks in one message, in a batch, or relayed by the
// standby. The same holds if the standby acts.
func TestTurnsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step, most = time.Hour, 12
		for _, rule := range []string{
			"{name: r, key: [k], limits: [{limit: 24, burst: 12, per: 24h, algorithm: leaky-bucket}]}",
			"{name: r, key: [k], on_limit: delay, max_delay: 12h, limits: [{limit: 24, burst: 1, per: 24h, algorithm: token-bucket}]}",
		} {
			w := newTestCluster(t, 3, "rules:\n  - "+rule)
			key := w.keyOf("r", w.nodes[0], w.nodes[2])
			w.setCut(w.nodes[1], w.nodes[0], true) // node 1 reaches the owner through the standby
			var mu sync.Mutex
			var turns []time.Duration
			note := func(a *Answer) {
				mu.Lock()
				defer mu.Unlock()
				if a.Allowed {
					turns = append(turns, a.Delay())
				} else if a.Limits[0].RetryAfter <= 0 {
					t.Errorf("refused: have %+v", a.Limits)
				}
			}
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					for range 2 {
						var a Answer
						q := byKey("r", key)
						if err := w.nodes[i%3].Check(&q, &a); err != nil {
							t.Error(err)
						}
						note(&a)
					}
					queries := []*Query{{Rule: "r", Key: []string{key}, ByKey: true},
						{Rule: "r", Key: []string{key}, ByKey: true}}
					answers, errs := []*Answer{{}, {}}, make([]error, 2)
					w.nodes[i%3].CheckAll(queries, answers, errs)
					for j := range answers {
						note(answers[j])
					}
				})
			}
			wg.Wait()
			slices.Sort(turns)
			for i, have := range turns {
				// A check reads the clock before it reaches the counter, so a check that read
				// it later may get there first.
				if want := time.Duration(i) * step; have > want+time.Second || have < want-time.Minute {
					t.Errorf("%s: turn %d is in %s, want %s", rule, i, have, want)
				}
			}
			if n := len(turns); n < most || n > most+1 {
				t.Errorf("%s: have %d turns", rule, n)
			}
		}
	})
}

// If one owner refuses a check, the others get back what it took, so refused
// checks make no queue longer.
func TestRefusedChecksLeaveTheQueue(t *testing.T) {
	for i, kind := range append(kinds, kinds...) {
		limit := 1 + i/len(kinds)
		t.Run(fmt.Sprintf("%s of %d", kind, limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 3, fmt.Sprintf(`rules:
  - {name: slow, key: [k], on_limit: delay, max_delay: 24h, limits: [{limit: %d, per: 1h, algorithm: %s}]}
  - {name: other, key: [o], limits: [{limit: 1, per: 1440h, algorithm: fixed-window}]}`, limit, kind))
				for owner := range 3 {
					slow, other := w.keyOf("slow", w.nodes[owner], nil), w.keyOf("other", w.nodes[1], nil)
					n := w.nodes[0]
					for range 3 {
						if a := n.check(byKey("slow", slow)); !a.Allowed {
							t.Fatalf("have %+v", a.Limits)
						}
					}
					before := n.check(Query{Rule: "slow", Key: []string{slow}, ByKey: true,
						Mode: counters.PeekMode}).Delay()
					for range 40 {
						n.check(Query{Attributes: attrs("k", slow, "o", other)})
						w.calls.Wait()
					}
					after := n.check(byKey("slow", slow))
					// One of the 40 was admitted, with the first owner.
					if d := after.Delay() - before; !after.Allowed || d > 2*time.Hour+time.Minute {
						t.Errorf("owner %d: the queue grew by %s", owner, d)
					}
					if a := n.check(Query{Attributes: attrs("k", slow, "o", other)}); a.Allowed || a.Delay() != 0 {
						t.Errorf("owner %d: a refused check is delayed by %s", owner, a.Delay())
					}
				}
			})
		})
	}
}

// A cut-off node delays within its share. A shadow rule delays no check.
func TestDelayAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, `rules:
  - {name: share, key: [k], on_limit: delay, max_delay: 2h, limits: [{limit: 6, per: 1h, algorithm: token-bucket}]}
  - {name: little, key: [k], on_limit: delay, max_delay: 2h, limits: [{limit: 2, per: 1h, algorithm: fixed-window}]}
  - {name: shadow, key: [s], shadow: true, on_limit: delay, max_delay: 24h, limits: [{limit: 1, per: 1h, algorithm: token-bucket}]}`)
		n := w.nodes[1]
		for range 3 {
			if a := n.check(byKey("shadow", "x")); !a.Allowed || a.Delay() != 0 {
				t.Errorf("shadow: %v, delayed by %s", a.Allowed, a.Delay())
			}
		}
		w.setCut(n, w.nodes[0], true)
		w.setCut(n, w.nodes[2], true)
		key := w.keyOf("share", w.nodes[0], w.nodes[2])
		for i, want := range []time.Duration{0, 0, 30 * time.Minute, time.Hour, 90 * time.Minute, 2 * time.Hour, -1} {
			a := n.check(byKey("share", key))
			if a.DecidedBy != ByFallback || a.Allowed != (want >= 0) || a.Allowed &&
				!nearly(a.Delay(), want) && want > 0 {
				t.Errorf("check %d: %v by %s, delayed by %s, want %s", i, a.Allowed, a.DecidedBy, a.Delay(), want)
			}
		}
		third := w.nodes[2] // without a share of a limit of 2
		w.setCut(third, w.nodes[0], true)
		if a := third.check(byKey("little",
			w.keyOf("little", w.nodes[0], w.nodes[1]))); a.Allowed || a.Limits[0].RetryAfter <= 0 {
			t.Errorf("without a share: have %+v", a.Limits)
		}
	})
}
