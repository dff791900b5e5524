package limiter

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
)

// oneLimit returns an exact rule "r" with one limit, in tokens.
func oneLimit(limit string) string {
	return "rules:\n  - {name: r, key: [k], consistency: exact, limits: [{" + limit + ", unit: tokens}]}"
}

// admit takes tokens one by one until a check is refused, and returns how many it got.
func (n *testNode) admit(key string) (admitted int) {
	n.w.t.Helper()
	for n.check(tokens("r", key, 1)).Allowed {
		admitted++
	}
	return admitted
}

// What was reserved before a reset does not come back after it: it would come
// out of what was used since.
func TestWhatWasReservedBeforeAReset(t *testing.T) {
	for _, limit := range []string{
		"limit: 100, per: 1h, algorithm: fixed-window",
		"limit: 100, per: 1h, algorithm: sliding-window",
		"limit: 100, per: 1h, algorithm: sliding-window-log",
		"limit: 100, per: 1h, algorithm: token-bucket",
		"limit: 100, per: 1h, algorithm: leaky-bucket",
	} {
		t.Run(limit, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nextWindow(time.Hour)
				w := newTestCluster(t, 3, oneLimit(limit))
				n := w.nodes[0]
				key := w.keyOf("r", w.nodes[1], nil)
				before := n.reserve(tokens("r", key, 100), time.Minute)
				if _, err := n.Reset(&Query{Rule: "r", Key: []string{key}}); err != nil {
					t.Fatal(err)
				}
				if got := n.admit(key); got != 100 {
					t.Fatalf("%d of 100 were admitted after the reset", got)
				}

				n.settleTokens(before, 0)
				expect.Equal(t, n.admit(key), 0, "more than 100 were admitted after the reset")
			})
		})
	}
}

// The same for what a check took of one owner, before another owner refused it:
// a reset in between begins a new life.
func TestWhatARefusedCheckTookBeforeAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, oneLimit("limit: 100, per: 1h, algorithm: fixed-window")+`
  - {name: none, key: [c], consistency: exact, limits: [{limit: 1, per: 1440h, algorithm: fixed-window, unit: tokens}]}`)
		n := w.nodes[0]
		key, other := w.keyOf("r", w.nodes[1], nil), w.keyOf("none", w.nodes[2], nil)
		n.check(tokens("none", other, 1))

		// The owner of key is asked for its authority when it decides, and again when
		// the cost comes back.
		var asked atomic.Int32
		used := 0
		reset := func() {
			if asked.Add(1) != 2 {
				return
			}
			if _, err := w.nodes[1].Reset(&Query{Rule: "r", Key: []string{key}}); err != nil {
				t.Error(err)
			}
			used = w.nodes[1].admit(key)
		}
		w.nodes[1].asked.Store(&reset)
		a := n.check(Query{Attributes: attrs("k", key, "c", other), Costs: []UnitCost{{"tokens", 60}}})
		time.Sleep(time.Second)
		w.nodes[1].asked.Store(nil)
		if a.Allowed || used != 100 {
			t.Fatalf("the check over both is allowed: %t; %d were admitted after the reset", a.Allowed, used)
		}
		expect.Equal(t, n.admit(key), 0, "more than 100 were admitted after the reset")
	})
}

// To a bucket comes back at most what it would hold if the cost had never been
// taken, by the highest rate since: a rule that was raised, and one whose step
// has ended with nobody writing rules.
func TestWhatWasReservedBeforeARise(t *testing.T) {
	const bucket = "limit: %d, per: 1h, algorithm: token-bucket, burst: 100"
	steps := oneLimit(fmt.Sprintf(bucket, 1000))
	steps = steps[:len(steps)-1] + ", adaptive: {source: s, steps: [{above: 0.5, factor: 0.1}]}}"
	for _, tt := range []struct {
		name, rules string
		rise        func(w *testCluster, step *atomic.Int32)
		reserved    int64
		rate        int
	}{
		{"the rule is raised", oneLimit(fmt.Sprintf(bucket, 100)), func(w *testCluster, _ *atomic.Int32) {
			for _, n := range w.nodes {
				n.SetRules(compile(w.t, 2, "version: 1\n"+oneLimit(fmt.Sprintf(bucket, 600))))
			}
		}, 100, 600},
		{"a step ends", steps, func(w *testCluster, step *atomic.Int32) {
			step.Store(-1)
			for _, n := range w.nodes {
				n.UpdateSteps()
			}
		}, 10, 1000},
		{"the algorithm changes, too", oneLimit(fmt.Sprintf(bucket, 100)), func(w *testCluster, _ *atomic.Int32) {
			for _, n := range w.nodes {
				n.SetRules(compile(w.t, 2,
					"version: 1\n"+oneLimit("limit: 600, per: 1h, algorithm: leaky-bucket, burst: 100")))
			}
		}, 100, 600},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, 3, tt.rules)
				var step atomic.Int32
				for _, n := range w.nodes {
					n.FollowLoads(func(set *rules.Set) []int { return []int{int(step.Load())} }, nil)
					n.UpdateSteps()
				}
				time.Sleep(time.Minute) // until a node knows that it knows all rates
				n := w.nodes[0]
				key := w.keyOf("r", w.nodes[1], nil)
				id := n.reserve(tokens("r", key, tt.reserved), time.Hour)
				if id == "" {
					t.Fatal("not reserved")
				}

				time.Sleep(time.Minute)
				tt.rise(w, &step)
				n.check(tokens("r", key, 1))
				time.Sleep(10 * time.Minute)
				begin := time.Now()
				admitted := n.admit(key)
				n.settleTokens(id, 0)
				admitted += n.admit(key)
				if most := 100 + int(time.Duration(tt.rate)*time.Since(begin)/time.Hour) + 1; admitted > most {
					t.Errorf("%d were admitted at once, at most %d may be", admitted, most)
				}
			})
		})
	}
}

// What a settlement takes beyond its reservation, at another owner than the
// home's, does not let the bucket there drain by a rate that was lowered since.
func TestChargeAfterALoweredRate(t *testing.T) {
	const two = `rules:
  - {name: a, key: [a], consistency: exact, limits: [{limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: r, key: [k], consistency: exact, limits: [{limit: %d, per: 1h, algorithm: token-bucket, burst: 100, unit: tokens}]}`
	synctest.Test(t, func(t *testing.T) {
		nextWindow(time.Hour)
		w := newTestCluster(t, 3, fmt.Sprintf(two, 600))
		time.Sleep(time.Minute)
		home, other := w.nodes[0], w.nodes[1]
		a, key := w.keyOf("a", home, nil), w.keyOf("r", other, nil)
		id := home.reserve(Query{Attributes: attrs("a", a, "k", key), Costs: []UnitCost{{"tokens", 100}}}, time.Hour)
		if id == "" {
			t.Fatal("not reserved")
		}
		for _, n := range w.nodes {
			n.SetRules(compile(t, 2, "version: 1\n"+fmt.Sprintf(two, 6)))
		}

		time.Sleep(10 * time.Minute)
		home.settleTokens(id, 101)
		synctest.Wait()
		expect.Equal(t, other.admit(key), 0, "admitted; at 6 an hour, none can have drained")
	})
}

// Reservations that overlap put back, together, no more than the bucket would
// hold without any of them.
func TestReservationsThatOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, 3, oneLimit("limit: 100, per: 1h, algorithm: token-bucket, burst: 100"))
		n := w.nodes[0]
		time.Sleep(time.Minute)
		key := w.keyOf("r", w.nodes[1], nil)
		ids := []string{n.reserve(tokens("r", key, 100), time.Hour)}
		for range 5 {
			time.Sleep(6 * time.Minute)
			ids = append(ids, n.reserve(tokens("r", key, 10), time.Hour)) // what has drained
		}

		for _, id := range ids {
			n.settleTokens(id, 0)
		}
		if got := n.admit(key); got > 100 || got < 95 {
			t.Errorf("%d were admitted at once, want the burst of 100, or a little less", got)
		}
	})
}

// A reservation's age is judged by the clock of the owner that made it, also by
// the next owner, whose own clock is behind.
func TestReservationsOfAnOwnerWhoseClockWasAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := []time.Duration{time.Hour, 0}
		next := 0
		w := &testCluster{t: t, ahead: func() time.Duration {
			next++
			return ahead[next-1]
		}}
		w.start(2, oneLimit("limit: 100, per: 1h, algorithm: token-bucket, burst: 100"))
		time.Sleep(time.Minute)
		first, second := w.nodes[0], w.nodes[1]
		key := w.keyOf("r", first, nil)
		id := first.reserve(tokens("r", key, 100), 6*time.Hour)
		w.handOver(w.partition("r", key), second)

		time.Sleep(50 * time.Minute)
		admitted := second.admit(key)
		second.settleTokens(id, 0)
		admitted += second.admit(key)
		if admitted > 101 {
			t.Errorf("%d were admitted at once, want at most 100", admitted)
		}
	})
}
