package simulation

import (
	"time"

	"github.com/rlnode/rlnode/ring"
)

// Times of the control plane, those of packages authority, gossip and cluster.
const (
	authorityTime = 2 * time.Second
	renewal       = authorityTime / 8
	// endingTime is how long the leader waits before it ends a node that it answers no more.
	endingTime = authorityTime + authorityTime/100
	maxVoters  = 5
	// ringPause is how long a change of members waits for others.
	ringPause = 200 * time.Millisecond
)

// leadership is who leads. A voter is one of the first nodes.
type leadership struct {
	index int // −1: nobody
	term  int // counts elections, held or lost
}

func (w *World) voters() int { return min(maxVoters, w.cfg.Nodes) }

// within is a time from a to b, by the control plane's dice.
func (w *World) within(a, b time.Duration) time.Duration {
	return a + time.Duration(w.control.Int64N(int64(b-a)))
}

// reassess finds out who hears the leader, after the network or the set of nodes has changed. It is called under the
// mutex.
func (w *World) reassess() {
	now := w.now()
	w.net.forget(now)
	label := w.net.components(now, func(i int) bool { return w.nodes[i].process.alive })
	count := map[int]int{}
	for v := range w.voters() {
		count[label[v]]++
	}
	majority := -1
	for l, c := range count {
		if l >= 0 && c > w.voters()/2 {
			majority = l
		}
	}
	if w.leader.index >= 0 && (majority < 0 || label[w.leader.index] != majority) {
		w.leader.index = -1
		w.leader.term++
		w.leaderless = w.ledger.trouble(now, nil)
	}
	if w.leader.index < 0 {
		for _, n := range w.nodes {
			w.loseContact(n)
			w.relapse(n)
			// It may reach others now whose authority lasts a while: all are counted as cut off from now on.
			w.ledger.cut(n, n.cutAt, now)
			n.cutAt = now
		}
		if majority >= 0 {
			w.elect(label, majority)
		}
		return
	}
	for i, n := range w.nodes {
		switch in := label[i] == majority && !n.stuck; {
		case !in && n.contact:
			w.loseContact(n)
		case !in:
			w.relapse(n)
			w.meet(n, label)
		case !n.contact && n.healed == 0:
			w.regain(n)
		}
	}
}

// elect makes one of the voters who hear each other the leader, unless that changes meanwhile.
func (w *World) elect(label []int, majority int) {
	w.leader.term++
	term := w.leader.term
	wait := w.within(400*time.Millisecond, 1500*time.Millisecond)
	if w.control.IntN(8) == 0 {
		wait = w.within(1500*time.Millisecond, 5*time.Second)
	}
	w.after(wait, func() {
		if w.leader.term != term {
			return
		}
		for v := range w.voters() {
			if label[v] == majority && w.nodes[v].process.alive {
				w.leader.index = v
			}
		}
		for _, n := range w.nodes {
			n.barred = false
			if label[n.index] != majority || n.stuck {
				w.consider(n)
			}
		}
		if w.leaderless >= 0 {
			w.ledger.over(w.leaderless, w.now())
			w.leaderless = -1
		}
		w.reassess()
	})
}

// loseContact is for a node that the leader hears no more, or that has no leader.
func (w *World) loseContact(n *node) {
	if !n.contact {
		return
	}
	now := w.now()
	n.contact = false
	n.lost++
	n.until = now - w.within(0, renewal) + authorityTime
	n.cutAt = now
	lost := n.lost
	w.after(n.until-now, func() {
		if (n.lost == lost || !n.contact) && n.process.alive {
			n.process.reckon() // it decides no more
		}
	})
	if w.leader.index >= 0 {
		w.consider(n)
	}
}

// meet is for a node that is cut off: it may have come together with others whose authority lasts longer.
func (w *World) meet(n *node, label []int) {
	last := n.cutAt
	for i, other := range w.nodes {
		if label[i] == label[n.index] && !other.contact {
			last = max(last, other.cutAt)
		}
	}
	if last > n.cutAt {
		w.ledger.cut(n, n.cutAt, w.now())
		n.cutAt = last
	}
}

// relapse is for a node that was about to be heard again, and is not.
func (w *World) relapse(n *node) {
	if n.contact || n.healed == 0 {
		return
	}
	w.ledger.cut(n, n.cutAt, n.healed)
	n.cutAt, n.healed = w.now(), 0
	n.lost++
	if w.leader.index >= 0 {
		w.consider(n)
	}
}

// regain is for a node that hears the leader again, or for the first time: it applies what was agreed, and asks for
// authority.
func (w *World) regain(n *node) {
	n.lost++
	n.healed = w.now()
	lost := n.lost
	w.after(w.within(10*time.Millisecond, redial), func() { w.welcome(n, lost) })
}

func (w *World) welcome(n *node, lost int) {
	p := n.process
	if n.lost != lost || n.contact || w.leader.index < 0 || !p.alive || n.stuck {
		return
	}
	if w.agreed.boots[n.index] != p.boot {
		next := w.agreed.next()
		next.boots[n.index] = p.boot
		w.commit(next)
	}
	p.apply(w.agreed)
	if n.barred {
		w.after(100*time.Millisecond, func() { w.welcome(n, lost) })
		return
	}
	if p.rules.Index < w.state.Index {
		p.honour(w.state)
		w.after(time.Millisecond, func() { w.welcome(n, lost) })
		return
	}
	n.contact, p.ready = true, true
	w.ledger.cut(n, n.cutAt, n.healed)
	n.healed, n.aside = 0, false
	w.reshape()
}

// consider ends a node that stays away: after gossip calls it failed the leader answers it no more, and when what it had
// been given has certainly run out, it ends it.
func (w *World) consider(n *node) {
	lost, term := n.lost, w.leader.term
	w.after(w.within(300*time.Millisecond, 1500*time.Millisecond), func() {
		if n.lost != lost || w.leader.term != term || w.leader.index < 0 || w.agreed.to.Rank(n.id) < 0 && w.agreed.from.Rank(n.id) < 0 {
			return
		}
		n.barred = true
		w.after(endingTime, func() {
			if w.leader.term != term || w.leader.index < 0 {
				return // a new leader begins anew
			}
			n.barred = false
			w.ledger.Counts.Ended++
			w.commit(w.agreed.ended(n.index))
			w.reshape()
		})
	})
}

// commit makes next what is agreed, and has those who hear the leader apply it within some time.
func (w *World) commit(next *agreed) {
	w.agreed = next
	for _, n := range w.nodes {
		if !n.contact {
			continue
		}
		w.after(w.within(time.Millisecond, 60*time.Millisecond), func() {
			if n.contact && n.process.alive {
				n.process.apply(next)
			}
		})
	}
	if next.from != next.to {
		w.settleSoon()
	}
}

// reshape has the leader look, a little later, whether the ring has the right members.
func (w *World) reshape() {
	w.after(ringPause+w.within(0, ringPause), func() {
		a := w.agreed
		if w.leader.index < 0 || a.from != a.to {
			return
		}
		out, absent := -1, 0
		for _, n := range w.nodes {
			if !n.contact || n.leaving {
				out, absent = n.index, absent+1
			}
		}
		wanted, err := a.to, error(nil)
		switch {
		case absent == 0:
			wanted, err = ringOf(w.region, w.cfg.Nodes, -1)
		case absent == 1 && w.nodes[out].leaving:
			wanted, err = ringOf(w.region, w.cfg.Nodes, out)
		}
		if err != nil || wanted.Equal(a.to) {
			return
		}
		next := a.next()
		next.epoch++
		next.to = wanted
		w.ledger.Counts.Rings++
		w.commit(next)
	})
}

// settleSoon looks now and then whether all that moves has moved, and every standby is up to date.
func (w *World) settleSoon() {
	if w.settling {
		return
	}
	w.settling = true
	w.after(ringPause, func() {
		w.settling = false
		a := w.agreed
		switch {
		case a.from == a.to:
		case w.leader.index < 0 || !w.settled(a):
			w.settleSoon()
		default:
			next := a.next()
			next.from = next.to
			w.commit(next)
			w.reshape()
		}
	})
}

func (w *World) settled(a *agreed) bool {
	for p := range ring.Partitions {
		h := w.holders[p]
		if idIn(w.region, h.node) != a.to.Owner(p) || !h.valid(a) {
			return false
		}
		owner := w.nodes[h.node].process
		if owner.view != a || owner.phases[p] != held || !owner.synced(p, indexOf(a.to.Standby(p))) {
			return false
		}
	}
	return true
}
