package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/ring"
)

// subjectState is how far a check has got with a subject:
//
//   - routeSubject chooses a way: stateHere, or what chooseNode says;
//   - addToAsk sets stateAwaitReply;
//   - markDecided sets stateDecided;
//   - takeHere, acceptAnswer and actAsStandby set stateOpen again if the subject
//     was not decided.
type subjectState uint8

const (
	stateOpen     subjectState = iota // not known yet
	stateHere                         // decide it from the counters here
	stateAskOwner                     // ask another node as the owner
	// stateAskStandby: ask another node as the standby or as the node that handed
	// the partition over.
	stateAskStandby
	stateActAsStandby // decide it as the standby or as the node that handed the partition over
	stateAlone        // decide it alone
	stateAwaitReply   // the question is in flight
	stateDecided
)

// candidates tracks which nodes have been asked to decide a subject, and which
// to ask next: first the node that another node named last, then the owner, the
// other side of a move, and the standby.
type candidates struct {
	keySubject     uint64
	route          partitions.Route // as of the last locate
	tried          []ring.NodeID    // nodes not to ask again: they can't be reached or can't decide
	unreached      []ring.NodeID    // those of tried that could not be reached
	redirected     []ring.NodeID    // nodes that named another one
	hint           ring.NodeID      // the node that the last of redirected named
	triedAsStandby bool             // this node tried to decide as the standby
	standbyAsked   bool             // another node was asked to decide as the standby
	attempts       int              // at most maxAttempts
}

// locate returns where the subject is decided now. Pending means that it will
// be decided here or elsewhere once the hand-off is over. locate looks at the
// gate first, which takes less time than Route: if the gate is open, Route says
// Here, too.
func (cs *candidates) locate(l *Limiter) partitions.Location {
	p := ring.PartitionOf(cs.keySubject)
	mayBeHere := cs.attempts < maxAttempts && !slices.Contains(cs.tried, l.cluster.Self)
	if mayBeHere && l.table.IsOpen(p) {
		return partitions.Here
	}
	// If location is Here, the gate has just opened.
	cs.route = l.cluster.Ownership.Route(p)
	if location := cs.route.Location; mayBeHere || location == partitions.Elsewhere {
		return location
	}

	// The attempts are used up, or this node can't decide: only others may.
	return partitions.Nowhere
}

// chooseNext returns how a subject that is not decided here is decided next,
// and by which node. The standby comes last, and after it this node, alone.
func (cs *candidates) chooseNext(cp *clusterPart) (subjectState, ring.NodeID) {
	for _, id := range [...]ring.NodeID{cs.hint, cs.route.Owner, cs.route.OtherSide} {
		if id != cp.Self && cs.checkReachable(cp, id) {
			return stateAskOwner, id
		}
	}

	// During a move, the node that handed the partition over keeps a copy.
	other := cs.route.OtherSide
	if !other.IsZero() && slices.Contains(cs.tried, cs.route.Owner) {
		if other == cp.Self && !cs.triedAsStandby {
			return stateActAsStandby, other
		}
		if other != cp.Self && !cs.standbyAsked && cp.Peers.Reachable(other) {
			return stateAskStandby, other
		}
	}

	standby := cs.route.Standby
	if standby == cp.Self && !cs.triedAsStandby && !cs.isExcluded(standby) {
		return stateActAsStandby, standby
	}
	if standby != cp.Self && cs.checkReachable(cp, standby) {
		return stateAskStandby, standby
	}
	return stateAlone, ring.NodeID{}
}

// checkReachable reports whether id can be reached and has not been tried yet. It
// marks a node that can't be reached as tried, as if a call had failed.
func (cs *candidates) checkReachable(cp *clusterPart, id ring.NodeID) bool {
	if id.IsZero() || cs.isExcluded(id) {
		return false
	}
	if cp.Peers.Reachable(id) {
		return true
	}
	cs.markUnreached(id) // the call would fail at once
	cp.counts.failed.Add(1)
	return false
}

// markUnreached marks id as tried because it can't be reached at the moment.
func (cs *candidates) markUnreached(id ring.NodeID) {
	cs.markTried(id)
	cs.unreached = append(cs.unreached, id)
}

// recheckUnreached unmarks the unreached nodes that can be reached again, and
// reports whether there are any.
func (cs *candidates) recheckUnreached(cp *clusterPart) (found bool) {
	cs.unreached = slices.DeleteFunc(cs.unreached, func(id ring.NodeID) bool {
		if !cp.Peers.Reachable(id) {
			return false
		}
		cs.unmarkTried(id)
		found = true
		return true
	})
	return found
}

// unsureNode returns a node that may decide the subject, and of which it is not
// known yet whether a path leads to it; zero if there is none.
func (cs *candidates) unsureNode(cp *clusterPart) ring.NodeID {
	for _, id := range [...]ring.NodeID{cs.route.Owner, cs.route.OtherSide, cs.route.Standby} {
		if !id.IsZero() && id != cp.Self && cp.Peers.PathUnsure(id) {
			return id
		}
	}
	return ring.NodeID{}
}

func (cs *candidates) isExcluded(id ring.NodeID) bool {
	return slices.Contains(cs.tried, id) || slices.Contains(cs.redirected, id)
}

func (cs *candidates) markTried(id ring.NodeID) {
	if !cs.isExcluded(id) {
		cs.tried = append(cs.tried, id)
	}
}

func (cs *candidates) unmarkTried(id ring.NodeID) {
	cs.tried = slices.DeleteFunc(cs.tried, func(t ring.NodeID) bool { return t == id })
}
