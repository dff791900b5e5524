package simulation

import (
	"time"
)

// calamity is a kind of what happens to several regions.
type calamity struct {
	name   string
	weight int
	strike func(*globe)
}

// calamities are what goes wrong between regions.
var calamities = []calamity{
	{"region cut off", 5, (*globe).strikeRegion},
	{"deaf or dumb region", 4, (*globe).strikeOneWay},
	{"all regions apart", 2, (*globe).strikeApart},
	{"regions split", 3, (*globe).strikeSplit},
	{"regions' link", 5, (*globe).strikeLink},
	{"messages lost", 2, (*globe).strikeLoss},
	{"messages late", 2, (*globe).strikeLate},
	{"node behind", 3, (*globe).strikeBehind},
}

// changes are what people change meanwhile.
var changes = []calamity{
	{"rules", 20, (*globe).strikeRules},
	{"region joins or leaves", 2, (*globe).strikeSet},
	{"primary", 1, (*globe).strikePrimary},
}

// brew plans what happens next of some kinds, about once in a time; 0: never.
func (g *globe) brew(every time.Duration, kinds []calamity) {
	if every == 0 {
		return
	}
	next := g.chance(every/2, 3*every/2)
	if g.plan.IntN(20) == 0 {
		next *= 8 // a while in which all comes to rest
	}
	g.after(next, func() {
		if g.now() > founding+g.cfg.Duration-2*time.Second {
			return
		}
		total := 0
		for _, c := range kinds {
			total += c.weight
		}
		dice := g.plan.IntN(total)
		for _, c := range kinds {
			if dice -= c.weight; dice < 0 {
				g.count(c.name)
				c.strike(g)
				break
			}
		}
		g.brew(every, kinds)
	})
}

func (g *globe) count(name string) {
	if g.ledger.Counts.Faults == nil {
		g.ledger.Counts.Faults = map[string]int{}
	}
	g.ledger.Counts.Faults[name]++
}

// chance is a time from a to b, by the plan's dice.
func (g *globe) chance(a, b time.Duration) time.Duration {
	return a + time.Duration(g.plan.Int64N(int64(b-a)))
}

// last is how long a fault between regions lasts: shorter than anybody notices, or than windows, or longer.
func (g *globe) last() time.Duration {
	switch dice := g.plan.IntN(10); {
	case dice < 5:
		return g.chance(50*time.Millisecond, 3*time.Second)
	case dice < 9:
		return g.chance(3*time.Second, 15*time.Second)
	}
	return g.chance(15*time.Second, 80*time.Second)
}

// sever cuts regions from each other for some time.
func (g *globe) sever(blocks func(a, b int) bool) {
	g.far.mu.Lock()
	g.far.net.forget(g.now())
	f := g.far.net.begin(g.now(), false, blocks)
	g.far.mu.Unlock()
	g.after(g.last(), func() {
		g.far.mu.Lock()
		defer g.far.mu.Unlock()
		f.until = g.now()
	})
}

// some is a region: often the primary.
func (g *globe) some() int {
	if g.plan.IntN(4) == 0 {
		return g.primaryOf(0)
	}
	return g.plan.IntN(len(g.worlds))
}

func (g *globe) strikeRegion() {
	x := g.some()
	g.sever(func(a, b int) bool { return a == x || b == x })
}

func (g *globe) strikeOneWay() {
	x, out := g.some(), g.plan.IntN(2) == 0
	g.sever(func(a, b int) bool { return out && a == x || !out && b == x })
}

func (g *globe) strikeApart() { g.sever(func(a, b int) bool { return a != b }) }

func (g *globe) strikeSplit() {
	side := make([]bool, len(g.worlds))
	for i := range side {
		side[i] = g.plan.IntN(2) == 0
	}
	oneWay := g.plan.IntN(3) == 0
	g.sever(func(a, b int) bool { return side[a] != side[b] && (!oneWay || side[a]) })
}

func (g *globe) strikeLink() {
	x, y, both := g.some(), g.some(), g.plan.IntN(2) == 0
	g.sever(func(a, b int) bool { return a == x && b == y || both && a == y && b == x })
}

func (g *globe) strikeLoss() { g.disturb(&g.far.loss, 0.05+0.4*g.plan.Float64()) }

func (g *globe) strikeLate() { g.disturb(&g.far.late, 0.1+0.6*g.plan.Float64()) }

// disturb changes a property of the network between regions for some time.
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
	g.after(g.last(), func() { set(before) })
}

// strikeRules writes other rules, and often more of them soon after.
func (g *globe) strikeRules() {
	g.writes.change(g.plan, g.isBusy)
	w := g.worlds[g.primaryOf(0)]
	w.mu.Lock()
	g.write(w, "other limits")
	w.mu.Unlock()
	if g.plan.IntN(2) == 0 {
		// Who has heard of them may not hear what comes of it.
		g.after(g.chance(0, 3*time.Second), g.strikeRegion)
	}
	if g.plan.IntN(3) == 0 {
		g.after(g.chance(20*time.Millisecond, 3*time.Second), g.strikeRules)
	}
}

// isBusy reports whether subjects of a rule are asked about with a will.
func (g *globe) isBusy(rule string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.busy[rule] > 0
}

// keepBusy counts episodes of a rule.
func (g *globe) keepBusy(rule string, more int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy[rule] += more
}
