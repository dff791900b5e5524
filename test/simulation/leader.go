package simulation

import (
	"time"

	"github.com/rlnode/rlnode/ring"
)

// Times of the control plane, those of packages authority, gossip and cluster.
const (
	authorityTime = 2 * time.Second
	renewal       = authorityTime / 8
	// endingTime is the time between the leader's last answer to a node and its end.
	endingTime = authorityTime + authorityTime/100
	maxVoters  = 5
	// ringPause is how long a ring change waits for further changes of members.
	ringPause = 200 * time.Millisecond
)

// leadership is who leads. The first nodes are the voters.
type leadership struct {
	index int // −1 without a leader
	term  int // counts elections, won or lost
}

func (w *World) voters() int { return min(maxVoters, w.config.Nodes) }

// randomDelay draws a time from a to b with the control plane's generator.
func (w *World) randomDelay(a, b time.Duration) time.Duration {
	return a + time.Duration(w.control.Int64N(int64(b-a)))
}

// updateContacts determines which nodes reach the leader, after a change of the network or the nodes. The caller holds
// the mutex.
func (w *World) updateContacts() {
	now := w.now()
	w.net.dropOldFaults(now)
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
		w.leaderless = w.ledger.beginTrouble(now, nil)
	}

	if w.leader.index < 0 {
		for _, n := range w.nodes {
			w.loseContact(n)
			w.relapse(n)
			// It may now reach nodes whose authority still lasts: count all as cut off from now on.
			w.ledger.addCut(n, n.cutAt, now)
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
			w.joinCut(n, label)
		case !n.contact && n.healedAt == 0:
			w.regain(n)
		}
	}
}

// elect makes a voter of the majority the leader after a delay, unless the network changes before.
func (w *World) elect(label []int, majority int) {
	w.leader.term++
	term := w.leader.term
	wait := w.randomDelay(400*time.Millisecond, 1500*time.Millisecond)
	if w.control.IntN(8) == 0 {
		wait = w.randomDelay(1500*time.Millisecond, 5*time.Second)
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
			n.unanswered = false
			if label[n.index] != majority || n.stuck {
				w.scheduleEnding(n)
			}
		}

		if w.leaderless >= 0 {
			w.ledger.endTrouble(w.leaderless, w.now())
			w.leaderless = -1
		}

		w.updateContacts()
	})
}

// loseContact records that a node no longer reaches the leader, or that there is none.
func (w *World) loseContact(n *node) {
	if !n.contact {
		return
	}

	now := w.now()
	n.contact = false
	n.contactChanges++
	n.authorityUntil = now - w.randomDelay(0, renewal) + authorityTime
	n.cutAt = now
	lost := n.contactChanges
	w.after(n.authorityUntil-now, func() {
		if (n.contactChanges == lost || !n.contact) && n.process.alive {
			n.process.countUnacked() // it stops deciding now
		}
	})

	if w.leader.index >= 0 {
		w.scheduleEnding(n)
	}
}

// joinCut updates a node that is cut off: it may now reach others whose authority lasts longer.
func (w *World) joinCut(n *node, label []int) {
	last := n.cutAt
	for i, other := range w.nodes {
		if label[i] == label[n.index] && !other.contact {
			last = max(last, other.cutAt)
		}
	}
	if last > n.cutAt {
		w.ledger.addCut(n, n.cutAt, w.now())
		n.cutAt = last
	}
}

// relapse records that a node was cut off again before it regained contact.
func (w *World) relapse(n *node) {
	if n.contact || n.healedAt == 0 {
		return
	}
	w.ledger.addCut(n, n.cutAt, n.healedAt)
	n.cutAt, n.healedAt = w.now(), 0
	n.contactChanges++
	if w.leader.index >= 0 {
		w.scheduleEnding(n)
	}
}

// regain starts a node's return to the leader: it applies the agreed state and asks for authority.
func (w *World) regain(n *node) {
	n.contactChanges++
	n.healedAt = w.now()
	lost := n.contactChanges
	w.after(w.randomDelay(10*time.Millisecond, redial), func() { w.completeContact(n, lost) })
}

func (w *World) completeContact(n *node, lost int) {
	p := n.process
	if n.contactChanges != lost || n.contact || w.leader.index < 0 || !p.alive || n.stuck {
		return
	}

	if w.agreed.boots[n.index] != p.boot {
		next := w.agreed.successor()
		next.boots[n.index] = p.boot
		w.commit(next)
	}

	p.applyAgreed(w.agreed)
	if n.unanswered {
		w.after(100*time.Millisecond, func() { w.completeContact(n, lost) })
		return
	}

	if p.rules.Index < w.state.Index {
		p.applyRules(w.state)
		w.after(time.Millisecond, func() { w.completeContact(n, lost) })
		return
	}

	n.contact, p.ready = true, true
	w.ledger.addCut(n, n.cutAt, n.healedAt)
	n.healedAt, n.wasStuck = 0, false
	w.scheduleRingChange()
}

// scheduleEnding ends a node that stays away. After gossip has declared it failed, the leader stops answering it; when
// its authority has certainly run out, the leader ends it.
func (w *World) scheduleEnding(n *node) {
	lost, term := n.contactChanges, w.leader.term
	w.after(w.randomDelay(300*time.Millisecond, 1500*time.Millisecond), func() {
		if n.contactChanges != lost || w.leader.term != term || w.leader.index < 0 || w.agreed.to.Rank(n.id) < 0 && w.agreed.from.Rank(n.id) < 0 {
			return
		}

		n.unanswered = true
		w.after(endingTime, func() {
			if w.leader.term != term || w.leader.index < 0 {
				return // a new leader starts over
			}
			n.unanswered = false
			w.ledger.Counts.Ended++
			w.commit(w.agreed.withoutNode(n.index))
			w.scheduleRingChange()
		})
	})
}

// commit makes next the agreed state. Nodes in contact with the leader apply it after some time.
func (w *World) commit(next *agreed) {
	w.agreed = next

	for _, n := range w.nodes {
		if !n.contact {
			continue
		}
		w.after(w.randomDelay(time.Millisecond, 60*time.Millisecond), func() {
			if n.contact && n.process.alive {
				n.process.applyAgreed(next)
			}
		})
	}

	if next.from != next.to {
		w.scheduleSettling()
	}
}

// scheduleRingChange makes the leader compare the ring with the members after a pause, and change it if necessary.
func (w *World) scheduleRingChange() {
	w.after(ringPause+w.randomDelay(0, ringPause), func() {
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
			wanted, err = newRing(w.region, w.config.Nodes, -1)
		case absent == 1 && w.nodes[out].leaving:
			wanted, err = newRing(w.region, w.config.Nodes, out)
		}

		if err != nil || wanted.Equal(a.to) {
			return
		}

		next := a.successor()
		next.epoch++
		next.to = wanted
		w.ledger.Counts.Rings++
		w.commit(next)
	})
}

// scheduleSettling checks repeatedly whether all partitions have moved and all standbys are up to date, and then settles
// the ring.
func (w *World) scheduleSettling() {
	if w.settling {
		return
	}

	w.settling = true
	w.after(ringPause, func() {
		w.settling = false
		a := w.agreed
		switch {
		case a.from == a.to:
		case w.leader.index < 0 || !w.isSettled(a):
			w.scheduleSettling()
		default:
			next := a.successor()
			next.from = next.to
			w.commit(next)
			w.scheduleRingChange()
		}
	})
}

func (w *World) isSettled(a *agreed) bool {
	for p := range ring.Partitions {
		h := w.holders[p]
		if idIn(w.region, h.node) != a.to.Owner(p) || !h.isValid(a) {
			return false
		}
		owner := w.nodes[h.node].process
		if owner.view != a || owner.phases[p] != held || !owner.isSynced(p, indexOf(a.to.Standby(p))) {
			return false
		}
	}
	return true
}
