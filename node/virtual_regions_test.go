package node

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/memnet"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

// farDelay is how long a message to another region takes.
const farDelay = 40 * time.Millisecond

// regionSystem is several regions in this process, on virtual time. The first is the primary.
type regionSystem struct {
	t       *testing.T
	net     *memnet.Net
	regions []*testCluster
}

func newRegionSystem(t *testing.T, nodes int, text string) *regionSystem {
	s := &regionSystem{t: t, regions: newRegions(t, nodes, text, "eu", "us", "ap")}
	s.net = s.regions[0].net
	s.eachFarPair(func(a, b *testNode) { s.net.DelayBetween(a.ip, b.ip, farDelay) })
	s.whole()
	time.Sleep(2 * time.Second) // a record takes effect one second later, from the next window on
	return s
}

// seeds returns how many seeds a test tries: RLNODE_TEST_SEEDS if set, or else
// one, or n if every case is asked for.
func seeds(n int) uint64 {
	if more, err := strconv.Atoi(os.Getenv("RLNODE_TEST_SEEDS")); err == nil {
		return uint64(more)
	}
	return uint64(casesToRun(n))
}

// eachFarPair calls do for each pair of nodes in different regions.
func (s *regionSystem) eachFarPair(do func(a, b *testNode)) {
	for i, p := range s.regions {
		for _, other := range s.regions[i+1:] {
			for _, a := range p.nodes {
				for _, b := range other.nodes {
					do(a, b)
				}
			}
		}
	}
}

// cutRegions cuts one direction between two regions.
func (s *regionSystem) cutRegions(from, to int) {
	for _, a := range s.regions[from].nodes {
		for _, b := range s.regions[to].nodes {
			s.net.CutOneWay(a.ip, b.ip)
		}
	}
}

// isolateRegion isolates a region from all others.
func (s *regionSystem) isolateRegion(region int) {
	for other := range s.regions {
		if other != region {
			s.cutRegions(region, other)
			s.cutRegions(other, region)
		}
	}
}

// whole waits until each region is whole and all use the same version, which
// every region is known to honour.
func (s *regionSystem) whole() {
	s.t.Helper()
	for _, p := range s.regions {
		p.awaitWhole()
	}
	s.regions[0].eventually("all regions have the same rules", func() bool {
		version := s.regions[0].nodes[0].version()
		for _, p := range s.regions {
			for _, v := range p.nodes {
				if !v.alive.Load() {
					continue
				}
				c := v.node.cluster
				if v.version() != version || len(c.StateInUse().Regions.Committed) != 3 || c.Following().Recorded != version {
					return false
				}
			}
		}
		return true
	})
}

// version returns the version of the rules in force at a node.
func (v *testNode) version() int64 {
	_, version := v.node.cluster.StateInUse().History.Current()
	return version.Number
}

// globalRules returns rules with one quota over all regions.
func globalRules(limit int64) string {
	return fmt.Sprintf(`
version: 1
rules:
  - name: world
    key: [tenant]
    scope: global
    limits: [{limit: %d, per: 5s, algorithm: fixed-window}]
  - name: exact
    key: [tenant]
    scope: global
    consistency: exact
    limits: [{limit: %d, per: 5s, algorithm: fixed-window}]
  - name: bucket
    key: [tenant]
    scope: global
    limits: [{limit: %d, per: 1m, algorithm: token-bucket, burst: %d}]
`, limit, limit, limit, limit/10)
}

// regionTally counts the admitted checks of one subject, by region and window.
type regionTally struct {
	mu       sync.Mutex // guards the fields below
	windows  map[int64]*[3]int64
	admitted []time.Time // in order
	alone    int         // decided without the owner
	slow     atomic.Int64
	failed   atomic.Int64
	stop     atomic.Bool
	done     sync.WaitGroup
}

// turnEdge is how close to the turn of a window no check is made.
const turnEdge = 2 * time.Millisecond

// countAdmitted makes checks of one subject in some regions, at random nodes;
// rates are checks per second in each region.
func (s *regionSystem) countAdmitted(rule, key string, per time.Duration, rates [3]int, seed uint64) *regionTally {
	x := &regionTally{windows: map[int64]*[3]int64{}}
	for r, rate := range rates {
		if rate == 0 {
			continue
		}
		random := rand.New(rand.NewPCG(seed, uint64(r)))
		x.done.Go(func() {
			var a limiter.Answer
			for !x.stop.Load() {
				pause := time.Second / time.Duration(rate)
				time.Sleep(pause/2 + time.Duration(random.Int64N(int64(pause))))
				if left := per - time.Duration(time.Now().UnixNano())%per; left < turnEdge || left > per-turnEdge {
					continue
				}
				v := s.regions[r].nodes[random.IntN(len(s.regions[r].nodes))]
				if !v.ready.Load() {
					continue
				}
				began := time.Now()
				allowed, err := v.check(rule, key, &a)
				x.note(r, v, began, per, allowed, err, &a)
			}
		})
	}
	return x
}

func (s *regionTally) note(
	r int, v *testNode, began time.Time, per time.Duration, allowed bool, err error, a *limiter.Answer,
) {
	if v.crashed.Load() {
		return // its answer never reached a client
	}
	if err != nil {
		s.failed.Add(1)
		return
	}
	if time.Since(began) >= farDelay {
		s.slow.Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.DecidedBy == limiter.ByFallback || a.DecidedBy == limiter.ByStandby {
		s.alone++
	}
	if !allowed {
		return
	}
	w := began.UnixNano() / int64(per)
	if s.windows[w] == nil {
		s.windows[w] = &[3]int64{}
	}
	s.windows[w][r]++
	s.admitted = append(s.admitted, began)
}

func (s *regionTally) end() {
	s.stop.Store(true)
	s.done.Wait()
}

// sleepPastTurn sleeps until the window turns, and for then after that.
func sleepPastTurn(per, then time.Duration) {
	time.Sleep(per - time.Duration(time.Now().UnixNano())%per + then)
}

// window returns how much was admitted in the previous window, in total and by region.
func (s *regionTally) window(per time.Duration) (sum int64, by [3]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.windows[time.Now().UnixNano()/int64(per)-1]; w != nil {
		by = *w
	}
	return by[0] + by[1] + by[2], by
}

// G8 without faults: if only one region has traffic, the others lend it their
// shares; if several have, they admit the limit together, with and without
// leases. No check waits for another region, and no unit of a loan is lost.
func TestG8_OneQuotaInOneProcess(t *testing.T) {
	t.Parallel()
	const limit, per = 300, 5 * time.Second
	for seed := range seeds(1) {
		synctest.Test(t, func(t *testing.T) {
			s := newRegionSystem(t, 2, globalRules(limit))
			sales := map[string]*regionTally{}
			for name, rates := range map[string][3]int{"one": {100, 0, 0}, "two": {0, 50, 50}, "all": {32, 32, 32}} {
				sales[name] = s.countAdmitted("world", name, per, rates, seed)
			}
			sales["one without leases"] = s.countAdmitted("exact", "one", per, [3]int{100, 0, 0}, seed)
			sleepPastTurn(per, 0)
			for i := range 3 {
				sleepPastTurn(per, 0)
				for name, x := range sales {
					least := int64(limit)
					if name == "all" {
						least -= limit / 10 // with all three asking, a loan may come too late for the window's end
					}
					if sum, by := x.window(per); sum > limit || sum < least {
						t.Errorf("seed %d, %s, window %d: got %d %v admitted, want %d to %d", seed,
							name, i, sum, by, least, limit)
					}
				}
			}
			for name, x := range sales {
				x.end()
				if x.slow.Load() > 0 || x.failed.Load() > 0 || x.alone > 0 {
					t.Errorf("seed %d, %s: %d as slow as another region, %d failed, %d without the owner", seed, name, x.slow.Load(), x.failed.Load(), x.alone)
				}
			}
			for _, p := range s.regions {
				for _, v := range p.nodes {
					expect.Equal(t, figureOf(v, "loan_units_lost_total"), 0,
						"%s of %s: units of loans that were lost", v.name(), p.region)
				}
			}
		})
	}
}

// G8 while regions are cut off from each other at random, even during loans:
// never more than the limit is admitted, and a region that was cut off through
// a window admits its share.
func TestG8_CutsInOneProcess(t *testing.T) {
	t.Parallel()
	const limit, per = 300, 5 * time.Second
	for seed := range seeds(1) {
		synctest.Test(t, func(t *testing.T) {
			s := newRegionSystem(t, 2, globalRules(limit))
			random := rand.New(rand.NewPCG(seed, 8))
			sales := []*regionTally{
				s.countAdmitted("world", "one", per, [3]int{100, 0, 0}, seed),
				s.countAdmitted("world", "two", per, [3]int{0, 60, 40}, seed),
				s.countAdmitted("world", "all", per, [3]int{32, 32, 32}, seed),
			}
			buckets := []*regionTally{
				s.countAdmitted("bucket", "one", time.Minute, [3]int{0, 12, 0}, seed),
				s.countAdmitted("bucket", "all", time.Minute, [3]int{5, 5, 5}, seed),
			}
			sleepPastTurn(per, 0)
			for range 2 {
				time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
				kind, away := random.IntN(3), random.IntN(3)
				switch kind {
				case 0:
					s.isolateRegion(away)
				case 1:
					for i := range s.regions {
						s.isolateRegion(i)
					}
				case 2:
					s.cutRegions(away, (away+1)%3)
				}
				for i := range 2 {
					sleepPastTurn(per, time.Millisecond)
					for k, x := range sales {
						sum, by := x.window(per)
						if sum > limit {
							t.Errorf("seed %d, cut %d of %d, subject %d: have %d %v admitted, want at most %d", seed, kind, away, k, sum, by, limit)
						}
						if i == 0 || kind == 2 {
							continue
						}
						for r, n := range by {
							if (kind == 1 || r == away) && k == 2 && n != limit/3 {
								t.Errorf("seed %d, cut %d of %d: region %d alone admitted %d, want its share of %d", seed, kind, away, r, n, limit/3)
							}
						}
					}
				}
				s.net.HealAll()
				sleepPastTurn(per, 0)
			}
			for _, x := range buckets {
				x.end()
				x.boundedSpans(t, seed, limit, limit/10)
			}
			for _, x := range append(sales, buckets...) {
				x.end()
				if x.slow.Load() > 0 || x.failed.Load() > 0 || x.alone > 0 {
					t.Errorf("seed %d: %d as slow as another region, %d failed, %d without the owner", seed, x.slow.Load(), x.failed.Load(), x.alone)
				}
			}
		})
	}
}

// boundedSpans fails if a bucket admitted more in any span D than burst + rate
// × (D + TTL), plus one unit per region, because a partly owed unit counts as a
// whole one. It also fails if the bucket admitted hardly anything.
func (s *regionTally) boundedSpans(t *testing.T, seed uint64, limit, burst int64) {
	t.Helper()
	const ttl, regions = 3 * time.Second, 3 // of leases: a twentieth of a minute
	for i, from := range s.admitted {
		for j, to := range s.admitted[i:] {
			most := burst + limit*int64(to.Sub(from)+ttl)/int64(time.Minute) + regions
			if n := int64(j) + 1; n > most {
				t.Fatalf("seed %d: a bucket admitted %d in %v, at most %d may be", seed, n, to.Sub(from), most)
			}
		}
	}
	// A region that is cut off keeps its part of the rate, and what it could not lend.
	span := s.admitted[len(s.admitted)-1].Sub(s.admitted[0])
	if n, least := int64(len(s.admitted)), limit*int64(span)/int64(time.Minute)/3; n < least {
		t.Errorf("seed %d: a bucket admitted %d in %v, want at least %d", seed, n, span, least)
	}
}

// G8 while nodes are killed in the middle of loans. A lending owner forgets no
// loan, because it makes one only once its standby knows of it. A borrowing
// owner's last debits are forgotten, as usual.
func TestG8_KillsInOneProcess(t *testing.T) {
	t.Parallel()
	const limit, per = 300, 5 * time.Second
	for seed := range seeds(1) {
		synctest.Test(t, func(t *testing.T) {
			s := newRegionSystem(t, 3, globalRules(limit))
			random := rand.New(rand.NewPCG(seed, 13))
			const rate = 100
			x := s.countAdmitted("world", "one", per, [3]int{rate, 0, 0}, seed)
			sleepPastTurn(per, time.Duration(random.Int64N(int64(time.Second))))
			for _, region := range []int{0, 1 + random.IntN(2)} {
				victim := s.ownerOf(region, "world", "one")
				forgotten := int64(0)
				if region == 0 {
					const unpushed, life = 150 * time.Millisecond, 250 * time.Millisecond // and a lease's
					forgotten = int64((unpushed + life) * rate / time.Second)
				}
				victim.endProcess(false)
				sleepPastTurn(per, time.Millisecond)
				if sum, by := x.window(per); sum > limit+forgotten || sum < limit/3 {
					t.Errorf("seed %d, owner in region %d killed: have %d %v admitted, want %d … %d", seed, region, sum, by, limit/3, limit+forgotten)
				}
				victim.startProcess()
				s.whole()
				sleepPastTurn(per, 0)
				sleepPastTurn(per, time.Duration(random.Int64N(int64(time.Second))))
				if sum, by := x.window(per); sum != limit {
					t.Errorf("seed %d, owner in region %d is back: have %d %v admitted, want %d",
						seed, region, sum, by, limit)
				}
			}
			x.end()
		})
	}
}

// The test above would notice if a lender's standby had not heard of its loans.
// It depends on when who lends whether that shows in one window.
func TestSabotageOfLoansIsFoundInOneProcess(t *testing.T) {
	t.Parallel()
	const limit, per, lender = 300, 5 * time.Second, 1
	synctest.Test(t, func(t *testing.T) {
		s := newRegionSystem(t, 3, globalRules(limit))
		x := s.countAdmitted("world", "one", per, [3]int{100, 0, 0}, 1)
		defer x.end()
		for range 20 {
			sleepPastTurn(per, 2*time.Second) // until the region's own share is spent
			victim := s.ownerOf(lender, "world", "one")
			u, err := victim.node.limiter.Locate(&limiter.Query{Rule: "world", Key: []string{"one"}})
			expect.NoError(t, err)
			victim.endProcess(false)
			for _, v := range s.regions[lender].nodes {
				if v != victim {
					v.hideLoans(counters.Key{Subject: u.Hash.Hi, Counter: u.Hash.Lo ^ u.Limits[0].Limit.ID})
				}
			}
			sleepPastTurn(per, time.Millisecond)
			if sum, by := x.window(per); sum > limit {
				t.Logf("got %d %v admitted", sum, by)
				return
			}
			victim.startProcess()
			s.whole()
		}
		t.Errorf("never more than %d were admitted", limit)
	})
}

// hideLoans makes a standby forget what its owner has lent.
func (v *testNode) hideLoans(key counters.Key) {
	var counter, lent counters.Record
	_ = v.node.table.Copy(key.Partition(), func(records []counters.Record) error {
		for _, r := range records {
			switch r.Key {
			case key:
				counter = r
			case key.LentKey():
				lent = r
			}
		}
		return nil
	})
	if lent.State.Count == 0 {
		return // it is not the standby
	}
	counter.State.Count -= lent.State.Count
	lent.State.Count = 0
	v.node.table.Put(v.node.clock.Now(), counter)
	v.node.table.Put(v.node.clock.Now(), lent)
}

// ownerOf returns the node that owns a subject in a region.
func (s *regionSystem) ownerOf(region int, rule, key string) *testNode {
	s.t.Helper()
	p := s.regions[region]
	u, err := p.nodes[0].node.limiter.Locate(&limiter.Query{Rule: rule, Key: []string{key}})
	expect.NoError(s.t, err)
	owner, _, _ := p.nodes[0].admin().Owner(ring.PartitionOf(u.Hash.Hi))
	for _, v := range p.nodes {
		if v.settings.Name == owner {
			return v
		}
	}
	s.t.Fatalf("%s owns %s in region %d", owner, key, region)
	return nil
}
