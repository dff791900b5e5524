package limiter

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// caller checks one inline subject, always with the same limits.
type caller struct {
	rule             rules.Rule
	limits           []*rules.Limit
	admitted, leased int
}

func newCaller(limits ...algorithms.Limit) *caller {
	c := &caller{}
	c.rule.Lease.Threshold, c.rule.Lease.Idle = 0.85, 0.02
	for _, l := range limits {
		c.limits = append(c.limits, &rules.Limit{Limit: l})
	}
	return c
}

// check makes one check on n, by a lease or by asking the owner.
func (c *caller) check(n *testNode, owner ring.NodeID, subject uint64) {
	var ops []counters.Op
	for _, l := range c.limits {
		counter := counters.InlineCounter(uint64(l.Limit.Window)) // the window tells the counters apart
		ops = append(ops, counters.Op{Key: counters.Key{Subject: subject, Counter: counter}, Limit: &l.Limit, Cost: 1})
	}
	var receipt localcache.Receipt
	switch n.cluster.leases.spend(owner, &c.rule, c.limits, ops, &receipt) {
	case localcache.Spent:
		c.admitted++
		c.leased++
		return
	case localcache.Refused:
		return
	}
	a := &pendingAsk{to: owner, owner: owner, deadline: time.Now().Add(checkTimeout),
		done: make(chan struct{}, 1), rule: &c.rule, limits: c.limits}
	a.policies = []localcache.Policy{n.cluster.policyOf(&c.rule, c.limits)}
	a.question.ops, a.question.version, a.question.revision = ops, n.version(), 1
	a.dispatch(n.Limiter, true)
	if a.wait(); a.admitted {
		c.admitted++
		if a.fromLease {
			c.leased++
		}
	}
}

// G2, G3: callers give different limits for a subject on several nodes. Each is
// admitted at most up to its own limit in a window, and all together up to the
// largest. The first one has leases, and the others ask the owner each time.
func TestG2G3_CallersThatDiffer(t *testing.T) {
	fixed := func(amount int64, window time.Duration) algorithms.Limit {
		return algorithms.Limit{Kind: algorithms.FixedWindow, Amount: amount, Window: window}
	}
	minute, hour := time.Minute, time.Hour
	for name, callers := range map[string][]*caller{
		"amounts": {newCaller(fixed(1000, minute)), newCaller(fixed(2000, minute))},
		"windows": {newCaller(fixed(500, minute)), newCaller(fixed(3000, hour))},
		"five": {newCaller(fixed(1000, minute)), newCaller(fixed(1200, minute)),
			newCaller(fixed(1400, minute), fixed(5000, hour)),
			newCaller(fixed(5000, hour)), newCaller(fixed(2000, minute))},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, 3, "rules: []")
			owner, subject := w.nodes[1].id, uint64(0)
			for w.table.Owner(ring.PartitionOf(subject)) != owner {
				subject += 0x9e3779b97f4a7c15
			}
			nextWindow(hour)
			for i := range 8000 * len(callers) { // in half a minute
				callers[i%len(callers)].check(w.nodes[i/len(callers)%2*2], owner, subject)
				time.Sleep(30 * time.Second / time.Duration(8000*len(callers)))
			}
			sums, most := map[time.Duration]int{}, map[time.Duration]int64{}
			for i, c := range callers {
				for _, l := range c.limits {
					sums[l.Limit.Window] += c.admitted
					if int64(c.admitted) > l.Limit.Amount {
						t.Errorf("%s: caller %d: %d admitted of %d", name, i, c.admitted, l.Limit.Amount)
					}
					most[l.Limit.Window] = max(most[l.Limit.Window], l.Limit.Amount)
				}
				if first := i == 0; !first && c.leased > 0 || first && c.leased*2 < c.admitted || c.admitted < 100 {
					t.Errorf("%s: caller %d: %d admitted, %d of them by leases", name, i, c.admitted, c.leased)
				}
			}
			for window, sum := range sums {
				if all := int64(sum); all > most[window] || all < most[window]*98/100 {
					t.Errorf("%s: %d admitted together, of %d in %s", name, sum, most[window], window)
				}
			}
		})
	}
}

// Two callers give different limits for one key, on three nodes. Each is
// decided by its own amounts. The first one has leases, and hardly asks the
// owner; the other one does so with each check.
func TestCallersThatDiffer(t *testing.T) {
	per := func(limit int64, window string) []document.InlineLimit {
		return []document.InlineLimit{{Limit: limit, Per: window, Algorithm: "fixed-window"}}
	}
	for name, test := range map[string]struct {
		callers [2][]document.InlineLimit
		alone   bool // each caller has a counter of its own
	}{
		"100 and 200":                     {[2][]document.InlineLimit{per(100, "1m"), per(200, "1m")}, false},
		"5 a minute and 100 an hour":      {[2][]document.InlineLimit{per(5, "1m"), per(100, "1h")}, true},
		"500 a minute and 10,000 an hour": {[2][]document.InlineLimit{per(500, "1m"), per(10_000, "1h")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 3, "rules: []")
				calls := w.countCalls()
				nextWindow(time.Hour)
				const checks = 6000 // in a little less than a minute
				var admitted, leased [2]int64
				for i := range checks {
					who := i % 2
					a := w.nodes[i/2%3].check(Query{Subjects: []Subject{{InlineSubject: rules.InlineSubject{Key: []string{"k"}, Limits: test.callers[who]}}}})
					if a.Allowed {
						admitted[who]++
					}
					if a.DecidedBy == ByLease {
						leased[who]++
					}
					if limit := a.Limits[0].Limit.Amount; limit != test.callers[who][0].Limit {
						t.Fatalf("caller %d is decided by a limit of %d", who, limit)
					}
					time.Sleep(58 * time.Second / checks)
				}
				perCheck := float64(calls.Load()) / checks
				t.Logf("%v admitted, %v by leases or remembered refusals, %.3f calls a check",
					admitted, leased, perCheck)
				for who := range admitted {
					limit := test.callers[who][0].Limit
					if admitted[who] > limit || test.alone &&
						admitted[who] < min(limit, checks/2)*98/100 ||
						(leased[who] > 0) != (who == 0) {
						t.Errorf("caller %d: %d admitted of %d, %d by leases", who, admitted[who], limit, leased[who])
					}
				}
				if both := admitted[0] + admitted[1]; !test.alone && (both > 200 || both < 196) {
					t.Errorf("%d admitted by one counter, with limits of 100 and 200", both)
				}
				if perCheck >= 0.36 { // half of the checks are the other one's, and a third of those is at the owner
					t.Errorf("%.3f calls a check", perCheck)
				}
			})
		})
	}
}

// Counts through any node add up, under the limit and over it; with leases,
// once the last lease has ended.
func TestCountsAddUp(t *testing.T) {
	for _, kind := range []string{"fixed-window", "sliding-window", "token-bucket", "sliding-window-log"} {
		for _, exact := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, exact %v", kind, exact), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newTestCluster(t, 3, "rules: []")
					// The window is so long that nothing leaves it and no unit drains during the
					// test.
					limits := []document.InlineLimit{{Limit: 1000, Per: "366d", Algorithm: kind}}
					ask := func(n *testNode, mode counters.Mode, cost int64, exact bool) *Answer {
						return n.check(Query{Subjects: []Subject{{InlineSubject: rules.InlineSubject{Key: []string{"k"}, Limits: limits, Exact: exact},
							Mode: mode, Costs: []UnitCost{{document.Requests, cost}}}}})
					}
					nextWindow(time.Hour)
					sum, leased, over := int64(0), 0, 0
					for i := range 900 {
						cost := int64(1 + i%3)
						a := ask(w.nodes[i%3], counters.CountMode, cost, exact)
						sum += cost
						if a.Limits[0].NoRoom || !a.Allowed && !a.Counted {
							t.Fatalf("count %d was refused: %+v", i, a.Limits[0])
						}
						if a.Allowed != (sum <= 1000) && exact || exact && a.Limits[0].Used != sum {
							t.Fatalf("count %d of %d together: allowed %v, %d used", i, sum,
								a.Allowed, a.Limits[0].Used)
						}
						if a.DecidedBy == ByLease {
							leased++
						}
						if a.Counted {
							over++
						}
						time.Sleep(2 * time.Millisecond)
					}
					time.Sleep(localcache.MaxTTL + time.Second)
					for _, n := range w.nodes {
						if a := ask(n, counters.PeekMode, 0, true); a.Limits[0].Used != sum {
							t.Errorf("%d used of %d counted, %d by leases, %d over",
								a.Limits[0].Used, sum, leased, over)
						}
					}
					if mayLease := !exact && kind != "sliding-window-log"; leased > 0 != mayLease || over == 0 {
						t.Errorf("%d by leases, %d over", leased, over)
					}
				})
			})
		}
	}
}
