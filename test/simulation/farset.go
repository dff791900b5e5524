package simulation

import (
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// removalDelay is the time after which nothing of a closed region is in transit any more.
const removalDelay = 5 * time.Second

// changeRegionSet opens a closed region, which then joins, or closes a region and removes it for good.
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

// openRegion opens a region. One that was removed starts from an empty state, as another cluster of that name; one that
// is not yet removed, or never joined, just continues. The caller holds the region's mutex.
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

// removeRegion removes a region at the primary.
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
		// The primary region has no leader, or the region's entry is not committed yet.
		g.after(removalDelay, func() { g.removeRegion(w, closing) })
	}
}

// changePrimary makes another region the primary. It tells the regions one after another.
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

	// Tell the old primary first, as the documentation tells operators to do: two primaries at once would each write
	// their own versions.
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

// holdNodeBehind gives a node no authority and no entries, although it reaches all others.
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
