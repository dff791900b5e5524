package limiter

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
)

// countCalls counts the questions that nodes send each other.
func (w *testCluster) countCalls() *atomic.Int64 {
	var n atomic.Int64
	w.listen(func(m peer.Method) {
		if m == MethodAsk {
			n.Add(1)
		}
	})
	return &n
}

// load runs checks of one key for a time, at rate checks a second, on nodes
// chosen by weight. It reports how many were asked for and admitted in each
// window.
type load struct {
	rate    int
	weights []int
	last    time.Duration
	key     string
}

func (l load) run(w *testCluster, window time.Duration) (admitted, asked map[int64]int64, checks int64) {
	admitted, asked = map[int64]int64{}, map[int64]int64{}
	var mu sync.Mutex // guards admitted, asked and checks
	var callers sync.WaitGroup
	total := 0
	for _, weight := range l.weights {
		total += weight
	}
	begun := time.Now()
	for i, weight := range l.weights {
		if weight == 0 {
			continue
		}
		pause := time.Duration(float64(time.Second) * float64(total) / float64(l.rate*weight))
		callers.Go(func() {
			chance := rand.New(rand.NewPCG(uint64(i), 7))
			crowd := newCrowd(func(q *Query, a *Answer) {
				if err := w.nodes[i].Check(q, a); err != nil {
					w.t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				checks++
				at := time.Now().UnixNano() / int64(window)
				asked[at]++
				if a.Allowed {
					admitted[at]++
				}
				if a.DecidedBy < ByForward {
					w.t.Errorf("decided by %s", a.DecidedBy)
				}
			})
			defer crowd.end()
			q := byKey("r", l.key)
			for next := begun; time.Since(begun) < l.last; {
				next = next.Add(time.Duration(float64(pause) * chance.ExpFloat64()))
				time.Sleep(time.Until(next))
				crowd.ask(&q)
			}
		})
	}
	callers.Wait()
	return admitted, asked, checks
}

// crowd makes checks that don't wait for each other. Its goroutines make one
// check after another: most of what a new one costs is the growth of its stack
// and of its Answer.
type crowd struct {
	check   func(*Query, *Answer)
	waiting chan *Query // received from by the goroutines that have nothing to do
	all     sync.WaitGroup
}

func newCrowd(check func(*Query, *Answer)) *crowd {
	return &crowd{check: check, waiting: make(chan *Query)}
}

// ask makes a check at once, and returns before it is decided.
func (c *crowd) ask(q *Query) {
	select {
	case c.waiting <- q:
		return
	default:
	}
	c.all.Go(func() {
		var a Answer
		for more := true; more; q, more = <-c.waiting {
			c.check(q, &a)
		}
	})
}

// end waits until all checks are decided. After that, none can be made.
func (c *crowd) end() {
	close(c.waiting)
	c.all.Wait()
}

var everyLoad = flag.Bool("every-load", false, "also the loads between others, and the largest; make models has them")

// G2 and G3: whatever the demand, and on whichever nodes, each window admits
// the demand or the limit, and hardly any check asks the owner.
func TestG2G3_Leases(t *testing.T) {
	for _, nodes := range []int{3, 10} {
		for _, window := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
			for _, demand := range []float64{0.5, 1.05, 3, 10} {
				for _, skewed := range []bool{false, true} {
					if testing.Short() && (nodes == 10 || demand == 3 || window == time.Minute) {
						continue
					}
					if !*everyLoad && (demand == 3 || nodes == 10 && window == time.Minute) {
						continue
					}
					t.Run(fmt.Sprintf("%d nodes, %s, %v x, skewed %v", nodes, window, demand,
						skewed), func(t *testing.T) {
						t.Parallel()
						synctest.Test(t, func(t *testing.T) { testLeases(t, nodes, window, demand, skewed) })
					})
				}
			}
		}
	}
}

func testLeases(t *testing.T, nodes int, window time.Duration, demand float64, skewed bool) {
	const limit = 3000
	w := newTestCluster(t, nodes,
		fmt.Sprintf("rules:\n  - {name: r, key: [k], limits: [{limit: %d, per: %s, algorithm: fixed-window}]}", limit, window))
	w.pause = func() time.Duration { return 200*time.Microsecond + time.Duration(rand.N(int64(200*time.Microsecond))) }
	calls := w.countCalls()
	l := load{rate: int(limit * demand / window.Seconds()), last: 3 * window, key: "x"}
	for i := range nodes {
		weight := 1
		if skewed && i == 0 {
			weight = 4 * nodes
		}
		l.weights = append(l.weights, weight)
	}
	time.Sleep(time.Until(time.Now().Truncate(window).Add(window)))
	first := time.Now().UnixNano() / int64(window)
	admitted, asked, checks := l.run(w, window)
	for n := range int64(3) {
		have := admitted[first+n]
		if have > limit {
			t.Errorf("window %d: %d admitted, the limit is %d", n, have, limit)
		}
		if want := min(asked[first+n], limit); have*100 < want*98 {
			t.Errorf("window %d: %d admitted of a demand of %d", n, have, asked[first+n])
		}
	}
	perCheck := float64(calls.Load()) / float64(checks)
	t.Logf("%v of %d checks, %.4f calls a check, %d renewals", admitted, checks, perCheck,
		w.nodes[0].figure("lease_renewals_total"))
	if nodes == 3 && perCheck > 0.05 {
		t.Errorf("%.3f calls a check", perCheck)
	}
}

// G3: a limit whose demand far exceeds it is used up completely. Nodes other
// than its owner ask the owner only a few times per lease TTL, whether the
// limit refills all at once or continuously.
func TestG3_OverTheLimit(t *testing.T) {
	for _, kind := range []string{"fixed-window", "sliding-window", "token-bucket"} {
		for _, limit := range []int{200, 3000} {
			for _, weights := range [][]int{{1, 1, 1}, {0, 1, 0}} {
				for _, demand := range []int{3, 10} {
					if (testing.Short() || !*everyLoad && weights[0] == 0) && limit*demand > 10_000 {
						continue
					}
					t.Run(fmt.Sprintf("%s, %d, %v, %d x", kind, limit, weights, demand), func(t *testing.T) {
						t.Parallel()
						synctest.Test(t, func(t *testing.T) { testOver(t, kind, limit, weights, demand) })
					})
				}
			}
		}
	}
}

func testOver(t *testing.T, kind string, limit int, weights []int, demand int) {
	const window = 10 * time.Second
	w := newTestCluster(t, 3,
		fmt.Sprintf("rules:\n  - {name: r, key: [k], limits: [{limit: %d, per: %s, algorithm: %s}]}", limit, window, kind))
	w.pause = func() time.Duration { return 200*time.Microsecond + rand.N(200*time.Microsecond) }
	l := load{rate: limit * demand / int(window.Seconds()), weights: weights, last: window,
		key: w.keyOf("r", w.nodes[0], nil)}
	time.Sleep(time.Until(time.Now().Truncate(window).Add(window)))
	l.run(w, window) // uses up a full bucket, or the room in a sliding window
	calls := w.countCalls()
	l.last = 2 * window
	admitted, _, checks := l.run(w, window)
	var all int64
	for _, n := range admitted {
		all += n
	}
	if want := int64(2 * limit); all < want-want/50-5 { // a few units are in flight at the end
		t.Errorf("have %d of %d admitted, want %d", all, checks, want)
	}
	const lives, others = 2 * 20, 2
	perLife := float64(calls.Load()) / lives
	if perLife > 10*others {
		t.Errorf("have %.1f calls in a lease's life, want a few of each node", perLife)
	}
	t.Logf("%d of %d admitted, %.1f calls in a lease's life, %.4f a check", all, checks, perLife,
		float64(calls.Load())/float64(checks))
}
