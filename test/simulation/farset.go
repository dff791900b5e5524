package simulation

import (
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// removalDelay is how long after a region was closed nothing of it is under way any more.
const removalDelay = 5 * time.Second

// changeRegionSet opens a region that was closed, which then joins, or closes one and removes it for good.
func (g *globe) changeRegionSet() {
	x := g.plan.IntN(len(g.worlds))
	w := g.worlds[x]
	if x == g.primaryOf(0) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		g.openRegion(w)
		return
	}
	open := 0
	for _, other := range g.worlds {
		if other == w || !g.removed(other.name) {
			open++
		}
	}
	if open < len(g.worlds)/2 {
		return
	}
	w.closed = true
	w.closings++
	closing := w.closings
	g.after(removalDelay, func() { g.removeRegion(w, closing) })
}

// openRegion lets a region that was removed begin with nothing that it knew, as another cluster of that name; one that nobody has
// removed yet, or that never was there, just goes on. It is called under its mutex.
func (g *globe) openRegion(w *World) {
	w.closed = false
	g.mu.Lock()
	gone := g.removedRegions[w.name]
	delete(g.removedRegions, w.name)
	g.mu.Unlock()
	if !gone {
		return
	}
	fresh := newState()
	w.state, w.reports = fresh, nil
	for _, n := range w.nodes {
		n.disk, n.process.rules = nil, fresh
	}
}

// removeRegion says at the primary that a region is gone.
func (g *globe) removeRegion(w *World, closing int) {
	w.mu.Lock()
	closed := w.closed && w.closings == closing
	w.mu.Unlock()
	primary := g.worlds[g.primaryOf(0)]
	if !closed || primary == w {
		return
	}
	g.mu.Lock()
	g.removedRegions[w.name] = true
	g.mu.Unlock()
	primary.mu.Lock()
	r := primary.propose(agreement.Region{Name: w.name, Remove: true, When: primary.wall()})
	primary.mu.Unlock()
	if r.Err != nil {
		// Nobody leads there, or it was not committed yet.
		g.after(removalDelay, func() { g.removeRegion(w, closing) })
	}
}

// changePrimary has another region become the primary: all are told so, one after another.
func (g *globe) changePrimary() {
	next := g.plan.IntN(len(g.worlds))
	old := g.primaryOf(0)
	w := g.worlds[next]
	w.mu.Lock()
	fit := !w.closed && !w.state.Regions.World.IsZero()
	w.mu.Unlock()
	if !fit || next == old {
		return
	}
	// The old one first, as operators are told to: two at once would each go on with versions of their own.
	g.setPrimary(old, next)
	for r := range g.worlds {
		g.after(g.randomBetween(0, 10*time.Second), func() { g.setPrimary(r, next) })
	}
}

// setPrimary tells a region which one is the primary.
func (g *globe) setPrimary(region, primary int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.primaries[region] = primary
}

// holdNodeBehind has a node get no authority, and apply nothing, while it reaches all others.
func (g *globe) holdNodeBehind() {
	w := g.worlds[g.plan.IntN(len(g.worlds))]
	length := g.randomBetween(500*time.Millisecond, 20*time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[w.randomNode()]
	if n.stuck || n.index == w.leader.index || !n.contact || !n.process.alive {
		return
	}
	n.stuck, n.wasStuck = true, true
	trouble := w.ledger.beginTrouble(w.now(), map[int]bool{n.index: true})
	w.updateContacts()
	w.after(length, func() {
		n.stuck = false
		w.ledger.endTrouble(trouble, w.now())
		w.updateContacts()
	})
}
