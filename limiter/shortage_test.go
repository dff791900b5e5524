package limiter

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

const globalMinute = `rules:
  - {name: r, key: [k], scope: global, limits: [{limit: 1000, per: 1m, algorithm: fixed-window}]}
  - {name: month, key: [k], scope: global, limits: [{limit: 1000, per: month, algorithm: fixed-window}]}
  - {name: other, key: [k], limits: [{limit: 1000, per: 1m}]}`

// waiting returns a check of one subject that waits for loans.
func waiting(rule, key string) Query {
	q := byKey(rule, key)
	q.AwaitsLoan = true
	return q
}

// With 1,000 a minute over two regions, a region that is asked 1,500 times
// within 0.4 s admits all 1,000, and refuses next to nothing before the last of
// them: however many nodes are asked, and however busy they are.
func TestABurstInOneRegionGetsTheWholeLimit(t *testing.T) {
	for _, tt := range []struct {
		name      string
		nodes     int
		far, busy time.Duration // how long messages take, one way: between regions, and within one, at most
	}{
		{"near", 2, time.Millisecond, 0},
		{"far", 2, 25 * time.Millisecond, 0},
		{"three nodes", 3, time.Millisecond, 500 * time.Microsecond},
		{"three busy nodes", 3, time.Millisecond, 8 * time.Millisecond},
		{"five busy nodes", 5, time.Millisecond, 8 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newTestRegionsOf(t, tt.nodes, globalMinute, "eu", "us")
				e.change(func() { e.pause = func() time.Duration { return tt.far } })
				if tt.busy > 0 {
					for _, region := range e.all {
						region.pause = func() time.Duration { return rand.N(tt.busy) }
					}
				}
				nextWindow(time.Minute)
				time.Sleep(2 * time.Second)

				for round := range 4 {
					admitted, early := burst(e.all["eu"], fmt.Sprint("x", round), tt.busy)
					if admitted != 1000 || early > 20 {
						t.Errorf("round %d: have %d admitted, and %d refusals before the last of them",
							round, admitted, early)
					}
				}
			})
		})
	}
}

// burst asks the nodes of a region, in turn, 1,500 times within 0.4 s. It
// returns how many were admitted, and how many refused before the last of
// these. An answer may overtake others by up to overtaking: refusals of that
// time may be of later checks.
func burst(region *testCluster, key string, overtaking time.Duration) (admitted, early int) {
	const checks = 1500
	var wg sync.WaitGroup
	var mu sync.Mutex
	refusals, lastAdmitted := []time.Time{}, time.Time{}
	began := time.Now()

	for i := range checks {
		time.Sleep(time.Until(began.Add(time.Duration(i) * 400 * time.Millisecond / checks)))
		wg.Go(func() {
			a := region.nodes[i%len(region.nodes)].check(waiting("r", key))
			mu.Lock()
			defer mu.Unlock()
			if a.Allowed {
				admitted++
				lastAdmitted = time.Now()
			} else {
				refusals = append(refusals, time.Now())
			}
		})
	}
	wg.Wait()

	for _, at := range refusals {
		if at.Before(lastAdmitted.Add(-overtaking)) {
			early++
		}
	}
	return admitted, early
}

// A first check in a region that has no share of the month yet waits for a
// loan. A batch does not wait, and says to come back soon.
func TestAFirstCheckInANewRegionWaitsForALoan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestRegions(t, globalMinute, "eu", "us")
		e.change(func() { e.pause = func() time.Duration { return 40 * time.Millisecond } })
		set := compile(t, 2, "version: 1\n"+globalMinute)
		window := time.Now()
		e.useIn("us", set,
			rules.HeldVersion{Regions: []string{"eu", "us"}, RecordedAt: window.Add(time.Hour).UnixNano()},
			rules.HeldVersion{Set: set, Regions: []string{"eu"}, RecordedAt: 1})

		n, began := e.all["us"].nodes[0], time.Now()
		q := waiting("month", "y")
		var batch Answer
		errs := []error{nil}
		n.CheckAll([]*Query{&q}, []*Answer{&batch}, errs)
		if la := batch.Limits[0]; errs[0] != nil || batch.Allowed || la.RetryAfter != time.Second ||
			time.Since(began) > 20*time.Millisecond {
			t.Errorf("a batch: have %v, allowed %v, retry after %v, after %v", errs[0],
				batch.Allowed, la.RetryAfter, time.Since(began))
		}
		a := n.check(waiting("month", "x"))
		if took := time.Since(began); !a.Allowed || took > 300*time.Millisecond {
			t.Errorf("have allowed %v after %v: %s", a.Allowed, took, a.AppendReason(nil))
		}
	})
}

// Nobody waits for a second after a loan of nothing, and the time to come back
// doubles from a second to a minute.
func TestShareRefusesWhileNobodyLends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, far := newLoneRegion(t, 2, globalExact)
		n := w.nodes[0]
		key := w.keyOf("r", w.nodes[1], nil)
		n.spend(byKey("r", key))
		nothing := wire.Encode(nil, &LoanReply{status: loanNothing})
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				far.mu.Lock()
				asked := far.asked
				far.asked = nil
				far.mu.Unlock()
				for _, c := range asked {
					c.done(nothing, nil)
				}
			}
		}()

		if a := n.check(waiting("r", key)); a.Allowed || a.Limits[0].RetryAfter != time.Second {
			t.Errorf("have allowed %v, retry after %v; want a second", a.Allowed, a.Limits[0].RetryAfter)
		}
		began := time.Now()
		a := n.check(waiting("r", key))
		if took := time.Since(began); took > 0 {
			t.Errorf("a check waited %v after a loan of nothing", took)
		}
		if have := string(a.AppendReason(nil)); !strings.HasPrefix(have,
			`This region's share of limit "r" of rule "r" (300 of 900 requests per 1440h) is used up; retry in 1 s`) {
			t.Error(have)
		}

		want := []time.Duration{2, 4, 8, 16, 32, 60, 60}
		for _, seconds := range want {
			time.Sleep(a.Limits[0].RetryAfter + time.Millisecond)
			a = n.check(waiting("r", key))
			if a.Allowed || a.Limits[0].RetryAfter != seconds*time.Second {
				t.Fatalf("have allowed %v, retry after %v, want %v", a.Allowed,
					a.Limits[0].RetryAfter, seconds*time.Second)
			}
		}
	})
}

// Once the answer about a loan lets the times to come back grow, the limit with
// the longest one describes the check, even if another one did before.
func TestTightestLimitAfterALoanOfNothing(t *testing.T) {
	const text = `rules:
  - name: r
    key: [k]
    scope: global
    consistency: exact
    limits:
      - {limit: 90, per: 1m, algorithm: fixed-window}
      - {limit: 90, per: 1440h, algorithm: fixed-window, unit: tokens}`
	synctest.Test(t, func(t *testing.T) {
		w, _ := newLoneRegion(t, 2, text)
		n := w.nodes[0]
		key := w.keyOf("r", n, nil)
		nextWindow(time.Minute)
		time.Sleep(30 * time.Second)
		q := byKey("r", key)
		q.Costs = []UnitCost{{Unit: "tokens", Cost: 1}}
		n.spend(q)

		a := n.check(q)
		if a.TightestIndex != 0 || a.Limits[1].RetryAfter != time.Second {
			t.Fatalf("have %d as tightest, and retry after %v", a.TightestIndex, a.Limits[1].RetryAfter)
		}
		ss := &n.cluster.loans.shortages
		ss.mu.Lock()
		ss.subjects[a.scratch.ops[0].Key.Subject].wait = maxCallerBackoff
		ss.mu.Unlock()
		a.refreshShareRefusals(n.Limiter)
		if a.TightestIndex != 1 || a.Limits[0].RetryAfter > 30*time.Second || a.Limits[1].RetryAfter != maxCallerBackoff {
			t.Errorf("have %d as tightest, and retry after %v and %v", a.TightestIndex,
				a.Limits[0].RetryAfter, a.Limits[1].RetryAfter)
		}
	})
}

// At most 16 checks of a subject wait, for 200 ms. All others are answered at
// once, also those of other subjects.
func TestFewWaitForALoan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, far := newLoneRegion(t, 2, globalExact)
		n := w.nodes[0]
		key, other := w.keyOf("r", w.nodes[1], nil), w.keyOf("r", n, nil)
		n.spend(byKey("r", key))
		synctest.Wait()
		if far.count() == 0 {
			t.Fatal("no loan is under way")
		}

		var wg sync.WaitGroup
		var mu sync.Mutex
		took := map[time.Duration]int{}
		for range 100 {
			wg.Go(func() {
				began := time.Now()
				a := n.check(waiting("r", key))
				mu.Lock()
				defer mu.Unlock()
				took[time.Since(began)]++
				if a.Allowed {
					t.Error("allowed")
				}
			})
		}
		wg.Go(func() {
			began := time.Now()
			if a := n.check(waiting("r", other)); !a.Allowed || time.Since(began) > 0 {
				t.Errorf("another subject: allowed %v after %v", a.Allowed, time.Since(began))
			}
		})
		wg.Wait()
		if took[0] != 84 || took[loanWait] != 16 {
			t.Errorf("have %v, want 16 that waited for %v", took, loanWait)
		}
		far.next(t).done(nil, peer.ErrTimeout)
	})
}

// The sentence says whose share it is, and whether the node or the region is cut off.
func TestReasonsOfShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3,
			"rules:\n  - {name: r, key: [k], limits: [{limit: 2000, per: 1h, algorithm: fixed-window}]}")
		n := w.nodes[0]
		key := w.keyOf("r", w.nodes[1], w.nodes[2])
		for _, other := range w.nodes[1:] {
			w.setCut(n, other, true)
		}
		expect.Equal(t, n.spend(byKey("r", key)), 667, "admitted by a node that is cut off")
		a := n.check(byKey("r", key))
		want := `This node's share of limit "r" of rule "r" (667 of 2000 requests per 1h) is used up, and the node is cut off from the limit's owner; retry in 1 s.`
		if have := string(a.AppendReason(nil)); have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}

		a = n.check(costing(byKey("r", key), 700))
		want = `This node's share of limit "r" of rule "r" (667 of 2000 requests per 1h) does not allow it now: the cost of 700 is above its capacity, ` +
			`which is below the configured 2000 for now, and the node is cut off from the limit's owner; retry in 1 s.`
		if have := string(a.AppendReason(nil)); have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}

		e := newTestRegions(t, globalMinute, "eu", "us")
		e.change(func() { e.cut[[2]string{"eu", "us"}], e.cut[[2]string{"us", "eu"}] = true, true })
		eu := e.all["eu"].nodes[0]
		reduced := eu.check(costing(byKey("r", "y"), 600))
		want = "which is below the configured 1000 for now, and the region is cut off from the others; retry in"
		if have := string(reduced.AppendReason(nil)); !strings.Contains(have, want) {
			t.Errorf("have %s\nwant %s", have, want)
		}
		began := time.Now()
		for eu.check(waiting("r", "x")).Allowed {
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("a region that is cut off waited %v for a loan", waited)
		}

		a = eu.check(waiting("r", "x"))
		for a.Allowed { // a lease has come back meanwhile
			a = eu.check(waiting("r", "x"))
		}
		want = `This region's share of limit "r" of rule "r" (500 of 1000 requests per 1m) is used up, and the region is cut off from the others; retry in 1 s.`
		if have := string(a.AppendReason(nil)); have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}
	})
}
