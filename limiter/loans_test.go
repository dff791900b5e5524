package limiter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
)

const (
	globalExact = `rules:
  - {name: r, key: [k], scope: global, consistency: exact, limits: [{limit: 900, per: 1440h, algorithm: fixed-window}]}`
	globalHybrid = `rules:
  - {name: r, key: [k], scope: global, lease: {ttl: 300ms}, limits: [{limit: 900, per: 1440h, algorithm: fixed-window}]}`
)

// G8: a single region can admit what all regions together may admit: its own
// share, plus what it borrows.
func TestG8_AllInOneRegion(t *testing.T) {
	for name, text := range map[string]string{"exact": globalExact, "hybrid": globalHybrid} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testAllInOneRegion(t, text) })
		})
	}
}

func testAllInOneRegion(t *testing.T, text string) {
	e := newTestRegions(t, text, "ap", "eu", "us")
	if n := e.flood(byKey("r", "x"), 900, 15*time.Second, "eu"); n != 900 {
		t.Errorf("have %d admitted, want 900: %s", n, e.describeUsage("r", "x"))
	}
	s := e.all["eu"].stats()
	if s.BorrowedUnits != 600 || e.all["us"].stats().LentUnits != 300 || e.all["ap"].stats().LentUnits != 300 {
		t.Errorf("have %s", e.describeUsage("r", "x"))
	}
}

// G8: so can a region that joined in the middle of a window, in which another
// region had the whole limit.
func TestG8_AllInARegionWithoutAShare(t *testing.T) {
	for name, text := range map[string]string{"exact": globalExact, "hybrid": globalHybrid} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testAllInARegionWithoutAShare(t, text) })
		})
	}
}

func testAllInARegionWithoutAShare(t *testing.T, text string) {
	e := newTestRegions(t, text, "ap", "eu", "us")
	old := rules.HeldVersion{Set: compile(t, 1, "version: 1\n"+text), Regions: []string{"eu"}, RecordedAt: 1}
	for _, region := range e.names {
		set := compile(t, 2, "version: 1\n"+text)
		e.useIn(region, set, rules.HeldVersion{Regions: e.names, RecordedAt: time.Now().UnixMilli()}, old)
	}
	n := e.flood(byKey("r", "x"), 100, 15*time.Second, "us")
	n += e.flood(byKey("r", "x"), 900-n, 15*time.Second, "us", "ap")
	if n != 900 {
		t.Errorf("have %d admitted, want 900: %s", n, e.describeUsage("r", "x"))
	}
	u, err := e.all["us"].nodes[0].Usage(&Query{Rule: "r", Key: []string{"x"}})
	expect.NoError(t, err)
	own := int64(0)
	for i, region := range []string{"ap", "eu", "us"} {
		share := u.Regions[i].Limits[0]
		own += share.Own
		if share.Own != share.Used-share.Leased-share.Lent+share.Borrowed ||
			share.Remaining != 0 || region == "eu" && share.Share != 900 || region != "eu" &&
			share.Share != 0 {
			t.Errorf("%s has %+v", region, share)
		}
	}
	expect.Equal(t, own, 900, "used by all")
}

// G8: so can a region at the start of a window in which, for a second, the shares
// of another version count as well. The lender has nothing more then, and later
// it has.
func TestG8_AllWhileSharesRise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limits = "scope: global, lease: {ttl: 300ms}, limits: [{limit: 900, per: 10s, algorithm: fixed-window}]"
		e := newTestRegions(t, "rules:\n  - {name: r, key: [k], "+limits+"}", "ap", "eu", "us")
		text := func(version int64, parts string) *rules.Set {
			return compile(t, version, "version: 1\nrules:\n  - {name: r, key: [k], regions: {"+parts+"}, "+limits+"}")
		}
		nextWindow(10 * time.Second)
		recorded := time.Now().Add(5 * time.Second).UnixMilli() // for the next window on
		for _, region := range e.names {
			old := rules.HeldVersion{Set: text(2, "eu: 0.7, us: 0.2, ap: 0.1"), Regions: e.names, RecordedAt: 1}
			e.useIn(region, text(3, "us: 0.5, eu: 0.5"), rules.HeldVersion{Regions: e.names, RecordedAt: recorded}, old)
		}

		nextWindow(10 * time.Second)
		admitted := 0
		for range 90 { // nearly all of the window
			for range 60 {
				if e.all["eu"].nodes[0].check(byKey("r", "x")).Allowed {
					admitted++
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		expect.Equal(t, admitted, 900, "admitted: %s", e.describeUsage("r", "x"))
	})
}

// seeds returns the number of random runs of a test.
func seeds(n int) int {
	if testing.Short() {
		return min(n, 2)
	}
	return n
}

// G8: with traffic in all regions the total is also exactly the limit, however
// late messages are and whichever region is busier.
func TestG8_AllRegions(t *testing.T) {
	for seed := range seeds(12) {
		text := globalExact
		if seed%2 == 1 {
			text = globalHybrid
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testAllRegions(t, seed, text) })
		})
	}
}

func testAllRegions(t *testing.T, seed int, text string) {
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	e := newTestRegions(t, text, "ap", "eu", "us")
	e.pause = func() time.Duration { return time.Duration(random.IntN(10_000)) * time.Microsecond }
	// One region starts early, and borrows before the others begin.
	early := int64(random.IntN(500))
	n := e.flood(byKey("r", "x"), early, 15*time.Second, "ap")
	n += e.flood(byKey("r", "x"), 900-n, 15*time.Second, "ap", "eu", "us")
	if n != 900 {
		t.Errorf("have %d admitted, want 900: %s", n, e.describeUsage("r", "x"))
	}
}

// G8: whatever links are cut, one way or both, and whatever replies are lost,
// the regions admit no more than the limit. Anything missing was lost between
// lenders and borrowers, and each region can spend its share less what it lent.
func TestG8_Cuts(t *testing.T) {
	for seed := range seeds(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testCuts(t, seed) })
		})
	}
}

func testCuts(t *testing.T, seed int) {
	random := rand.New(rand.NewPCG(uint64(seed), 2))
	text := []string{globalExact, globalHybrid}[seed%2]
	e := newTestRegions(t, text, "ap", "eu", "us")
	e.pause = func() time.Duration { return time.Duration(random.IntN(5_000)) * time.Microsecond }
	e.lose = func([]byte) bool { return random.IntN(4) == 0 }
	stop := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				e.change(func() {
					a, b := random.IntN(3), random.IntN(3)
					e.cut[[2]string{e.names[a], e.names[b]}] = random.IntN(3) == 0
				})
			}
		}
	})
	q := byKey("r", "x")
	admitted := e.flood(q, 250, time.Second, e.names[seed%3])
	admitted += e.flood(q, 900-admitted, 1500*time.Millisecond, e.names...)
	close(stop)
	cutter.Wait()
	e.change(func() { clear(e.cut) }) // leases are returned, too, and their cost is spent
	admitted += e.flood(q, 900-admitted, 700*time.Millisecond, e.names...)
	e.waitForLoans()
	var lent, borrowed, own int64
	for _, name := range e.names {
		u := e.usage(name, "r", "x")
		lent, borrowed, own = lent+u.Lent, borrowed+u.Borrowed, own+u.Used+u.Leased
		if u.Remaining > 0 && text == globalExact {
			t.Errorf("%s could not spend %d", name, u.Remaining)
		}
	}
	if admitted > 900 || admitted > own || text == globalExact && admitted != 900-(lent-borrowed) {
		t.Errorf("have %d admitted, %d lent, %d borrowed: %s", admitted, lent, borrowed, e.describeUsage("r", "x"))
	}
}

// admission is an admitted check.
type admission struct {
	began, ended time.Time
	end          int64 // end of its window, according to the answer; ns
}

// record runs checks on all nodes of the given regions for d, and returns the admitted ones.
func (e *testRegions) record(q Query, d time.Duration, regions ...string) (all []admission) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	stop := time.Now().Add(d)
	for _, name := range regions {
		for _, n := range e.all[name].nodes {
			wg.Go(func() {
				var a Answer
				var own []admission
				for time.Now().Before(stop) {
					began := time.Now()
					if err := n.Check(&q, &a); err != nil {
						e.t.Error(err)
						return
					}
					if a.Allowed {
						own = append(own, admission{began, time.Now(), a.Now.Wall + int64(a.Limits[0].ResetAfter)})
					} else {
						<-time.After(time.Millisecond)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, own...)
			})
		}
	}
	wg.Wait()
	return all
}

// G8: loans end with the window. A loan that arrives after the window's end is
// not spent in the next one.
func TestG8_WindowsTurn(t *testing.T) {
	for seed := range seeds(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testWindowsTurn(t, seed) })
		})
	}
}

func testWindowsTurn(t *testing.T, seed int) {
	const window = 400 * time.Millisecond
	random := rand.New(rand.NewPCG(uint64(seed), 3))
	e := newTestRegions(t, `rules:
  - {name: r, key: [k], scope: global, consistency: exact, limits: [{limit: 90, per: 400ms, algorithm: fixed-window}]}`, "ap", "eu", "us")
	e.pause = func() time.Duration { return time.Duration(random.IntN(100_000)) * time.Microsecond }
	perWindow := map[int64]int{}
	for _, a := range e.record(byKey("r", "x"), 1700*time.Millisecond, e.names[:1+seed%3]...) {
		// The owner read its clock some time before the answer was read.
		perWindow[(a.end+int64(window)/2)/int64(window)]++
	}
	most := 0
	for w, n := range perWindow {
		most = max(most, n)
		if n > 90 {
			t.Errorf("have %d admitted in window %d, want at most 90", n, w)
		}
	}
	if most <= 30 {
		t.Errorf("have at most %d admitted: nothing was borrowed", most)
	}
}

// G8: over any span, the token buckets of all regions together admit no more
// than their burst plus what refills in the span and a lease's TTL.
func TestG8_TokenBuckets(t *testing.T) {
	for seed := range seeds(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testTokenBuckets(t, seed) })
		})
	}
}

func testTokenBuckets(t *testing.T, seed int) {
	const rate, burst, ttl = 300, 600, 0.05
	random := rand.New(rand.NewPCG(uint64(seed), 4))
	e := newTestRegions(t, `rules:
  - {name: r, key: [k], scope: global, lease: {ttl: 50ms}, limits: [{limit: 300, per: 1s, burst: 600, algorithm: token-bucket}]}`, "ap", "eu", "us")
	e.pause = func() time.Duration { return time.Duration(random.IntN(40_000)) * time.Microsecond }
	all := e.record(byKey("r", "x"), 1500*time.Millisecond, e.names[:1+seed%3]...)
	slices.SortFunc(all, func(a, b admission) int { return a.ended.Compare(b.ended) })
	for i := range all {
		first := all[i].began
		for j := i; j < len(all); j++ {
			if all[j].began.Before(first) {
				first = all[j].began
			}
			span := all[j].ended.Sub(first).Seconds()
			if n := float64(j - i + 1); n > burst+rate*(span+ttl) {
				t.Fatalf("have %v admitted within %v s", n, span)
			}
		}
	}
	var borrowed int64
	for _, name := range e.names {
		borrowed += e.all[name].stats().BorrowedUnits
	}
	if seed%3 == 0 && borrowed == 0 {
		t.Error("nothing was borrowed")
	}
}
