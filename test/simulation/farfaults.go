package simulation

import (
	"time"
)

// regionFault is a kind of fault, or of change, that affects several regions.
type regionFault struct {
	name   string
	weight int
	inject func(*globe)
}

// regionFaults are the faults between regions.
var regionFaults = []regionFault{
	{"region cut off", 5, (*globe).cutOffRegion},
	{"region cut off one way", 4, (*globe).cutOneWay},
	{"all regions apart", 2, (*globe).cutAllApart},
	{"regions split", 3, (*globe).splitRegions},
	{"link between regions", 5, (*globe).cutLink},
	{"messages lost", 2, (*globe).loseMessages},
	{"messages late", 2, (*globe).delayMessages},
	{"node behind", 3, (*globe).holdNodeBehind},
}

// regionChanges are the changes that operators make during a run.
var regionChanges = []regionFault{
	{"rules", 20, (*globe).changeRules},
	{"region joins or leaves", 2, (*globe).changeRegionSet},
	{"primary", 1, (*globe).changePrimary},
}

// planNext schedules the next event of some kinds, after every on average; 0 means never.
func (g *globe) planNext(every time.Duration, kinds []regionFault) {
	if every == 0 {
		return
	}

	next := g.randomBetween(every/2, 3*every/2)
	if g.plan.IntN(20) == 0 {
		next *= 8 // a pause, in which the regions settle
	}

	g.after(next, func() {
		if g.now() > warmUp+g.config.Duration-2*time.Second {
			return
		}

		total := 0
		for _, c := range kinds {
			total += c.weight
		}

		dice := g.plan.IntN(total)
		for _, c := range kinds {
			if dice -= c.weight; dice < 0 {
				g.countFault(c.name)
				c.inject(g)
				break
			}
		}

		g.planNext(every, kinds)
	})
}

func (g *globe) countFault(name string) {
	if g.ledger.Counts.Faults == nil {
		g.ledger.Counts.Faults = map[string]int{}
	}
	g.ledger.Counts.Faults[name]++
}

// randomBetween draws a time from a to b with the plan's generator.
func (g *globe) randomBetween(a, b time.Duration) time.Duration {
	return a + time.Duration(g.plan.Int64N(int64(b-a)))
}

// faultLength draws the length of a fault between regions: too short to be noticed, up to a few windows, or longer.
func (g *globe) faultLength() time.Duration {
	switch dice := g.plan.IntN(10); {
	case dice < 5:
		return g.randomBetween(50*time.Millisecond, 3*time.Second)
	case dice < 9:
		return g.randomBetween(3*time.Second, 15*time.Second)
	}
	return g.randomBetween(15*time.Second, 80*time.Second)
}

// cutRegions cuts links between regions for some time.
func (g *globe) cutRegions(blocks func(a, b int) bool) {
	g.far.mu.Lock()
	g.far.net.dropOldFaults(g.now())
	f := g.far.net.addFault(g.now(), false, blocks)
	g.far.mu.Unlock()
	g.after(g.faultLength(), func() {
		g.far.mu.Lock()
		defer g.far.mu.Unlock()
		f.until = g.now()
	})
}

// randomRegion draws a region; the primary is more likely than the others.
func (g *globe) randomRegion() int {
	if g.plan.IntN(4) == 0 {
		return g.primaryOf(0)
	}
	return g.plan.IntN(len(g.worlds))
}

func (g *globe) cutOffRegion() {
	x := g.randomRegion()
	g.cutRegions(func(a, b int) bool { return a == x || b == x })
}

func (g *globe) cutOneWay() {
	x, out := g.randomRegion(), g.plan.IntN(2) == 0
	g.cutRegions(func(a, b int) bool { return out && a == x || !out && b == x })
}

func (g *globe) cutAllApart() { g.cutRegions(func(a, b int) bool { return a != b }) }

func (g *globe) splitRegions() {
	side := make([]bool, len(g.worlds))
	for i := range side {
		side[i] = g.plan.IntN(2) == 0
	}
	oneWay := g.plan.IntN(3) == 0
	g.cutRegions(func(a, b int) bool { return side[a] != side[b] && (!oneWay || side[a]) })
}

func (g *globe) cutLink() {
	x, y, both := g.randomRegion(), g.randomRegion(), g.plan.IntN(2) == 0
	g.cutRegions(func(a, b int) bool { return a == x && b == y || both && a == y && b == x })
}

func (g *globe) loseMessages() { g.disturb(&g.far.lossRate, 0.05+0.4*g.plan.Float64()) }

func (g *globe) delayMessages() { g.disturb(&g.far.lateRate, 0.1+0.6*g.plan.Float64()) }

// disturb changes a rate of the network between regions for some time.
func (g *globe) disturb(what *float64, to float64) {
	set := func(x float64) {
		g.far.mu.Lock()
		defer g.far.mu.Unlock()
		*what = x
	}
	before := *what
	if before > 0.02 {
		return // it is disturbed already
	}
	set(to)
	g.after(g.faultLength(), func() { set(before) })
}

// changeRules writes other rules, and often further ones soon after.
func (g *globe) changeRules() {
	g.writes.change(g.plan, g.isBusy)
	w := g.worlds[g.primaryOf(0)]
	w.mu.Lock()
	g.writeRules(w, "other limits")
	w.mu.Unlock()
	if g.plan.IntN(2) == 0 {
		// A region that has the new rules may then miss what follows from them.
		g.after(g.randomBetween(0, 3*time.Second), g.cutOffRegion)
	}
	if g.plan.IntN(3) == 0 {
		g.after(g.randomBetween(20*time.Millisecond, 3*time.Second), g.changeRules)
	}
}

// isBusy reports whether an episode loads a subject of a rule.
func (g *globe) isBusy(rule string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy[rule] > 0
}

// addBusy adds to the number of episodes that load a rule.
func (g *globe) addBusy(rule string, more int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy[rule] += more
}
