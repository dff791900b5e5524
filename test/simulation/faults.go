package simulation

import (
	"time"
)

// aftermath is how long after a fault all is as before: G4 and G5 promise five seconds, and a ring change may follow.
const aftermath = 5 * time.Second

// misfortune is a kind of fault.
type misfortune struct {
	name   string
	weight int
	strike func(*World)
}

var misfortunes = []misfortune{
	{"crash", 4, (*World).strikeCrash},
	{"quick crash", 2, (*World).strikeQuickCrash},
	{"isolated node", 4, (*World).strikeIsolated},
	{"split", 3, (*World).strikeSplit},
	{"broken link", 4, (*World).strikeLink},
	{"deaf or dumb node", 2, (*World).strikeOneWay},
	{"slow node", 2, (*World).strikeSlow},
	{"leave", 1, (*World).strikeLeave},
	{"leader", 1, (*World).strikeLeader},
	{"three ways", 1, (*World).strikeThreeWays},
	{"owner and standby", 1, (*World).strikeBoth},
}

// brew plans the next misfortune.
func (w *World) brew() {
	w.after(w.chance(w.cfg.Calm/2, 2*w.cfg.Calm), func() {
		if w.now() > w.cfg.Duration-2*time.Second {
			return
		}
		total := 0
		for _, m := range misfortunes {
			total += m.weight
		}
		dice := w.plan.IntN(total)
		for _, m := range misfortunes {
			if dice -= m.weight; dice < 0 {
				if w.ledger.Counts.Faults == nil {
					w.ledger.Counts.Faults = map[string]int{}
				}
				w.ledger.Counts.Faults[m.name]++
				m.strike(w)
				break
			}
		}
		w.brew()
	})
}

// chance is a time from a to b, by the plan's dice.
func (w *World) chance(a, b time.Duration) time.Duration {
	return a + time.Duration(w.plan.Int64N(int64(b-a)))
}

// someone is a node: often one that owns a subject that is asked about much.
func (w *World) someone() int {
	if w.plan.IntN(3) > 0 {
		return w.holders[w.ledger.Subjects[w.hot[w.plan.IntN(len(w.hot))]].Partition].node
	}
	return w.plan.IntN(w.cfg.Nodes)
}

// last is how long a fault lasts: about as often shorter than authority as longer.
func (w *World) last() time.Duration {
	if w.plan.IntN(2) == 0 {
		return w.chance(100*time.Millisecond, 3*time.Second)
	}
	return w.chance(3*time.Second, 20*time.Second)
}

// sever makes a fault of the network for some time.
func (w *World) sever(length time.Duration, nodes map[int]bool, blocks func(a, b int) bool) {
	f := w.net.begin(w.now(), false, blocks)
	w.doom(f)
	w.reassess()
	trouble := w.ledger.trouble(f.from, nodes)
	w.after(length, func() {
		f.until = w.now()
		w.ledger.over(trouble, f.until)
		w.reassess()
	})
}

func (w *World) strikeIsolated() {
	x := w.someone()
	w.sever(w.last(), map[int]bool{x: true}, func(a, b int) bool { return a == x || b == x })
}

func (w *World) strikeOneWay() {
	x, out := w.someone(), w.plan.IntN(2) == 0
	w.sever(w.last(), map[int]bool{x: true}, func(a, b int) bool { return out && a == x || !out && b == x })
}

func (w *World) strikeSplit() {
	side := make([]bool, w.cfg.Nodes)
	part := 0.02 + 0.4*w.plan.Float64()
	nodes := map[int]bool{}
	for i := range side {
		side[i] = w.plan.Float64() < part
		nodes[i] = true
	}
	w.sever(w.last(), nodes, func(a, b int) bool { return side[a] != side[b] })
}

func (w *World) strikeThreeWays() {
	side := make([]int, w.cfg.Nodes)
	for i := range side {
		side[i] = w.plan.IntN(3)
	}
	for v := range w.voters() {
		side[v] = v % 3
	}
	w.sever(w.last(), nil, func(a, b int) bool { return side[a] != side[b] })
}

func (w *World) strikeLink() {
	x := w.someone()
	y := w.someone()
	if w.plan.IntN(2) == 0 {
		y = indexOf(w.agreed.from.Standby(w.ledger.Subjects[w.hot[w.plan.IntN(len(w.hot))]].Partition))
	}
	if x == y || y < 0 {
		return
	}
	both := w.plan.IntN(2) == 0
	w.sever(w.last(), map[int]bool{x: true, y: true}, func(a, b int) bool { return a == x && b == y || both && a == y && b == x })
}

func (w *World) strikeSlow() {
	x := w.someone()
	w.net.slow[x] = w.chance(5*time.Millisecond, 150*time.Millisecond)
	trouble := w.ledger.trouble(w.now(), map[int]bool{x: true})
	w.after(w.last(), func() {
		w.net.slow[x] = 0
		w.ledger.over(trouble, w.now())
	})
}

// crash kills a node's process, and starts another one later.
func (w *World) crash(x int, down time.Duration, reset bool) {
	if x < 0 {
		return // the standby of a ring of one
	}
	n := w.nodes[x]
	p := n.process
	if !p.alive || n.leaving {
		return
	}
	p.reckon()
	p.alive = false
	f := w.net.begin(w.now(), reset, func(a, b int) bool { return a == x || b == x })
	w.doom(f)
	trouble := w.ledger.trouble(f.from, map[int]bool{x: true})
	w.reassess()
	w.group.Go(p.finish)
	w.after(down, func() {
		f.until = w.now()
		w.ledger.over(trouble, f.until)
		if err := w.boot(n); err != nil {
			w.ledger.Fail("start node %d: %v", x, err)
			return
		}
		n.until = 0
		w.reassess()
	})
}

func (w *World) strikeCrash() {
	w.crash(w.someone(), w.chance(3*time.Second, 25*time.Second), w.plan.IntN(2) == 0)
}

func (w *World) strikeQuickCrash() {
	w.crash(w.someone(), w.chance(100*time.Millisecond, time.Second), w.plan.IntN(2) == 0)
}

func (w *World) strikeLeader() {
	if w.leader.index >= 0 {
		w.crash(w.leader.index, w.chance(time.Second, 10*time.Second), true)
	}
}

func (w *World) strikeBoth() {
	q := w.ledger.Subjects[w.hot[w.plan.IntN(len(w.hot))]].Partition
	x, y := w.holders[q].node, indexOf(w.agreed.from.Standby(q))
	w.crash(x, w.chance(3*time.Second, 10*time.Second), true)
	w.crash(y, w.chance(3*time.Second, 10*time.Second), true)
}

// strikeLeave takes a node out of the ring, in good order, and back in. Only one in so many leaves, since tables of many
// members take long to make.
func (w *World) strikeLeave() {
	const leavers, bound = 3, 300
	n := w.nodes[w.cfg.Nodes-1-w.plan.IntN(leavers)]
	for _, other := range w.nodes {
		if other.leaving {
			return
		}
	}
	if w.cfg.Nodes > bound || n.index < w.voters() || !n.contact {
		return
	}
	n.leaving = true
	leases := n.process.limiter.UseLeases
	w.schedule.at(w.now(), func() { leases(false) }) // it asks for routes, which takes the mutex
	w.reshape()
	w.after(w.chance(3*time.Second, 8*time.Second), func() { w.left(n) })
}

// left stops the process of a node that has nothing left to hand over, and starts another one.
func (w *World) left(n *node) {
	p := n.process
	gone := w.agreed.from == w.agreed.to && w.agreed.to.Rank(n.id) < 0 && p.alive && n.contact && p.view == w.agreed
	if !gone || len(p.mine) > 0 {
		n.leaving = false // something else went wrong meanwhile: it stays
		w.schedule.at(w.now(), func() { p.limiter.UseLeases(true) })
		w.reshape()
		return
	}
	p.alive = false
	f := w.net.begin(w.now(), true, func(a, b int) bool { return a == n.index || b == n.index })
	w.doom(f)
	w.reassess()
	w.group.Go(p.finish)
	w.ledger.Counts.Faults["left"]++
	w.after(w.chance(time.Second, 4*time.Second), func() {
		f.until = w.now()
		if err := w.boot(n); err != nil {
			w.ledger.Fail("start node %d: %v", n.index, err)
			return
		}
		n.leaving, n.until = false, 0
		w.reassess()
	})
}
