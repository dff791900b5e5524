package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/ring"
)

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
		Generation: s.Generation(nt.config.Self.ID), Applied: s.Index, Clocks: nt.config.Clocks(),
		SettledEpoch: min(nt.config.SettledEpoch(), s.Epoch),
		Leaving:      nt.leavingRing.Load(), Stuck: nt.StuckError() != nil, StoreFails: nt.logs.IsFailing(),
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

	if nt.config.UnresponsiveNodes != nil {
		for _, id := range nt.config.UnresponsiveNodes() {
			r.Unreachable = append(r.Unreachable, id)
			// A node in both lists would count twice in the leader's vote.
			r.Relayed = slices.DeleteFunc(r.Relayed, func(other ring.NodeID) bool { return other == id })
		}
	}

	slices.SortFunc(r.Unreachable, ring.NodeID.Compare)
	r.Unreachable = slices.Compact(r.Unreachable)
	return r
}

// askForAuthority sends a request for authority to the leader. If the leader
// answers that this node's state has diverged, askForAuthority stops the state
// machine.
func (nt *nodeTracker) askForAuthority(ctx context.Context, r authority.Request) (reply authority.Reply, err error) {
	err = nt.callJSON(ctx, toLeader, authority.MethodAsk, r, &reply)
	switch {
	case err != nil:
		nt.nodesBehind.Store(&[]ring.NodeID{})
		return reply, err
	case reply.Differs:
		nt.stopDiverged(r)
	case reply.Removed && !nt.removed.Swap(true):
		nt.config.Logger.Error("an operator has removed this process from the cluster: it no longer acts as an owner; stop it")
	}
	nt.nodesBehind.Store(&reply.Ungranted)
	return reply, nil
}

// errDiverged means that a node's state differs from the majority's state after the same entries.
// docs/operations.md says what to do about it ("A node is stuck").
var errDiverged = errors.New("its state differs from the majority's after the same entries: " +
	"see \"A node is stuck\" in docs/operations.md")

// stopDiverged makes this node's machine stuck, because its state differs from
// the majority's. If this node leads, it first hands over the lead.
func (nt *nodeTracker) stopDiverged(r authority.Request) {
	nt.transferLead(nt.ctx)
	nt.machine.stop(&Stuck{Err: fmt.Errorf("as of entry %d %w", r.StateHash.Index, errDiverged)})
}

// serveAsk answers a request for authority on the leader, and records how
// far the node has applied.
func (nt *nodeTracker) serveAsk(ctx context.Context, r authority.Request) (authority.Reply, error) {
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
			Member:       agreement.Member{ID: m.ID, Name: m.Name, Address: m.Address, Region: m.Region, Zone: m.Zone},
			Boot:         m.boot,
			Alive:        m.State == gossip.Alive,
			Gone:         m.State == gossip.Failed || m.State == gossip.Left,
			SupportsRing: m.settingsVersion >= settingsVersion,
		}
		if !m.inGossip && time.Since(nt.startedAt) <= nt.config.Timings.AbsentAfter {
			n.Alive = false
			n.Gone = false
		}
		if m.excluded {
			n.Alive = false
			n.Gone = true
			n.Removed = m.forced
		}

		list = append(list, n)
	}

	return list
}
