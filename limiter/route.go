package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/ring"
)

// way is how a subject is decided.
type way uint8

const (
	wayOpen         way = iota // not known yet
	wayHere                    // from the counters here
	wayAsk                     // by another node, asked as the owner
	wayAskStandby              // by another node, asked as the standby or as the node that handed over to the owner
	wayActAsStandby            // by this node, as the standby or as the node that handed over
	wayAlone                   // by this node alone
	wayAsked                   // asked; the answer is under way
	wayDecided
)

// candidates leads from node to node until one decides the subject: the node named last, the owner, the other end of a move,
// the standby.
type candidates struct {
	hi           uint64
	route        partitions.Route // when last located
	tried        []ring.NodeID    // nodes that can't be asked or can't decide
	redirected   []ring.NodeID    // nodes that named another one
	hint         ring.NodeID      // the node that the last of these named
	acted        bool             // this node tried to decide as the standby
	standbyAsked bool             // another node was asked to decide as the standby
	turns        int              // at most maxTurns
}

// locate returns where the subject is decided now. Frozen means here or elsewhere, after the hand-off.
func (t *candidates) locate(l *Limiter) partitions.Place {
	p := ring.PartitionOf(t.hi)
	mine := t.turns < maxTurns && !slices.Contains(t.tried, l.member.Self)
	if mine && l.table.IsOpen(p) {
		return partitions.Here
	}
	t.route = l.member.Ownership.Route(p)
	if place := t.route.Place; mine || place == partitions.Elsewhere {
		return place // Here: the gate has just opened
	}
	return partitions.Nowhere
}

// next returns the node to ask next if the subject is not decided here. The standby comes last.
func (t *candidates) next(m *member) (way, ring.NodeID) {
	for _, id := range [...]ring.NodeID{t.hint, t.route.Owner, t.route.Other} {
		if id != m.Self && t.usable(m, id) {
			return wayAsk, id
		}
	}
	// During a move, the node that handed the partition over keeps a copy.
	other, moving := t.route.Other, !t.route.Other.IsZero() && slices.Contains(t.tried, t.route.Owner)
	switch id := t.route.Standby; {
	case moving && other == m.Self && !t.acted:
		return wayActAsStandby, other
	case moving && other != m.Self && !t.standbyAsked && m.Peers.Reachable(other):
		return wayAskStandby, other
	case id == m.Self:
		if !t.acted && !t.hasTried(id) {
			return wayActAsStandby, id
		}
	case t.usable(m, id):
		return wayAskStandby, id
	}
	return wayAlone, ring.NodeID{}
}

// usable reports whether id can be reached and has not been tried yet.
func (t *candidates) usable(m *member, id ring.NodeID) bool {
	if id.IsZero() || t.hasTried(id) {
		return false
	}
	if m.Peers.Reachable(id) {
		return true
	}
	t.markTried(id) // the call would fail at once
	m.figures.failed.Add(1)
	return false
}

func (t *candidates) hasTried(id ring.NodeID) bool {
	return slices.Contains(t.tried, id) || slices.Contains(t.redirected, id)
}

func (t *candidates) markTried(id ring.NodeID) {
	if !t.hasTried(id) {
		t.tried = append(t.tried, id)
	}
}

func (t *candidates) unmarkTried(id ring.NodeID) {
	t.tried = slices.DeleteFunc(t.tried, func(t ring.NodeID) bool { return t == id })
}

// redirect records that id named another node.
func (t *candidates) redirect(id, hint ring.NodeID) {
	t.unmarkTried(id)
	t.redirected, t.hint = append(t.redirected, id), hint
}
