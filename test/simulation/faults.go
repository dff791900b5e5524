package simulation

import (
	"time"
)

// aftermath is the time after a fault within which everything recovers: G4 and G5 promise five seconds, and a ring change
// may follow.
const aftermath = 5 * time.Second

// nodeFault is a kind of fault inside a region.
type nodeFault struct {
	name   string
	weight int
	inject func(*World)
}

var nodeFaults = []nodeFault{
	{"crash", 4, (*World).crashNode},
	{"quick crash", 2, (*World).crashNodeBriefly},
	{"isolated node", 4, (*World).isolateNode},
	{"split", 3, (*World).splitNodes},
	{"broken link", 4, (*World).cutLink},
	{"node cut off one way", 2, (*World).cutOneWay},
	{"slow node", 2, (*World).slowNode},
	{"leave", 1, (*World).leaveRing},
	{"leader crash", 1, (*World).crashLeader},
	{"three-way split", 1, (*World).splitThreeWays},
	{"owner and standby crash", 1, (*World).crashOwnerAndStandby},
}

// planNext schedules the next fault.
func (w *World) planNext() {
	w.after(w.randomBetween(w.config.Calm/2, 2*w.config.Calm), func() {
		if w.now() > w.config.Duration-2*time.Second {
			return
		}

		total := 0
		for _, m := range nodeFaults {
			total += m.weight
		}

		dice := w.plan.IntN(total)
		for _, m := range nodeFaults {
			if dice -= m.weight; dice < 0 {
				if w.ledger.Counts.Faults == nil {
					w.ledger.Counts.Faults = map[string]int{}
				}
				w.ledger.Counts.Faults[m.name]++
				m.inject(w)
				break
			}
		}

		w.planNext()
	})
}

// randomBetween draws a time from a to b with the plan's generator.
func (w *World) randomBetween(a, b time.Duration) time.Duration {
	return a + time.Duration(w.plan.Int64N(int64(b-a)))
}

// randomNode draws a node; owners of subjects under load are more likely.
func (w *World) randomNode() int {
	if w.plan.IntN(3) > 0 {
		return w.holders[w.ledger.Subjects[w.hot[w.plan.IntN(len(w.hot))]].Partition].node
	}
	return w.plan.IntN(w.config.Nodes)
}

// faultLength draws the length of a fault: about half of them are shorter than authority lasts.
func (w *World) faultLength() time.Duration {
	if w.plan.IntN(2) == 0 {
		return w.randomBetween(100*time.Millisecond, 3*time.Second)
	}
	return w.randomBetween(3*time.Second, 20*time.Second)
}

// cutNodes cuts links between nodes for a time.
func (w *World) cutNodes(length time.Duration, nodes map[int]bool, blocks func(a, b int) bool) {
	f := w.net.addFault(w.now(), false, blocks)
	w.failCalls(f)
	w.updateContacts()
	trouble := w.ledger.beginTrouble(f.from, nodes)
	w.after(length, func() {
		f.until = w.now()
		w.ledger.endTrouble(trouble, f.until)
		w.updateContacts()
	})
}

func (w *World) isolateNode() {
	x := w.randomNode()
	w.cutNodes(w.faultLength(), map[int]bool{x: true}, func(a, b int) bool { return a == x || b == x })
}

func (w *World) cutOneWay() {
	x, out := w.randomNode(), w.plan.IntN(2) == 0
	w.cutNodes(w.faultLength(), map[int]bool{x: true}, func(a, b int) bool { return out && a == x || !out && b == x })
}

func (w *World) splitNodes() {
	side := make([]bool, w.config.Nodes)
	part := 0.02 + 0.4*w.plan.Float64()
	nodes := map[int]bool{}
	for i := range side {
		side[i] = w.plan.Float64() < part
		nodes[i] = true
	}
	w.cutNodes(w.faultLength(), nodes, func(a, b int) bool { return side[a] != side[b] })
}

func (w *World) splitThreeWays() {
	side := make([]int, w.config.Nodes)
	for i := range side {
		side[i] = w.plan.IntN(3)
	}
	for v := range w.voters() {
		side[v] = v % 3
	}
	w.cutNodes(w.faultLength(), nil, func(a, b int) bool { return side[a] != side[b] })
}

func (w *World) cutLink() {
	x := w.randomNode()
	y := w.randomNode()
	if w.plan.IntN(2) == 0 {
		y = indexOf(w.agreed.from.Standby(w.ledger.Subjects[w.hot[w.plan.IntN(len(w.hot))]].Partition))
	}
	if x == y || y < 0 {
		return
	}
	both := w.plan.IntN(2) == 0
	w.cutNodes(w.faultLength(), map[int]bool{x: true, y: true}, func(a, b int) bool { return a == x && b == y || both && a == y && b == x })
}

func (w *World) slowNode() {
	x := w.randomNode()
	w.net.slow[x] = w.randomBetween(5*time.Millisecond, 150*time.Millisecond)
	trouble := w.ledger.beginTrouble(w.now(), map[int]bool{x: true})
	w.after(w.faultLength(), func() {
		w.net.slow[x] = 0
		w.ledger.endTrouble(trouble, w.now())
	})
}

// crash kills a node's process and starts another one later.
func (w *World) crash(x int, down time.Duration, reset bool) {
	if x < 0 {
		return // a ring of one has no standby
	}

	n := w.nodes[x]
	p := n.process
	if !p.alive || n.leaving {
		return
	}

	p.countUnacked()
	p.alive = false
	f := w.net.addFault(w.now(), reset, func(a, b int) bool { return a == x || b == x })
	w.failCalls(f)
	trouble := w.ledger.beginTrouble(f.from, map[int]bool{x: true})
	w.updateContacts()
	w.group.Go(p.closeLimiter)
	w.after(down, func() {
		f.until = w.now()
		w.ledger.endTrouble(trouble, f.until)
		if err := w.boot(n); err != nil {
			w.ledger.Fail("start node %d: %v", x, err)
			return
		}
		n.authorityUntil = 0
		w.updateContacts()
	})
}

func (w *World) crashNode() {
	w.crash(w.randomNode(), w.randomBetween(3*time.Second, 25*time.Second), w.plan.IntN(2) == 0)
}

func (w *World) crashNodeBriefly() {
	w.crash(w.randomNode(), w.randomBetween(100*time.Millisecond, time.Second), w.plan.IntN(2) == 0)
}

func (w *World) crashLeader() {
	if w.leader.index >= 0 {
		w.crash(w.leader.index, w.randomBetween(time.Second, 10*time.Second), true)
	}
}

func (w *World) crashOwnerAndStandby() {
	q := w.ledger.Subjects[w.hot[w.plan.IntN(len(w.hot))]].Partition
	x, y := w.holders[q].node, indexOf(w.agreed.from.Standby(q))
	w.crash(x, w.randomBetween(3*time.Second, 10*time.Second), true)
	w.crash(y, w.randomBetween(3*time.Second, 10*time.Second), true)
}

// leaveRing takes a node out of the ring in good order, and later back in. The same few nodes leave, because building
// rings of many members takes long.
func (w *World) leaveRing() {
	const leavers, bound = 3, 300
	n := w.nodes[w.config.Nodes-1-w.plan.IntN(leavers)]

	for _, other := range w.nodes {
		if other.leaving {
			return
		}
	}

	if w.config.Nodes > bound || n.index < w.voters() || !n.contact {
		return
	}

	n.leaving = true
	leases := n.process.limiter.UseLeases
	w.schedule.at(w.now(), func() { leases(false) }) // outside of the mutex, which UseLeases takes to look up routes
	w.scheduleRingChange()
	w.after(w.randomBetween(3*time.Second, 8*time.Second), func() { w.stopLeaver(n) })
}

// stopLeaver stops the process of a node that has handed everything over, and starts another one.
func (w *World) stopLeaver(n *node) {
	p := n.process
	gone := w.agreed.from == w.agreed.to && w.agreed.to.Rank(n.id) < 0 && p.alive && n.contact && p.view == w.agreed
	if !gone || len(p.heldPartitions) > 0 {
		n.leaving = false // another fault interfered: the node stays
		w.schedule.at(w.now(), func() { p.limiter.UseLeases(true) })
		w.scheduleRingChange()
		return
	}

	p.alive = false
	f := w.net.addFault(w.now(), true, func(a, b int) bool { return a == n.index || b == n.index })
	w.failCalls(f)
	w.updateContacts()
	w.group.Go(p.closeLimiter)
	w.ledger.Counts.Faults["left"]++
	w.after(w.randomBetween(time.Second, 4*time.Second), func() {
		f.until = w.now()
		if err := w.boot(n); err != nil {
			w.ledger.Fail("start node %d: %v", n.index, err)
			return
		}
		n.leaving, n.authorityUntil = false, 0
		w.updateContacts()
	})
}
