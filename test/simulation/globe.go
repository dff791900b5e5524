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
	// warmUp is the time before the load in which all regions adopt the first rules.
	warmUp = 20 * time.Second
	// maxSkew bounds the error of a region's clock.
	maxSkew = 3 * time.Second
)

// globe is several regions, each a World, and the network between them.
type globe struct {
	config   Config
	start    time.Time
	worlds   []*World
	schedule *schedule
	workers  *workerPool
	far      far
	ledger   *Ledger
	subjects []Subject
	hot      []int
	stopped  atomic.Bool
	plan     *rand.Rand // draws faults between regions and changes; used only in the schedule
	writes   *edition   // the next rules to write; used only in the schedule

	mu             sync.Mutex // guards the fields below; lock it after those of worlds
	primaries      []int      // by region: the region that it considers the primary
	removedRegions map[string]bool
	busy           map[string]int      // by rule: number of episodes in progress
	versionPlaces  map[versionName]int // indexes in ledger.Versions
	primaryEpoch   int64               // the highest primary epoch of a primary so far
}

// versionName identifies a version. Different primaries may write the same number.
type versionName struct{ primaryEpoch, number int64 }

// regionName returns the name of a simulated region.
func regionName(region int) string { return fmt.Sprintf("r%02d", region) }

// runGlobe simulates several regions.
func runGlobe(config Config) (*Ledger, error) {
	g := &globe{
		config: config, start: time.Now(), workers: newWorkerPool(), primaries: make([]int, config.Regions), removedRegions: map[string]bool{}, busy: map[string]int{},
		versionPlaces: map[versionName]int{}, plan: rand.New(rand.NewPCG(config.Seed, 8)),
	}
	g.schedule = newSchedule(g.start)
	g.ledger = &Ledger{Config: config, Start: g.start}
	g.far = far{net: newNetwork(config.Seed, config.Regions), random: rand.New(rand.NewPCG(config.Seed, 9)), lateRate: 0.01}
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

// after runs f after d in the schedule, without a mutex, unless the run has ended.
func (g *globe) after(d time.Duration, f func()) {
	g.schedule.at(g.now()+d, func() {
		if !g.stopped.Load() {
			f()
		}
	})
}

// build builds the regions. None of them knows of another yet.
func (g *globe) build() error {
	g.writes = firstEdition(g.config.Nodes, g.config.Regions)
	if err := g.listSubjects(); err != nil {
		return err
	}

	for r := range g.config.Regions {
		config := g.config
		config.Regions, config.Seed = 0, g.config.Seed<<8^uint64(r)
		config.Duration, config.Calm = g.config.Duration+warmUp, g.config.Calm*time.Duration(g.config.Regions)
		skew := time.Duration(g.plan.Int64N(int64(2*maxSkew))) - maxSkew
		if g.plan.IntN(2) == 0 {
			skew /= 20 // as with synchronised clocks
		}

		w := newWorld(config, g.start, limiter.NewClockWithOffset(skew))
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

// newState returns a region's initial state. All have the same secret, so that a subject has the same counter in each.
func newState() *agreement.State {
	s := agreement.New()
	s.Cluster, s.Secret = agreement.ClusterID{1}, make([]byte, 32)
	return s
}

// listSubjects chooses the subjects to check, which are the same in each region.
func (g *globe) listSubjects() error {
	set, err := g.writes.compile()
	if err != nil {
		return err
	}

	table := counters.New(1)
	defer table.Close()

	l := limiter.New(table, nil)
	l.SetRules(set.Keyed(newState().Secret))

	total := max(g.config.Subjects, hotKeys*len(g.writes.rules))
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

// addSubjects adds the subjects to a region.
func (g *globe) addSubjects(w *World) {
	w.hot, w.ledger.Subjects = g.hot, g.subjects
	for i := range g.subjects {
		s := &g.subjects[i]
		w.subjectsIn[s.Partition] = append(w.subjectsIn[s.Partition], i)
		w.subjectByKey[s.Counter] = i
	}
}

// foundRegions makes the first region the primary and writes the first rules; the other regions learn of it by
// themselves. Some regions are still closed: they join during the run.
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

// writeRules makes a region's leader write the next rules. The caller holds the region's mutex.
func (g *globe) writeRules(w *World, what string) {
	r := w.propose(agreement.Rules{
		Change: rules.Change{Part: rules.WholeDocument, Body: []byte(g.writes.text())}, By: what, When: time.UnixMilli(w.wall()),
	})
	if r.Err != nil {
		g.countFault("write refused") // no leader, or too many versions that regions still hold
	}
}

// isPrimary reports whether a region considers itself the primary.
func (g *globe) isPrimary(region int) bool { return g.primaryOf(region) == region }

// primaryOf returns the region that a region considers the primary.
func (g *globe) primaryOf(region int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.primaries[region]
}

// regionOf returns the index of a region, or −1.
func (g *globe) regionOf(name string) int {
	return slices.IndexFunc(g.worlds, func(w *World) bool { return w.name == name })
}

// removed reports whether a region was removed for good.
func (g *globe) removed(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.removedRegions[name]
}

// noteState records what a region has just committed: the versions that it holds and, for the primary, which versions
// exist and which are recorded. The caller holds the region's mutex.
func (g *globe) noteState(w *World) {
	rg, now := w.state.Regions, g.now()
	hold := Hold{At: now}
	g.mu.Lock()
	defer g.mu.Unlock()

	fresh := rg.PrimaryEpoch > g.primaryEpoch
	g.primaryEpoch = max(g.primaryEpoch, rg.PrimaryEpoch)

	for _, h := range rg.Held {
		name := versionName{rg.PrimaryEpoch, h.Version}
		place, known := g.versionPlaces[name]
		if !known && fresh {
			if place, known = g.versionPlaces[versionName{rg.PrimaryEpoch - 1, h.Version}]; known {
				g.versionPlaces[name] = place // the new primary continues with the old one's version
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
			// A version that divides like an earlier one takes over its record.
			v.Recorded, v.From = now, max(h.At, w.wall()+afterAll.Milliseconds())
			g.ledger.Counts.Recorded++
		}

		hold.Versions = append(hold.Versions, place)
	}

	w.ledger.Holds = append(w.ledger.Holds, hold)
}

// drive runs the load, the faults and the changes, and then some time without load.
func (g *globe) drive() {
	var load sync.WaitGroup
	load.Go(g.trickle)

	for range farEpisodes {
		random := rand.New(rand.NewPCG(g.plan.Uint64(), 6))
		load.Go(func() {
			for g.now() < warmUp+g.config.Duration {
				g.episode(random)
			}
		})
	}

	for _, w := range g.worlds {
		if w.config.Calm > 0 {
			w.mu.Lock()
			w.planNext()
			w.mu.Unlock()
		}
	}

	g.planNext(g.config.FarCalm, regionFaults)
	g.planNext(g.config.Changes, regionChanges)
	time.Sleep(g.config.Duration + 5*time.Second)
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
