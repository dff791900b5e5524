package cluster

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

// nodeTracker tracks the other nodes: which ones exist, how far each has
// applied entries, and whether their states differ. It asks for authority, and
// answers such requests while this node leads.
type nodeTracker struct {
	*core
	hashReports hashReports
	// behind lists the nodes that ask for authority but can't be granted it,
	// according to the leader's last answer. It is empty without contact with the
	// leader, and never nil.
	behind atomic.Pointer[[]ring.NodeID]
	// removed is set once the leader has reported that an operator has removed this process.
	removed atomic.Bool

	// mu guards the fields below.
	mu sync.Mutex
	// from requests for authority, while this node leads; bounded by the known nodes
	lastReports map[ring.NodeID]nodeReport
	removing    map[ring.NodeID]pendingRemoval // nodes being removed; bounded like lastReports
	// idleIndex is the last index that this node has applied. It has not changed
	// since idleSince. See hashToReport.
	idleIndex uint64
	idleSince time.Time
}

// pendingRemoval is a process that an operator removes, or that leaves.
type pendingRemoval struct {
	boot   uint64
	forced bool // even if it is alive
	// departure is recorded, so that the node's ID can't come back; nil if the ID
	// can come back.
	departure *agreement.Departure
}

// nodeReport is a node's report with its last request for authority.
type nodeReport struct {
	applied     uint64
	unfitToLead bool // it should not lead: it is stuck, or its store fails
	at          time.Time
}

// isCaughtUp reports whether the node has recently reported that it has applied
// nearly everything and can store more.
func (r nodeReport) isCaughtUp(index uint64) bool {
	return time.Since(r.at) < nodeReportTTL && r.applied+caughtUpMargin >= index && !r.unfitToLead
}

// requestStatus returns this node's next request for authority. It reports the
// state passed on to the rest of the node, which may lag slightly behind what
// Raft has applied.
func (nt *nodeTracker) requestStatus() authority.Request {
	nt.feed.mu.Lock()
	s := nt.feed.published
	nt.feed.mu.Unlock()

	if s == nil {
		s = agreement.New()
	}

	r := authority.Request{
		Generation: s.Generation(nt.config.Self.ID), Applied: s.Index,
		SettledEpoch: min(nt.config.SettledEpoch(), s.Epoch),
		Leaving:      nt.leavingRing.Load(), Stuck: nt.StuckError() != nil, StoreFails: nt.logs.isFailing(),
		StateHash: nt.hashToReport(s), Level: nt.config.Build.Level,
		Release: nt.config.Build.Release, Zones: nt.config.Build.Zones,
	}
	for id := range *nt.nodeAddresses.Load() {
		_, relayed := nt.config.Peers.Via(id)
		if relayed {
			r.Relayed = append(r.Relayed, id)
		} else if !nt.config.Peers.Reachable(id) {
			r.Unreachable = append(r.Unreachable, id)
		}
	}

	if nt.config.LaggingNodes != nil {
		for _, id := range nt.config.LaggingNodes() {
			r.Unreachable = append(r.Unreachable, id)
			// A node in both lists would count twice in the leader's vote.
			r.Relayed = slices.DeleteFunc(r.Relayed, func(other ring.NodeID) bool { return other == id })
		}
	}

	slices.SortFunc(r.Unreachable, ring.NodeID.Compare)
	r.Unreachable = slices.Compact(r.Unreachable)
	return r
}

// askLeader sends a request for authority to the leader. If the leader answers
// that this node's state has diverged, it stops the state machine.
func (nt *nodeTracker) askLeader(ctx context.Context, r authority.Request) (reply authority.Reply, err error) {
	err = nt.callJSON(ctx, toLeader, authority.MethodAsk, r, &reply)
	switch {
	case err != nil:
		nt.behind.Store(&[]ring.NodeID{})
		return reply, err
	case reply.Differs:
		nt.stopDiverged(r)
	case reply.Removed && !nt.removed.Swap(true):
		nt.config.Logger.Error("an operator has removed this process from the cluster: it no longer acts as an owner; stop it")
	}
	nt.behind.Store(&reply.Behind)
	return reply, nil
}

// answerRequest answers a request for authority on the leader, and records how
// far the node has applied.
func (nt *nodeTracker) answerRequest(ctx context.Context, r authority.Request) (authority.Reply, error) {
	refusal, differs := nt.refuseDiverged(r)
	if differs {
		return refusal, nil
	}

	ctx, cancel := context.WithTimeout(ctx, authority.Validity)
	defer cancel()
	reply := nt.granter.Answer(ctx, r)

	nt.mu.Lock()
	defer nt.mu.Unlock()
	if _, known := (*nt.nodeAddresses.Load())[r.Node]; known || r.Node == nt.config.Self.ID {
		nt.lastReports[r.Node] = nodeReport{applied: r.Applied, unfitToLead: r.Stuck || r.StoreFails, at: time.Now()}
	}
	return reply, nil
}

// authorityNodes returns the nodes for the granter. A member that gossip has
// not seen since this node started counts as failed only after
// Timings.AbsentAfter, because some nodes take longer than others when all of
// them restart.
func (nt *nodeTracker) authorityNodes() []authority.Node {
	var list []authority.Node
	for _, m := range nt.listMembers(nt.State()) {
		if !m.inGossip && !m.inState {
			continue
		}

		n := authority.Node{
			Member: agreement.Member{ID: m.ID, Name: m.Name, Address: m.Address, Region: m.Region, Zone: m.Zone},
			Boot:   m.boot, State: m.State, Supports: m.settingsVersion >= settingsVersion,
		}
		if !m.inGossip && time.Since(nt.startedAt) <= nt.config.Timings.AbsentAfter {
			n.State = gossip.Suspect
		}
		if m.excluded {
			n.State = gossip.Left
			n.Removed = m.forced
		}

		list = append(list, n)
	}

	return list
}
