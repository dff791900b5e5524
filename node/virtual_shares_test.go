package node

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

// dayOfRegions returns a rules file with one limit per day for all regions together.
func dayOfRegions(limit int, parts string) string {
	return fmt.Sprintf("version: 1\nrules:\n  - {name: day, key: [ip], scope: global, %s limits: "+
		"[{limit: %d, per: 24h, algorithm: fixed-window}]}\n", parts, limit)
}

// sharedDay is four regions that divide a limit per day; the last one starts later.
type sharedDay struct {
	t        *testing.T
	clusters []*testCluster
	regions  int // how many regions exist
}

const (
	dayLimit = 300
	busy     = 15 * time.Second // long enough for one region to ask for the whole limit
)

// newDay starts three regions from nothing in the middle of a day; left is the time until midnight.
func newDay(t *testing.T, left time.Duration) *sharedDay {
	time.Sleep(time.Until(time.Now().Truncate(24 * time.Hour).Add(24*time.Hour - left)))
	d := &sharedDay{t: t, regions: 3}
	space := newTestNetwork(t)
	for i, name := range []string{"eu", "us", "ap", "za"} {
		p := space.newCluster(name, "eu", i+1)
		for j := range 4 {
			for k := range 2 {
				if i != j {
					p.wanAddresses = append(p.wanAddresses, fmt.Sprintf("10.0.%d.%d", j+1, k+1))
				}
			}
		}
		d.clusters = append(d.clusters, p)
	}
	for _, p := range d.clusters[:d.regions] {
		p.startNodes(2, dayOfRegions(dayLimit, ""))
	}
	for _, p := range d.clusters[:d.regions] {
		p.awaitWhole()
	}
	return d
}

// recorded returns a function that reports whether all nodes use rules that are
// recorded as honoured by all regions.
func recorded(all []*testCluster) func() bool {
	return func() bool {
		for _, p := range all {
			for _, v := range p.nodes {
				set := v.node.limiter.Rules()
				if set == nil || set.DividingVersions() == nil {
					return false
				}
				held := set.DividingVersions().Held
				if last := held[len(held)-1]; last.RecordedAt == 0 || len(last.Regions) != len(all) {
					return false
				}
			}
		}
		return true
	}
}

func (d *sharedDay) recorded() {
	d.t.Helper()
	d.clusters[0].eventually("the rules are recorded", recorded(d.clusters[:d.regions]))
}

// startFourth starts the fourth region.
func (d *sharedDay) startFourth() {
	d.regions = 4
	d.clusters[3].startNodes(2, dayOfRegions(dayLimit, ""))
	d.clusters[3].awaitWhole()
}

func (d *sharedDay) cut(region int) {
	for i, p := range d.clusters {
		for _, a := range p.nodes {
			for _, b := range d.clusters[region].nodes {
				if i != region {
					p.net.Cut(a.ip, b.ip)
				}
			}
		}
	}
}

// ask checks a subject in some regions for span, forty times a second in each.
// It returns what was admitted in each.
func (d *sharedDay) ask(key string, span time.Duration, regions ...int) (by [4]int64) {
	var all sync.WaitGroup
	var failed atomic.Int64
	for _, r := range regions {
		nodes := d.clusters[r].nodes
		all.Go(func() {
			var a limiter.Answer
			for i, until := 0, time.Now().Add(span); time.Now().Before(until); i++ {
				time.Sleep(25 * time.Millisecond)
				v := nodes[i%len(nodes)]
				if !v.ready.Load() {
					continue
				}
				allowed, err := v.check("day", key, &a)
				if err != nil || a.DecidedBy == limiter.ByFallback {
					failed.Add(1)
				}
				if allowed {
					by[r]++
				}
			}
		})
	}
	all.Wait()
	if n := failed.Load(); n > 0 {
		d.t.Errorf("%s: %d checks failed, or were decided without the owner", key, n)
	}
	return by
}

func sumOf(by ...[4]int64) (sum int64) {
	for _, one := range by {
		for _, n := range one {
			sum += n
		}
	}
	return sum
}

// wholeLimit fails unless exactly the whole limit was admitted.
func (d *sharedDay) wholeLimit(what string, by ...[4]int64) {
	d.t.Helper()
	if sum := sumOf(by...); sum != dayLimit {
		d.t.Errorf("%s: have %d admitted, want %d: %v", what, sum, dayLimit, by)
	}
}

// G8: regions start with nothing but a rules file, in the middle of a day. On
// that day the whole limit, and never more, can be used wherever it is
// requested, even while regions join, restart and change their shares.
func TestG8_SharesFromTheFirstWindow(t *testing.T) {
	for name, run := range map[string]func(d *sharedDay){
		"one is busy": func(d *sharedDay) {
			for r := range 3 {
				d.wholeLimit(d.clusters[r].region, d.ask(fmt.Sprint("one", r), busy, r))
			}
		},
		"all are busy": func(d *sharedDay) { d.wholeLimit("all", d.ask("all", busy, 0, 1, 2)) },
		"one joins": func(d *sharedDay) {
			d.recorded()
			before := d.ask("all", 4*time.Second, 0, 1, 2)
			others := d.ask("za", time.Second, 0, 1, 2)
			d.startFourth()
			d.wholeLimit("all", before, d.ask("all", busy, 0, 1, 2, 3))
			d.recorded()
			d.wholeLimit("the new one", others, d.ask("za", busy, 3))
			d.wholeLimit("an old one", d.ask("us", busy, 1))
		},
		"shares change": func(d *sharedDay) {
			before := d.ask("all", 4*time.Second, 0, 1, 2)
			for _, parts := range []string{"{eu: 0.1, us: 0.6, ap: 0.3}", "{eu: 0.9, us: 0.1}"} {
				if _, err := d.clusters[1].nodes[0].write(dayOfRegions(dayLimit, "regions: "+parts+",")); err != nil {
					d.t.Fatal(err)
				}
				before[0] += sumOf(d.ask("all", time.Second, 0, 1, 2))
				d.wholeLimit(parts, d.ask(parts, busy, 1))
			}
			d.wholeLimit("all", before, d.ask("all", busy, 0, 1, 2))
		},
		"all restart": func(d *sharedDay) {
			d.recorded()
			before := d.ask("all", 4*time.Second, 0, 1, 2)
			d.startFourth()
			for _, p := range d.clusters {
				p.restartAll()
			}
			d.recorded()
			d.wholeLimit("all", before, d.ask("all", busy, 0, 1, 2, 3))
			d.wholeLimit("one", d.ask("one", busy, 2))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !*everyCase && name != "one joins" {
				t.Skip("takes some seconds: -args -every-case runs it")
			}
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDay(t, 18*time.Hour)
				run(d)
			})
		})
	}
}

// G8: a region is cut off in the middle of a change. The old division holds
// until midnight, and each region can use its own part. From then on each has
// the smallest share among the versions it holds. Never more than the limit is
// admitted, and after recovery all of it.
func TestG8_CutOffWhileSharesChange(t *testing.T) {
	regions := []int{1, 0, 2}
	for _, away := range regions[:casesToRun(len(regions))] {
		t.Run(fmt.Sprint(away), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDay(t, 90*time.Second)
				rest := slices.DeleteFunc([]int{0, 1, 2}, func(r int) bool { return r == away })
				d.recorded()
				d.cut(away)
				if _, err := d.clusters[0].nodes[0].write(dayOfRegions(dayLimit,
					"regions: {eu: 0.1, us: 0.6, ap: 0.3},")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				// eu had the whole limit when the day began.
				want := int64(dayLimit)
				alone, others := d.ask("all", busy, away), d.ask("all", busy, rest...)
				if sum := sumOf(alone, others); sum != want {
					t.Errorf("on the first day have %v and %v admitted, want %d", alone, others, want)
				}
				if away == 0 && alone[0] != want || away != 0 && others[0]+others[3-away] != want {
					t.Errorf("on the first day have %v and %v admitted", alone, others)
				}
				time.Sleep(time.Until(time.Now().Truncate(24 * time.Hour).Add(24*time.Hour + 3*time.Second)))
				// The change is held and not recorded: the region that is cut off from the
				// primary does not know it.
				least := [3]int64{dayLimit / 10, dayLimit / 3, dayLimit * 3 / 10}
				if away == 0 {
					least = [3]int64{dayLimit / 10, dayLimit / 3, dayLimit / 3}
				}
				alone, others = d.ask("all", busy, away), d.ask("all", busy, rest...)
				mine := least[away]
				if away != 0 {
					mine = dayLimit / 3
				}
				if alone[away] != mine || sumOf(others) != least[rest[0]]+least[rest[1]] {
					t.Errorf("on the second day have %v and %v admitted, want %d, and %v together",
						alone, others, mine, least)
				}
				d.clusters[0].net.HealAll()
				d.recorded()
				d.wholeLimit("after recovery", alone, others, d.ask("all", busy, 0, 1, 2))
			})
		})
	}
}

// G8: a region honours a change of shares and is cut off before it learns that
// the change is recorded. On the next day it must not assume that the other
// regions still wait for it.
func TestG8_CutOffBeforeTheRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDay(t, 75*time.Second)
		d.recorded()
		eu, us := d.clusters[0], d.clusters[1]
		version, err := eu.nodes[0].write(dayOfRegions(dayLimit, "regions: {eu: 0.6, us: 0.1, ap: 0.3},"))
		expect.NoError(t, err)
		at := func(p *testCluster) int64 { return p.nodes[0].node.cluster.Following().Recorded }
		// As soon as it uses the change it receives nothing more, but can still send.
		us.eventually("us uses the change", func() bool { return us.nodes[0].version() == version })
		for _, other := range []*testCluster{eu, d.clusters[2]} {
			for _, from := range other.nodes {
				for _, to := range us.nodes {
					us.net.CutOneWay(from.ip, to.ip)
				}
			}
		}
		eu.eventually("the change is recorded", func() bool { return at(eu) == version })
		d.cut(1)
		eu.eventually("ap knows of the record", func() bool { return at(d.clusters[2]) == version })
		if us.nodes[0].version() != version || at(us) == version {
			t.Fatalf("us uses version %d, and knows of the record of %d", us.nodes[0].version(), at(us))
		}
		time.Sleep(time.Until(time.Now().Truncate(24 * time.Hour).Add(24*time.Hour + 3*time.Second)))
		by := d.ask("all", busy, 0, 1, 2)
		if by[1] != dayLimit/10 || sumOf(by) != dayLimit {
			t.Errorf("have %v admitted, want %d in us, and %d", by, dayLimit/10, dayLimit)
		}
	})
}

// G8: the shares change while one region's clock is ahead of the other's. A
// version must not count as recorded in a window that a region is already in: in
// that window the region may have used its larger share of before.
func TestG8_SharesChangeWhileAClockIsAhead(t *testing.T) {
	const (
		ahead  = 10 * time.Second
		window = 2 * time.Second
		limit  = 20
	)

	// text returns rules that give us, whose clock is ahead, a share of the limit.
	text := func(share float64) string {
		return fmt.Sprintf("version: 1\nrules:\n  - {name: short, key: [ip], scope: global, "+
			"regions: {us: %.1f, eu: %.1f}, "+
			"limits: [{limit: %d, per: 2s, algorithm: fixed-window}]}\n", share, 1-share, limit)
	}

	synctest.Test(t, func(t *testing.T) {
		all := newTestNetwork(t).newClusters(2, "eu", "us")
		all[1].clockOffset = ahead
		for _, p := range all {
			p.startNodes(2, text(0.9))
		}
		for _, p := range all {
			p.awaitWhole()
		}
		all[0].eventually("the rules are recorded", recorded(all))

		admitted := map[int64][2]int{} // by window, and by region
		var mu sync.Mutex
		var asking sync.WaitGroup
		for r, p := range all {
			asking.Go(func() {
				var a limiter.Answer
				for until := time.Now().Add(40 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
					clock := time.Now().Add(p.clockOffset)
					edge := clock.Add(100 * time.Millisecond)
					if edge.Sub(edge.Truncate(window)) < 200*time.Millisecond {
						continue // it is not certain which window a check is decided in
					}

					allowed, err := p.nodes[0].check("short", "k", &a)
					expect.NoError(t, err)
					if allowed {
						mu.Lock()
						by := admitted[clock.UnixNano()/int64(window)]
						by[r]++
						admitted[clock.UnixNano()/int64(window)] = by
						mu.Unlock()
					}
				}
			})
		}

		time.Sleep(15 * time.Second)
		version, err := all[0].nodes[0].write(text(0.1))
		expect.NoError(t, err)
		asking.Wait()

		for w, by := range admitted {
			if by[0]+by[1] > limit {
				t.Errorf("window %d: eu admitted %d, and us %d: more than %d", w, by[0], by[1], limit)
			}
		}
		have := all[0].nodes[0].node.cluster.Following().Recorded
		expect.Equal(t, have, version, "the change is recorded")
	})
}
