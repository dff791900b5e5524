package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/ring"
)

// way is how a subject is decided.
type way uint8

const (
	wayOpen    way = iota // not known yet
	wayHere               // from the counters here
	wayAsk                // another node is asked, as the owner
	wayStandby            // another node is asked, as the standby, or as the one that has handed over to the owner
	wayAct                // this node is that one
	wayAlone              // by this node alone
	wayAsked              // the answer is waited for
	wayDecided
)

// trail leads from one node to the next until one decides the subject: the node named last, the owner, the other end of a move, the
// standby.
type trail struct {
	hi     uint64
	route  partitions.Route // as it was at the last look
	tried  []ring.NodeID    // can't be asked, or may not decide
	passed []ring.NodeID    // named another one
	hint   ring.NodeID      // named by the last of these
	acted  bool             // this node could not decide as the standby
	leant  bool             // another one was asked to
	turns  int              // at most maxTurns
}

// look returns where the subject is decided now. Held: here. Frozen: here or elsewhere, after the hand-off.
func (t *trail) look(l *Limiter) partitions.Place {
	p := partitionOf(t.hi)
	mine := t.turns < maxTurns && !slices.Contains(t.tried, l.member.Self)
	if mine && l.table.IsOpen(p) {
		return partitions.Held
	}
	t.route = l.member.Ownership.Route(p)
	if place := t.route.Place; mine || place == partitions.Elsewhere {
		return place // Held: the gate has just been opened
	}
	return partitions.Nowhere
}

// next is the node to ask next if the subject is not decided here. The standby comes last, if it may be asked at all.
func (t *trail) next(m *member, standby bool) (way, ring.NodeID) {
	for _, id := range [...]ring.NodeID{t.hint, t.route.Owner, t.route.Other} {
		if id != m.Self && t.opens(m, id) {
			return wayAsk, id
		}
	}
	// While the partition moves, the node that has handed it over keeps a copy.
	other, moving := t.route.Other, !t.route.Other.IsZero() && slices.Contains(t.tried, t.route.Owner)
	switch id := t.route.Standby; {
	case !standby:
	case moving && other == m.Self && !t.acted:
		return wayAct, other
	case moving && other != m.Self && !t.leant && m.Peers.Reachable(other):
		return wayStandby, other
	case id == m.Self:
		if !t.acted && !t.hasTried(id) {
			return wayAct, id
		}
	case t.opens(m, id):
		return wayStandby, id
	}
	return wayAlone, ring.NodeID{}
}

// opens reports whether id can be reached and was not asked before.
func (t *trail) opens(m *member, id ring.NodeID) bool {
	if id.IsZero() || t.hasTried(id) {
		return false
	}
	if m.Peers.Reachable(id) {
		return true
	}
	t.try(id) // the call would fail at once
	m.figures.failed.Add(1)
	return false
}

func (t *trail) hasTried(id ring.NodeID) bool {
	return slices.Contains(t.tried, id) || slices.Contains(t.passed, id)
}

func (t *trail) try(id ring.NodeID) {
	if !t.hasTried(id) {
		t.tried = append(t.tried, id)
	}
}

func (t *trail) untry(id ring.NodeID) {
	t.tried = slices.DeleteFunc(t.tried, func(t ring.NodeID) bool { return t == id })
}

// pass records that id named another node.
func (t *trail) pass(id, hint ring.NodeID) {
	t.untry(id)
	t.passed, t.hint = append(t.passed, id), hint
}
