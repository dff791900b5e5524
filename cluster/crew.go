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

// crew tracks the other nodes: which ones exist, how far each has applied entries, and whether their states differ. It asks
// for authority, and answers such requests while this node leads.
type crew struct {
	*core
	remembered []string // last passed to Config.OnAddresses; only updateAddresses uses it
	tally      hashReports
	// withoutAuthority lists the nodes that ask for authority but can't be granted it, according to the leader's last
	// answer. It is empty without contact with the leader, and never nil.
	withoutAuthority atomic.Pointer[[]ring.NodeID]
	// removed is set once the leader has reported that an operator has removed this process.
	removed atomic.Bool

	// mu guards the fields below.
	mu          sync.Mutex
	lastReports map[ring.NodeID]nodeReport     // from requests for authority, while this node leads; bounded by the known nodes
	removing    map[ring.NodeID]pendingRemoval // nodes being removed; bounded like lastReports
	// idleIndex is the last index that this node has applied. It has not changed since idleSince. See hashToReport.
	idleIndex uint64
	idleSince time.Time
}

// pendingRemoval is a process that an operator removes, or that leaves.
type pendingRemoval struct {
	boot   uint64
	forced bool // even if it is alive
}

// nodeReport is a node's report with its last request for authority.
type nodeReport struct {
	applied     uint64
	unfitToLead bool // it should not lead: it is stuck, or its store fails
	at          time.Time
}

// isCaughtUp reports whether the node has recently reported that it has applied nearly everything and can store more.
func (h nodeReport) isCaughtUp(index uint64) bool {
	return time.Since(h.at) < nodeReportTTL && h.applied+caughtUpMargin >= index && !h.unfitToLead
}

// makeAuthority creates the granter, which grants authority while this node leads, and the holder, which obtains it for this
// node.
func (c *Cluster) makeAuthority() {
	self, began := c.cfg.Self, time.Now()
	c.granter = authority.NewGranter(authority.GranterConfig{
		Self: self.ID, Boot: self.Boot, Expect: c.cfg.Expect,
		State: c.State, Propose: c.propose, Confirm: c.confirmLead,
		Nodes: c.crew.authorityNodes, RulesIndex: c.machine.rulesIndex.Load,
		TransferLead: func() { c.spawn(func() { c.crew.transferLead(c.ctx) }) },
		Now:          func() time.Duration { return time.Since(began) }, Logger: c.cfg.Logger,
	})
	c.holder = authority.NewHolder(authority.HolderConfig{
		Self: self.ID, Boot: self.Boot, Boottime: c.cfg.Boottime, Ask: c.crew.askLeader, Status: c.crew.requestStatus,
		OnChange: func() { signal(c.reconcileNeeded) }, Logger: c.cfg.Logger,
	})
}

// requestStatus returns this node's next request for authority. It reports the state passed on to the rest of the node, which may
// lag slightly behind what Raft has applied.
func (c *crew) requestStatus() authority.Request {
	c.feed.mu.Lock()
	s := c.feed.published
	c.feed.mu.Unlock()
	if s == nil {
		s = agreement.New()
	}
	r := authority.Request{
		Generation: s.Generation(c.cfg.Self.ID), Applied: s.Index, Settled: min(c.cfg.SettledEpoch(), s.Epoch),
		Leaving: c.leavingRing.Load(), Stuck: c.Stuck() != nil, StoreFails: c.logs.failing(),
		Check: c.hashToReport(s), Level: c.cfg.Build.Level, Release: c.cfg.Build.Release, Zones: c.cfg.Build.Zones,
	}
	for id := range *c.nodeAddresses.Load() {
		if _, relayed := c.cfg.Peers.Via(id); relayed {
			r.Relayed = append(r.Relayed, id)
		} else if !c.cfg.Peers.Reachable(id) {
			r.Unreachable = append(r.Unreachable, id)
		}
	}
	if c.cfg.LaggingNodes != nil {
		for _, id := range c.cfg.LaggingNodes() {
			r.Unreachable = append(r.Unreachable, id)
			r.Relayed = slices.DeleteFunc(r.Relayed, func(other ring.NodeID) bool { return other == id })
		}
	}
	slices.SortFunc(r.Unreachable, ring.NodeID.Compare)
	r.Unreachable = slices.Compact(r.Unreachable)
	return r
}

// askLeader sends a request for authority to the leader. If the leader answers that this node's state has diverged, it stops the
// state machine.
func (c *crew) askLeader(ctx context.Context, r authority.Request) (reply authority.Reply, err error) {
	err = c.callJSON(ctx, toLeader, authority.MethodAsk, r, &reply)
	switch {
	case err != nil:
		c.withoutAuthority.Store(&[]ring.NodeID{})
		return reply, err
	case reply.Differs:
		c.stopDiverged(r)
	case reply.Removed && !c.removed.Swap(true):
		c.cfg.Logger.Error("an operator has removed this process from the cluster: it no longer acts as an owner; stop it")
	}
	c.withoutAuthority.Store(&reply.Failing)
	return reply, nil
}

// answerRequest answers a request for authority on the leader, and records how far the node has applied.
func (c *crew) answerRequest(ctx context.Context, r authority.Request) (authority.Reply, error) {
	if reply, differs := c.compare(r); differs {
		return reply, nil
	}
	ctx, cancel := context.WithTimeout(ctx, authority.Term)
	defer cancel()
	reply := c.granter.Answer(ctx, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := (*c.nodeAddresses.Load())[r.Node]; known || r.Node == c.cfg.Self.ID {
		c.lastReports[r.Node] = nodeReport{applied: r.Applied, unfitToLead: r.Stuck || r.StoreFails, at: time.Now()}
	}
	return reply, nil
}

// authorityNodes returns the nodes for the granter. A member that gossip has not seen since this node started counts as failed
// only after Timings.AbsentAfter, because some nodes take longer than others when all of them restart.
func (c *crew) authorityNodes() []authority.Node {
	var list []authority.Node
	for _, m := range c.census(c.State()) {
		if !m.inGossip && !m.inState {
			continue
		}
		n := authority.Node{
			Member: agreement.Member{ID: m.ID, Name: m.Name, Address: m.Address, Region: m.Region, Zone: m.Zone},
			Boot:   m.boot, State: m.State, Supports: m.settingsVersion >= settingsVersion,
		}
		if !m.inGossip && time.Since(c.opened) <= c.cfg.Timings.AbsentAfter {
			n.State = gossip.Suspect
		}
		if m.removing {
			n.State, n.Removed = gossip.Left, m.forced
		}
		list = append(list, n)
	}
	return list
}
