package node

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/test/simulation"
)

var (
	worldRegions = flag.Int("regions", 3, "how many regions a simulation of regions has")
	worldNodes   = flag.Int("region-nodes", 5,
		"how many nodes each of them has, 5 or more; 2 without faults inside regions")
	worldMinutes = flag.Float64("region-minutes", 0.7, "how long faults happen in a simulation of regions")
	worldSeed    = flag.Uint64("region-seed", 2, "seed of the first simulation of regions")
	worldSeeds   = flag.Uint64("region-seeds", 1, "how many simulations of regions to run, with consecutive seeds")
	worldRate    = flag.Int("region-rate", 120, "checks per second of all regions together")
)

// Times of a simulation of regions.
const (
	// worldFaults is the mean time between two faults of links between regions,
	// worldChanges that between two changes of the rules, of the set of regions or
	// of the primary.
	worldFaults, worldChanges = 8 * time.Second, 10 * time.Second
	// worldTick is how often the simulation looks at what regions have agreed on,
	// and at what is due.
	worldTick = 5 * time.Millisecond
	// worldSkew bounds the error of a region's clock.
	worldSkew = 3 * time.Second
	// removalDelay is the time after which nothing of a closed region is still in transit.
	removalDelay = 5 * time.Second
	// loansPerKill is how many loans are seen for each node that is killed in the middle of one.
	loansPerKill = 4
)

// simWorld is a simulation of several regions, each of them a simTrial of whole nodes.
type simWorld struct {
	t        *testing.T
	calm     bool          // no faults inside regions
	faults   time.Duration // mean time between two faults between regions; 0 for none
	changes  time.Duration // mean time between two changes
	rnd      *rand.Rand    // chooses faults and changes; used by one goroutine
	regions  []*simTrial
	ledger   *simulation.Ledger
	edition  *simulation.Edition
	load     simulation.RegionsLoad
	happened map[string]int
	sabotage sabotageOfShares         // nil for none
	replaced map[*testNode]*rules.Set // sets of shares that sabotage has put in force
	cuts     []*farCut
	cutNow   map[[2]int]bool // links between regions that are cut, by direction
	group    sync.WaitGroup

	primary atomic.Int64

	mu    sync.Mutex // guards the fields below, and Versions, Loans and Holds of ledgers
	busy  bool       // the primary or the set of regions changes
	due   []dueAction
	loans map[loanName]int // places in ledger.Loans
	lent  int
}

// farCut is a fault of links between regions.
type farCut struct {
	blocks func(from, to int) bool
	until  time.Duration
}

type dueAction struct {
	at time.Duration
	do func()
}

type loanName struct {
	region, subject int
	window          int64
}

// G8 and all other guarantees hold while regions are cut off from each other in
// all ways, nodes in them fail, and rules, the primary and the set of regions
// change. Every second run has no faults inside regions, so that the bound is
// exact.
func TestG8_SimulationInOneProcess(t *testing.T) {
	t.Parallel()
	if !simDebited {
		t.Skip("loans are not debited in this build")
	}
	length := time.Duration(*worldMinutes * float64(time.Minute))
	for seed := *worldSeed; seed < *worldSeed+*worldSeeds; seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			w := &simWorld{calm: seed%2 == 0, faults: worldFaults, changes: worldChanges}
			for i, v := range w.simulate(t, seed, length) {
				if i == 20 {
					t.Errorf("and more")
					break
				}
				t.Errorf("seed %d: %v", seed, v)
				if words := strings.Fields(v.Text); i == 0 && len(words) > 1 {
					_ = w.ledger.WriteStory(t.Output(), words[0], words[1]) // a repetition won't be the same
				}
			}
		})
	}
}

// The checkers notice sabotage of what regions share.
func TestSabotageOfSharesIsFoundInOneProcess(t *testing.T) {
	t.Parallel()
	if !simDebited || !*simSabotage {
		t.Skip("make simulation runs it")
	}
	for name, sabotage := range map[string]sabotageOfShares{
		"shares are raised at once": func(held []rules.HeldVersion) []rules.HeldVersion {
			last := held[len(held)-1]
			last.RecordedAt = 1
			return []rules.HeldVersion{last}
		},
		"the old division stays until the record": func(held []rules.HeldVersion) []rules.HeldVersion {
			held = slices.Clone(held)
			if last := &held[len(held)-1]; last.RecordedAt == 0 {
				last.RecordedAt = rules.MaxRecordedAt
			}
			return slices.DeleteFunc(held, func(v rules.HeldVersion) bool { return v.RecordedAt == 0 })
		},
	} {
		t.Run(name, func(t *testing.T) { checkRegionsSabotageFound(t, sabotage) })
	}
}

// sabotageOfShares changes the versions by which nodes divide limits.
type sabotageOfShares func([]rules.HeldVersion) []rules.HeldVersion

// checkRegionsSabotageFound looks for a seed in which the sabotage is noticed.
// No links break but after a write.
func checkRegionsSabotageFound(t *testing.T, sabotage sabotageOfShares) {
	t.Helper()
	for seed := range uint64(20) {
		w := &simWorld{calm: true, changes: 3 * time.Second, sabotage: sabotage}
		for _, v := range w.simulate(t, 101+seed, time.Minute) {
			if v.Guarantee == "G8" {
				t.Log(v)
				return
			}
		}
	}
	t.Error("no seed detected the sabotage")
}

// replaceShares changes the versions by which nodes divide limits.
func (w *simWorld) replaceShares() {
	for _, tr := range w.regions {
		for _, v := range tr.runningNodes() {
			set := v.node.limiter.Rules()
			if set == nil || set.DividingVersions() == nil || w.replaced[v] == set {
				continue
			}
			shares := rules.DividingVersions{Region: set.DividingVersions().Region, Held: w.sabotage(set.DividingVersions().Held)}
			v.node.limiter.SetRules(set.WithShares(&shares))
			w.replaced[v] = v.node.limiter.Rules()
		}
	}
}

// simulate runs one seed and returns the violations.
func (w *simWorld) simulate(t *testing.T, seed uint64, length time.Duration) (found []simulation.Violation) {
	t.Helper()
	began, cpu := time.Now(), processorTime()
	synctest.Test(t, func(t *testing.T) {
		w.t, w.rnd = t, rand.New(rand.NewPCG(seed, 8))
		w.run(seed, length)
	})
	took, used := time.Since(began), processorTime()-cpu

	checks := 0
	for _, tr := range w.regions {
		checks += len(tr.ledger.Checks)
		for name, n := range tr.happened {
			w.happened[name] += n
		}
		found = append(found, tr.found...)
	}
	found = append(found, w.ledger.Judge()...)
	t.Logf("seed %d, %d regions of %d nodes, %v: %d checks, %v; %v, %v of processors: %+v", seed,
		len(w.regions), w.regions[0].nodes, length, checks,
		w.happened, took.Round(time.Second), used.Round(time.Second), w.ledger.Counts)
	return found
}

func (w *simWorld) run(seed uint64, length time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	w.start(func() { done.Go(func() { w.watch(ctx) }) })
	began := w.now()
	end := began + length
	w.load = simulation.RegionsLoad{
		Ledger: w.ledger, Hot: w.regions[0].hot, Rate: *worldRate, Random: rand.New(rand.NewPCG(seed, 9)),
		Nodes: func(region int) int { return w.regions[region].nodesEver() },
		Ask:   func(region, node int, cost int64, subjects ...int) { w.regions[region].ask(node, cost, subjects...) },
	}

	done.Go(func() { w.load.Run(end) })
	for _, tr := range w.regions {
		done.Go(func() { tr.sampleUntilDone(ctx) })
		w.group.Go(func() { w.runRegion(tr, end) })
	}
	w.drive(end)
	w.group.Wait()
	cancel()
	done.Wait()

	w.ledger.End = w.now()
	for _, tr := range w.regions {
		tr.ledger.End = w.now()
		tr.found = append(tr.secondOwners(), tr.failures...)
		if !tr.hasSampled {
			w.t.Errorf("none of the counters of region %d were found", tr.region)
		}
	}
	for _, x := range w.ledger.Loans {
		w.ledger.Counts.Lent += x.Amount
	}
}

// start starts all regions, calls watch, and waits until they share one
// recorded version of the rules.
func (w *simWorld) start(watch func()) {
	nodes := *worldNodes
	if w.calm {
		nodes = 2
	}
	var names []string
	for r := range *worldRegions {
		names = append(names, simulation.RegionName(r))
	}

	network := newTestNetwork(w.t)
	w.edition = simulation.FirstEdition(nodes, len(names))
	w.ledger = &simulation.Ledger{Start: network.start}
	w.happened, w.replaced = map[string]int{}, map[*testNode]*rules.Set{}
	w.cutNow, w.loans = map[[2]int]bool{}, map[loanName]int{}
	for r, p := range network.newClusters(nodes, names...) {
		p.clockOffset = time.Duration(w.rnd.Int64N(int64(2*worldSkew))) - worldSkew
		if w.rnd.IntN(2) == 0 {
			p.clockOffset /= 20 // as with synchronised clocks
		}
		tr := &simTrial{
			t: w.t, nodes: nodes, world: w, region: r, rnd: rand.New(rand.NewPCG(w.rnd.Uint64(), 27)),
			orders: make(chan func()), over: make(chan struct{}),
		}
		tr.begin(p)
		w.regions = append(w.regions, tr)
		w.ledger.Regions = append(w.ledger.Regions, tr.ledger)
	}
	w.eachFarLink(func(a, b *simTrial, x, y string) { network.net.DelayBetween(x, y, farDelay) })

	for _, tr := range w.regions {
		tr.p.startNodes(nodes, w.edition.Text())
		for _, v := range tr.p.nodes {
			tr.add(v)
		}
	}
	watch()
	for _, tr := range w.regions {
		tr.awaitEmpty(simWhole, "the region is whole", tr.missingNode)
		tr.awaitEmpty(simWhole, "the rules are recorded", func() string { return w.notShared(tr) })
	}

	// Each region is a cluster with a key of its own, which says where a subject's counters are.
	for _, tr := range w.regions {
		hot, err := tr.ledger.ListShared(150, w.edition, tr.p.nodes[0].node.limiter)
		expect.NoError(w.t, err)
		tr.setHot(hot)
	}
	w.ledger.Subjects = w.regions[0].ledger.Subjects
}

func (w *simWorld) now() time.Duration { return w.regions[0].now() }

// notShared returns why a region does not use a recorded version together with all others.
func (w *simWorld) notShared(tr *simTrial) string {
	s := tr.state().Regions
	if n := len(s.Held); n == 0 || s.Held[n-1].RecordedAt == 0 || len(s.Committed) < len(w.regions) {
		return fmt.Sprintf("%v, and %d versions", s.Committed, n)
	}
	return ""
}

// eachFarLink calls do for each pair of addresses that nodes of two regions
// have, or may have later.
func (w *simWorld) eachFarLink(do func(a, b *simTrial, x, y string)) {
	for i, a := range w.regions {
		for _, b := range w.regions[:i] {
			for x := range a.nodes + 4 {
				for y := range b.nodes + 4 {
					do(a, b, a.p.address(x), b.p.address(y))
				}
			}
		}
	}
}

// watch notes what the regions agree on.
func (w *simWorld) watch(ctx context.Context) {
	noted := make([]uint64, len(w.regions))
	for ; ctx.Err() == nil; time.Sleep(worldTick) {
		for r, tr := range w.regions {
			if len(tr.runningNodes()) == 0 {
				continue
			}
			if s := tr.state(); s.Index != noted[r] {
				noted[r] = s.Index
				w.mu.Lock()
				w.ledger.NoteState(r, s.Regions, w.now())
				w.mu.Unlock()
			}
		}
		if w.sabotage != nil {
			w.replaceShares()
		}
	}
}

// maxShare returns the largest share of a limit that a region may use now.
func (w *simWorld) maxShare(region int, s *simulation.Subject) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ledger.MaxShare(region, s, w.now()-10*time.Second)
}

// noteLent notes what a region's owner has lent of a subject. In the middle of
// some loans, a node of either side is killed.
func (w *simWorld) noteLent(tr *simTrial, subject int, lent *counters.Record) {
	if w == nil || lent.Kind != algorithms.FixedWindow || lent.State.Count == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	name := loanName{tr.region, subject, lent.State.Window()}
	place, known := w.loans[name]
	if !known {
		place = len(w.ledger.Loans)
		w.loans[name] = place
		w.ledger.Loans = append(w.ledger.Loans,
			simulation.Loan{At: w.now(), From: tr.region, Subject: subject, Window: name.window})
	}
	x := &w.ledger.Loans[place]
	if x.Amount >= lent.State.Count {
		return
	}
	x.Amount = lent.State.Count
	w.lent++
	if w.lent%loansPerKill == 0 && !w.calm {
		w.due = append(w.due,
			dueAction{w.now(), func() { w.after(w.between(0, 3*farDelay), func() { w.killInLoan(tr, subject) }) }})
	}
}

// after does something later, in the goroutine that breaks things.
func (w *simWorld) after(d time.Duration, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due = append(w.due, dueAction{w.now() + d, do})
}

// between draws a time.
func (w *simWorld) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rnd.Int64N(int64(most-least)))
}

// drive breaks links between regions and changes what they agree on.
func (w *simWorld) drive(end time.Duration) {
	nextFault, nextChange := w.now(), w.now()
	for ; w.now() < end; time.Sleep(worldTick) {
		w.mu.Lock()
		var due []dueAction
		w.due = slices.DeleteFunc(w.due, func(x dueAction) bool {
			if x.at <= w.now() {
				due = append(due, x)
			}
			return x.at <= w.now()
		})
		w.mu.Unlock()
		for _, x := range due {
			x.do()
		}

		before := len(w.cuts)
		w.cuts = slices.DeleteFunc(w.cuts, func(c *farCut) bool { return c.until <= w.now() })
		if len(w.cuts) != before {
			w.applyCuts()
		}
		if w.faults > 0 && w.now() >= nextFault {
			w.breakLinks()
			nextFault = w.now() + w.pause(w.faults)
		}
		if w.now() >= nextChange {
			w.change()
			nextChange = w.now() + w.pause(w.changes)
		}
	}

	// The region goroutines finish what they have begun without further faults.
	w.cuts = nil
	w.applyCuts()
	w.delayMessages(farDelay)
}

// pause draws the time until the next fault or change. Now and then it is long,
// so that the regions settle.
func (w *simWorld) pause(mean time.Duration) time.Duration {
	d := w.between(mean/2, 3*mean/2)
	if w.rnd.IntN(20) == 0 {
		d *= 8
	}
	return d
}

// count counts an event.
func (w *simWorld) count(name string) { w.happened[name]++ }

// breakLinks starts a fault of links between regions.
func (w *simWorld) breakLinks() {
	n := len(w.regions)
	x, y, both := w.rnd.IntN(n), w.rnd.IntN(n), w.rnd.IntN(2) == 0
	if w.rnd.IntN(4) == 0 {
		x = int(w.primary.Load())
	}
	switch dice := w.rnd.IntN(23); {
	case dice < 5:
		w.cutOff("region cut off", func(from, to int) bool { return from == x || to == x })
	case dice < 9:
		w.cutOff("region cut off one way", func(from, to int) bool { return both && from == x || !both && to == x })
	case dice < 11:
		w.cutOff("all regions apart", func(int, int) bool { return true })
	case dice < 14:
		side, oneWay := w.rnd.Uint64(), w.rnd.IntN(3) == 0
		w.cutOff("regions split", func(from, to int) bool {
			a, b := side>>from&1, side>>to&1
			return a != b && (!oneWay || a == 1)
		})
	case dice < 19:
		w.cutOff("link between regions",
			func(from, to int) bool { return from == x && to == y || both && from == y && to == x })
	case dice < 21:
		w.count("connections between regions lost")
		for range 5 {
			w.after(w.between(0, 5*time.Second), w.breakConnections)
		}
	default:
		w.count("messages between regions late")
		w.delayMessages(w.between(farDelay, 2*time.Second))
		w.after(w.between(3*time.Second, 15*time.Second), func() { w.delayMessages(farDelay) })
	}
}

// cutOff cuts links for some time: too short to be noticed, up to a few windows, or longer.
func (w *simWorld) cutOff(name string, blocks func(from, to int) bool) {
	w.count(name)
	length := w.between(50*time.Millisecond, 3*time.Second)
	switch dice := w.rnd.IntN(10); {
	case dice == 9:
		length = w.between(15*time.Second, 80*time.Second)
	case dice >= 5:
		length = w.between(3*time.Second, 15*time.Second)
	}
	w.cuts = append(w.cuts, &farCut{blocks, w.now() + length})
	w.applyCuts()
}

// applyCuts makes the network cut what all faults together cut.
func (w *simWorld) applyCuts() {
	want := func(from, to int) bool {
		return slices.ContainsFunc(w.cuts, func(c *farCut) bool { return c.blocks(from, to) })
	}
	net := w.regions[0].p.net
	w.eachFarLink(func(a, b *simTrial, x, y string) {
		there, back := [2]int{a.region, b.region}, [2]int{b.region, a.region}
		cutThere, cutBack := want(there[0], there[1]), want(back[0], back[1])
		if cutThere == w.cutNow[there] && cutBack == w.cutNow[back] {
			return
		}
		net.Heal(x, y)
		if cutThere {
			net.CutOneWay(x, y)
		}
		if cutBack {
			net.CutOneWay(y, x)
		}
	})
	for a := range w.regions {
		for b := range w.regions {
			w.cutNow[[2]int{a, b}] = a != b && want(a, b)
		}
	}
}

// breakConnections resets the connections of a region to all others, with what is on its way.
func (w *simWorld) breakConnections() {
	one := w.regions[w.rnd.IntN(len(w.regions))]
	w.eachFarLink(func(a, b *simTrial, x, y string) {
		if a == one || b == one {
			one.p.net.Break(x, y)
		}
	})
}

// delayMessages sets how long messages of a region to all others take.
func (w *simWorld) delayMessages(d time.Duration) {
	one := w.regions[w.rnd.IntN(len(w.regions))]
	w.eachFarLink(func(a, b *simTrial, x, y string) {
		if a == one || b == one || d == farDelay {
			one.p.net.DelayBetween(x, y, d)
		}
	})
}

// change changes what regions agree on.
func (w *simWorld) change() {
	switch dice := w.rnd.IntN(23); {
	case dice < 20:
		w.changeRules()
	case dice < 22:
		w.inBackground("region leaves and joins", w.replaceRegion)
	default:
		w.inBackground("primary", w.changePrimary)
	}
}

// inBackground makes a change that takes long, unless another such change is in progress.
func (w *simWorld) inBackground(name string, change func(random *rand.Rand)) {
	w.mu.Lock()
	busy := w.busy
	w.busy = true
	w.mu.Unlock()
	if busy {
		return
	}
	w.count(name)
	random := rand.New(rand.NewPCG(w.rnd.Uint64(), 10))
	w.group.Go(func() {
		change(random)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy = false
	})
}

// changeRules writes other rules, and often further ones soon after.
func (w *simWorld) changeRules() {
	w.count("rules")
	w.edition.Change(w.rnd, w.load.IsBusy)
	tr := w.regions[w.primary.Load()]
	body := []byte(w.edition.Text())
	if list := tr.healthyNodes(); len(list) > 0 {
		v := list[w.rnd.IntN(len(list))]
		w.group.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), simInForce)
			defer cancel()
			// refused where a fault is in its way
			_, _ = v.admin().Write(ctx, document.Change{Body: body}, cluster.WriteOptions{By: v.name()})
		})
	}
	if w.rnd.IntN(2) == 0 {
		// A region that has the new rules may then miss what follows from them.
		x := w.rnd.IntN(len(w.regions))
		w.after(w.between(0, 3*time.Second), func() {
			w.cutOff("region cut off after a write", func(from, to int) bool { return from == x || to == x })
		})
	}
	if w.rnd.IntN(3) == 0 {
		w.after(w.between(20*time.Millisecond, 3*time.Second), w.changeRules)
	}
}

// runRegion breaks a region's nodes, and carries out orders in between.
func (w *simWorld) runRegion(tr *simTrial, end time.Duration) {
	for {
		wait := end - w.now()
		if !w.calm {
			wait = min(wait, time.Duration(10+tr.rnd.IntN(50))*time.Second)
		}
		select {
		case order := <-tr.orders:
			from := w.now()
			order()
			tr.mu.Lock()
			tr.ledger.Troubles = append(tr.ledger.Troubles, simulation.Trouble{From: from, Until: w.now()})
			tr.mu.Unlock()
		case <-time.After(max(wait, 0)):
			if w.now() >= end {
				close(tr.over)
				return
			}
			tr.episode()
		}
	}
}

// order makes a region's own goroutine do something, and waits for it. It
// returns false at the end of the run.
func (tr *simTrial) order(do func()) bool {
	finished := make(chan struct{})
	select {
	case tr.orders <- func() {
		defer close(finished)
		do()
	}:
		<-finished
		return true
	case <-tr.over:
		return false
	}
}

// changePrimary restarts all nodes with another primary, in the order that the
// documentation recommends.
func (w *simWorld) changePrimary(random *rand.Rand) {
	old := int(w.primary.Load())
	next := random.IntN(len(w.regions))
	if next == old {
		return
	}
	order := []int{old, next}
	for r := range w.regions {
		if r != old && r != next {
			order = append(order, r)
		}
	}
	for _, r := range order {
		tr := w.regions[r]
		ok := tr.order(func() {
			tr.p.primary = simulation.RegionName(next)
			for _, v := range tr.runningNodes() {
				v.settings.PrimaryRegion = tr.p.primary
				tr.restart(v, 100*time.Millisecond)
			}
		})
		if !ok {
			return
		}
		w.primary.Store(int64(next))
	}
}

// killInLoan kills the owner of a subject in a region that lends, or in another
// one, unless the region is busy.
func (w *simWorld) killInLoan(tr *simTrial, subject int) {
	if w.rnd.IntN(4) == 0 {
		tr = w.regions[w.rnd.IntN(len(w.regions))]
	}
	tr.mu.Lock()
	owner := tr.partitions[tr.ledger.Subjects[subject].Partition].by
	tr.mu.Unlock()
	down := w.between(100*time.Millisecond, 10*time.Second)

	kill := func() {
		if owner == nil || !owner.v.ready.Load() || owner.over {
			return
		}
		tr.happened["killed in a loan"]++
		tr.kill(owner.v)
		time.Sleep(down)
		tr.startAgain(owner.v)
		tr.awaitEmpty(simWhole, "the cluster is whole", tr.missingNode)
	}
	select {
	case tr.orders <- kill:
	default: // a fault or a change is in progress
	}
}

// replaceRegion stops a region for good and removes it. Later, another cluster of that name joins.
func (w *simWorld) replaceRegion(random *rand.Rand) {
	r := random.IntN(len(w.regions))
	if r == int(w.primary.Load()) {
		return
	}
	tr, name := w.regions[r], simulation.RegionName(r)
	pause := time.Duration(random.Int64N(int64(10 * time.Second)))
	tr.order(func() {
		tr.closed.Store(true)
		time.Sleep(removalDelay)
		for _, v := range tr.runningNodes() {
			tr.kill(v)
		}
		tr.noteWholeLoss()

		tr.awaitEmpty(2*time.Minute, "the region is removed", func() string {
			ctx, cancel := context.WithTimeout(context.Background(), simInForce)
			defer cancel()
			list := w.regions[w.primary.Load()].healthyNodes()
			if len(list) == 0 {
				return "no node to ask"
			}
			if _, err := list[0].node.cluster.RemoveRegion(ctx, name); err != nil {
				return err.Error()
			}
			return ""
		})

		time.Sleep(pause)
		for i, v := range tr.p.nodes {
			tr.mu.Lock()
			tr.gone[v] = i >= tr.nodes
			tr.mu.Unlock()
			if i < tr.nodes {
				v.memory = newTestDisk()
				_ = os.RemoveAll(v.settings.DataDir)
				tr.startAgain(v)
			}
		}
		tr.awaitEmpty(simWhole, "the new region is whole", tr.missingNode)
		tr.awaitEmpty(5*time.Minute, "it has joined the others", func() string {
			if s := tr.state().Regions; !slices.Contains(s.Committed, name) || s.Primary == name {
				return fmt.Sprint(s.Committed)
			}
			return ""
		})
		tr.relocate()
		tr.closed.Store(false)
	})
}
