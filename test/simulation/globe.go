package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// Times of a run with several regions.
const (
	// founding is how long before the load there is for all regions to follow the first rules.
	warmUp = 20 * time.Second
	// maxSkew is by how much clocks of regions are wrong at most.
	maxSkew = 3 * time.Second
)

// globe is several regions, each a World, and what is between them.
type globe struct {
	cfg      Config
	start    time.Time
	worlds   []*World
	schedule *schedule
	workers  *workerPool
	far      far
	ledger   *Ledger
	subjects []Subject
	hot      []int
	stopped  atomic.Bool
	plan     *rand.Rand // what goes wrong between regions, and is changed, and when; used by the schedule alone
	writes   *edition   // what is written next; used by the schedule alone

	mu             sync.Mutex // guards what follows; it comes after those of worlds
	primaries      []int      // by region: which one it takes for the primary
	removedRegions map[string]bool
	busy           map[string]int      // by rule: episodes that go on
	versionPlaces  map[versionName]int // places in ledger.Versions
	term           int64               // of the last primary
}

// versionName tells a version from those that other primaries wrote.
type versionName struct{ term, number int64 }

// regionName is the name of a simulated region.
func regionName(region int) string { return fmt.Sprintf("r%02d", region) }

// runGlobe simulates several regions.
func runGlobe(cfg Config) (*Ledger, error) {
	g := &globe{
		cfg: cfg, start: time.Now(), workers: newWorkerPool(), primaries: make([]int, cfg.Regions), removedRegions: map[string]bool{}, busy: map[string]int{},
		versionPlaces: map[versionName]int{}, plan: rand.New(rand.NewPCG(cfg.Seed, 8)),
	}
	g.schedule = newSchedule(g.start)
	g.ledger = &Ledger{Config: cfg, Start: g.start}
	g.far = far{net: newNetwork(cfg.Seed, cfg.Regions), random: rand.New(rand.NewPCG(cfg.Seed, 9)), lateRate: 0.01}
	g.far.net.silence = farSilence
	if err := g.build(); err != nil {
		return nil, err
	}
	g.foundRegions()
	time.Sleep(warmUp)
	g.drive()
	g.halt()
	g.ledger.Events = g.schedule.ran
	return g.ledger, nil
}

func (g *globe) now() time.Duration { return time.Since(g.start) }

// after runs f later in the schedule, without a mutex, unless the run is over.
func (g *globe) after(d time.Duration, f func()) {
	g.schedule.at(g.now()+d, func() {
		if !g.stopped.Load() {
			f()
		}
	})
}

// build makes the regions as they are before any of them has heard of another.
func (g *globe) build() error {
	g.writes = firstEdition(g.cfg.Nodes, g.cfg.Regions)
	if err := g.listSubjects(); err != nil {
		return err
	}
	for r := range g.cfg.Regions {
		cfg := g.cfg
		cfg.Regions, cfg.Seed = 0, g.cfg.Seed<<8^uint64(r)
		cfg.Duration, cfg.Calm = g.cfg.Duration+warmUp, g.cfg.Calm*time.Duration(g.cfg.Regions)
		skew := time.Duration(g.plan.Int64N(int64(2*maxSkew))) - maxSkew
		if g.plan.IntN(2) == 0 {
			skew /= 20 // as they are where clocks are looked after
		}
		w := newWorld(cfg, g.start, limiter.NewClockAhead(skew))
		w.globe, w.region, w.name, w.state = g, r, regionName(r), newState()
		w.ledger.Start = g.start.Add(skew)
		w.workers, w.schedule = g.workers, g.schedule
		if err := w.build(); err != nil {
			return err
		}
		g.worlds = append(g.worlds, w)
		g.ledger.Regions = append(g.ledger.Regions, w.ledger)
	}
	return nil
}

// newState is what a region begins with. All have one secret, so that a subject is the same counter in each.
func newState() *agreement.State {
	s := agreement.New()
	s.Cluster, s.Secret = agreement.ClusterID{1}, make([]byte, 32)
	return s
}

// listSubjects finds out what will be asked about: the same subjects in each region.
func (g *globe) listSubjects() error {
	set, err := g.writes.compile()
	if err != nil {
		return err
	}
	table := counters.New(1)
	defer table.Close()
	l := limiter.New(table, nil)
	l.Use(set.Keyed(newState().Secret))
	total := max(g.cfg.Subjects, hotKeys*len(g.writes.rules))
	for i := range total {
		s := Subject{Rule: g.writes.rules[i%len(g.writes.rules)].name, Key: fmt.Sprint("k", i/len(g.writes.rules))}
		if err := s.locate(l); err != nil {
			return err
		}
		if i < hotKeys*len(g.writes.rules) {
			g.hot = append(g.hot, i)
		}
		g.subjects = append(g.subjects, s)
	}
	g.ledger.Subjects = g.subjects
	return nil
}

// addSubjects has a region know the subjects.
func (g *globe) addSubjects(w *World) {
	w.hot, w.ledger.Subjects = g.hot, g.subjects
	for i := range g.subjects {
		s := &g.subjects[i]
		w.subjectsIn[s.Partition] = append(w.subjectsIn[s.Partition], i)
		w.subjectByKey[s.Counter] = i
	}
}

// foundRegions makes the first region the primary, with the first rules; the others hear of it by themselves. Some are closed
// still: they join while all goes on.
func (g *globe) foundRegions() {
	for r, w := range g.worlds {
		w.mu.Lock()
		w.closed = r >= len(g.worlds)-len(g.worlds)/5
		if r == 0 {
			w.becomePrimary()
			g.writeRules(w, "first")
		}
		w.reportRegularly()
		w.mu.Unlock()
	}
}

// writeRules has a region's leader, if it is the primary's, write what is to be written next. It is called under the region's
// mutex.
func (g *globe) writeRules(w *World, what string) {
	r := w.propose(agreement.Rules{
		Change: rules.Change{Part: rules.WholeDocument, Body: []byte(g.writes.text())}, By: what, When: time.UnixMilli(w.wall()),
	})
	if r.Err != nil {
		g.countFault("write refused") // nobody leads, or too many versions are on their way
	}
}

// isPrimary reports whether a region takes itself for the primary.
func (g *globe) isPrimary(region int) bool { return g.primaryOf(region) == region }

// primaryOf is which region a region takes for the primary.
func (g *globe) primaryOf(region int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.primaries[region]
}

// regionOf is the place of a region, −1 if there is no such.
func (g *globe) regionOf(name string) int {
	return slices.IndexFunc(g.worlds, func(w *World) bool { return w.name == name })
}

// removed reports whether somebody said that a region is gone for good.
func (g *globe) removed(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.removedRegions[name]
}

// noteState notes what a region has just committed: which versions it holds, and, of the primary, which there are, and
// which are recorded. It is called under the region's mutex.
func (g *globe) noteState(w *World) {
	rg, now := w.state.Regions, g.now()
	hold := Hold{At: now}
	g.mu.Lock()
	defer g.mu.Unlock()
	fresh := rg.Term > g.term
	g.term = max(g.term, rg.Term)
	for _, h := range rg.Held {
		name := versionName{rg.Term, h.Version}
		place, known := g.versionPlaces[name]
		if !known && fresh {
			if place, known = g.versionPlaces[versionName{rg.Term - 1, h.Version}]; known {
				g.versionPlaces[name] = place // the new primary's goes on from the old one's
			}
		}
		if !known {
			place = len(g.ledger.Versions)
			g.versionPlaces[name] = place
			g.ledger.Versions = append(g.ledger.Versions, newVersion(&h, now))
		}
		v := &g.ledger.Versions[place]
		v.candidate = v.candidate || h.Candidate || len(rg.Held) == 1
		if rg.Primary == w.name && v.Recorded == forever && v.candidate && h.At != 0 {
			// One that divides as another one did takes over what was recorded of that.
			v.Recorded, v.From = now, max(h.At, w.wall()+afterAll.Milliseconds())
			g.ledger.Counts.Recorded++
		}
		hold.Versions = append(hold.Versions, place)
	}
	w.ledger.Holds = append(w.ledger.Holds, hold)
}

// drive runs the load, the faults and the changes until the time is over, and then some quiet.
func (g *globe) drive() {
	var load sync.WaitGroup
	load.Go(g.trickle)
	for range farEpisodes {
		random := rand.New(rand.NewPCG(g.plan.Uint64(), 6))
		load.Go(func() {
			for g.now() < warmUp+g.cfg.Duration {
				g.episode(random)
			}
		})
	}
	for _, w := range g.worlds {
		if w.cfg.Calm > 0 {
			w.mu.Lock()
			w.planNext()
			w.mu.Unlock()
		}
	}
	g.planNext(g.cfg.FarCalm, regionFaults)
	g.planNext(g.cfg.Changes, regionChanges)
	time.Sleep(g.cfg.Duration + 5*time.Second)
	load.Wait()
	for _, w := range g.worlds {
		w.mu.Lock()
		w.closeLedger()
		w.mu.Unlock()
	}
	g.ledger.End = g.now()
}

func (g *globe) halt() {
	g.stopped.Store(true)
	for _, w := range g.worlds {
		w.halt()
	}
	g.workers.close()
	g.schedule.close()
	time.Sleep(callDrain)
	for _, w := range g.worlds {
		w.free()
	}
}
