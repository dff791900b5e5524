package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// LeaveRing hands all partitions of this node over to the other nodes, and
// returns when that is done. It does nothing if no other node is in a ring. If
// ctx ends first, the leader may still take the node out until [Cluster.Stay] is
// called.
//
// After LeaveRing has returned nil, this process never has authority again,
// except if no other node was in a ring. An error wraps that of ctx, [ErrStuck]
// or [ErrClosed].
func (c *Cluster) LeaveRing(ctx context.Context) error {
	if c.hasNoOthers(c.State()) {
		return nil
	}

	// A stuck node can't hand anything over: its standbys take over once it is ended.
	if c.StuckError() == nil {
		c.leavingRing.Store(true)

		// The lead is transferred first, to spare the other nodes an election at the end.
		c.tracker.transferLead(ctx)
		c.holder.AskNow()

		self := c.config.Self.ID
		err := c.awaitState(ctx, func(s *agreement.State) bool { return c.hasNoOthers(s) || !s.InRing(self) && s.Settled })
		if err != nil {
			return fmt.Errorf("leave the ring: %w", err)
		}
		if c.hasNoOthers(c.State()) {
			// This node stays. With the flag set, it would have to leave as soon as another
			// node joins.
			c.leavingRing.Store(false)
			return nil
		}
	}

	if err := c.holder.GiveUp(ctx); err != nil {
		return fmt.Errorf("give up authority: %w", err)
	}

	return nil
}

// Stay keeps this node in the ring after LeaveRing has failed. It does nothing
// once this process has given up its authority.
func (c *Cluster) Stay() {
	if !c.HasGivenUp() {
		c.leavingRing.Store(false)
	}
}

// HasGivenUp reports whether this process has given up its authority for good,
// because its node was to leave.
func (c *Cluster) HasGivenUp() bool { return c.holder.HasGivenUp() }

// hasNoOthers reports whether the rings have no other node to hand partitions to.
func (c *Cluster) hasNoOthers(s *agreement.State) bool {
	members := slices.Concat(s.From.Members(), s.To.Members())
	return !slices.ContainsFunc(members, func(id ring.NodeID) bool { return id != c.config.Self.ID })
}

// LeaveCluster removes this node from Raft, the members and gossip. Call it
// after LeaveRing. If by is not empty, it names who gave the command, and the
// node's ID can't come back. If the node is alone, LeaveCluster does nothing.
func (c *Cluster) LeaveCluster(ctx context.Context, by string) error {
	conf, _ := c.configuration()
	if len(conf.Servers) < 2 {
		return nil
	}

	c.leavingCluster.Store(true)
	r := removalRequest{Node: c.config.Self.ID, Leaves: true, By: by, ForGood: by != ""}
	if err := c.requestRemoval(ctx, r); err != nil {
		return fmt.Errorf("leave the cluster: %w", err)
	}
	return c.gossip.Load().Leave(ctx)
}

// Remove removes a node that is gone for good from the cluster, by name or ID.
// It refuses if the node is alive, unless force is set: a live node should
// leave by itself. Remove returns when the node is out, which may take until
// its authority expires. The error wraps ErrNotFound, ErrRefused,
// ErrLeaderUnavailable or ErrOutcomeUnknown.
//
// A process removed by force never gets authority again and hands nothing over:
// its standbys take over. by names who removes the node. Its ID can't come
// back.
func (c *Cluster) Remove(ctx context.Context, name string, force bool, by string) error {
	return c.requestRemoval(ctx, removalRequest{Name: name, Force: force, By: by, ForGood: true})
}

// removalRequest is a request to remove a node.
type removalRequest struct {
	Node   ring.NodeID `json:"node"`
	Name   string      `json:"name"`
	Leaves bool        `json:"leaves"` // the node itself asks
	Force  bool        `json:"force"`  // even if it is alive
	By     string      `json:"by"`
	// ForGood has the node's ID refused from then on.
	ForGood bool `json:"for_good"`
}

// requestRemoval asks the leader to remove a node, and retries as needed. If
// ctx has no deadline, it takes at most serveTimeout.
func (c *Cluster) requestRemoval(ctx context.Context, r removalRequest) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, serveTimeout)
		defer cancel()
	}
	return c.retry(ctx, func(unknown bool) error {
		err := c.callJSON(ctx, toLeader, MethodRemove, r, &noBody{})
		if unknown && errors.Is(err, ErrNotFound) {
			return nil // an earlier attempt removed the node, and the reply was lost
		}
		return err
	})
}

// serveRemove removes a node on the leader.
func (c *Cluster) serveRemove(ctx context.Context, r removalRequest) (noBody, error) {
	if r.Leaves && r.Node.IsZero() {
		return noBody{}, errBadCall
	}
	if !c.leads() {
		return noBody{}, fmt.Errorf("%w: this node does not lead", ErrLeaderUnavailable)
	}

	m, err := c.tracker.findMember(r)
	if err != nil {
		return noBody{}, err
	}

	if m.ID == c.config.Self.ID && (r.Leaves || r.Force) {
		// The caller tries again. By then, another node may lead.
		c.tracker.transferLead(ctx)
		return noBody{}, fmt.Errorf("%w: node %s is handing over the lead", ErrLeaderUnavailable, m.Name)
	}
	if err := c.checkRemoval(m, r); err != nil {
		return noBody{}, err
	}

	pending := c.tracker.markRemoving(m, r)

	// A process that leaves stays marked: it still runs, and would be added
	// again.
	if !r.Leaves {
		defer c.tracker.unmarkRemoving(m.ID, pending)
	}

	// The granter ends the node once its authority has expired. The reconcile loop does the rest.
	wake.Signal(c.reconcileNeeded)

	err = c.awaitRemoved(ctx, m, r)
	if err != nil {
		return noBody{}, err
	}

	// The node may have left by itself, or another call may have taken it out. Then
	// the reconcile loop has not recorded the departure that this call asks for.
	return noBody{}, c.reconciler.recordDeparture(ctx, m.ID)
}

// checkRemoval returns an error if m must not be removed.
func (c *Cluster) checkRemoval(m member, r removalRequest) error {
	switch {
	case m.ID == c.config.Self.ID:
		return fmt.Errorf("%w: node %s is alive, and leads", ErrRefused, m.Name)
	case m.State == gossip.Alive && !r.Leaves && !r.Force:
		return fmt.Errorf("%w: node %s is alive; let it leave, or remove it by force", ErrRefused, m.Name)
	case r.Force && c.State().InRing(m.ID) && len(c.State().To.Members()) == 1:
		return fmt.Errorf("%w: node %s is alone in the ring", ErrRefused, m.Name)
	}
	return nil
}

// awaitRemoved waits until the reconcile loop has removed m.
func (c *Cluster) awaitRemoved(ctx context.Context, m member, r removalRequest) error {
	for c.leads() {
		now, err := c.tracker.findMember(removalRequest{Node: m.ID})
		if err != nil || !now.inRaft && (r.Leaves || !now.inState) {
			return nil
		}

		// Once its departure is recorded, it is out, even if it is alive.
		isOut := c.State().Departure(m.ID) != nil
		if now.isAlive() && !r.Leaves && !r.Force && !isOut {
			return fmt.Errorf("%w: node %s has come back", ErrRefused, m.Name)
		}

		select {
		case <-time.After(retryPause):
			wake.Signal(c.reconcileNeeded)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrOutcomeUnknown, ctx.Err())
		}
	}

	return fmt.Errorf("%w: leadership was lost", ErrOutcomeUnknown)
}

// findMember returns the node that a removal request refers to.
func (nt *nodeTracker) findMember(r removalRequest) (member, error) {
	found := slices.DeleteFunc(nt.listMembers(nt.State()), func(m member) bool {
		isGone := m.departure != nil && !m.inRaft && !m.inState // though its process may run
		return isGone || m.ID != r.Node && (r.Name == "" || m.Name != r.Name && m.ID.String() != r.Name)
	})
	switch {
	case len(found) == 0:
		return member{}, fmt.Errorf("%w: %q", ErrNotFound, cmp.Or(r.Name, r.Node.String()))
	case len(found) > 1:
		return member{}, fmt.Errorf("%w: %d nodes are called %q; give the ID", ErrRefused, len(found), r.Name)
	}
	return found[0], nil
}

// markRemoving marks the node's process as being removed, so that the reconcile
// loop does not add it again. Each request has its own mark: when one gives up,
// the others go on.
func (nt *nodeTracker) markRemoving(m member, r removalRequest) *pendingRemoval {
	pending := &pendingRemoval{boot: m.boot, leaves: r.Leaves, forced: r.Force}
	if r.ForGood {
		pending.departure = &agreement.Departure{Node: m.ID, Name: m.Name, By: r.By,
			When: time.Now().UnixMilli(), Left: r.Leaves}
	}

	nt.mu.Lock()
	defer nt.mu.Unlock()

	// A node that leaves may ask again and again, and its marks stay. One is enough.
	marks := nt.removing[m.ID]
	if r.Leaves {
		marks = slices.DeleteFunc(marks, func(other *pendingRemoval) bool { return other.leaves })
	}
	nt.removing[m.ID] = append(marks, pending)
	return pending
}

// departureOf returns the departure to record for a node that is being removed.
// It is nil if there is none, or if it is recorded already.
func (nt *nodeTracker) departureOf(id ring.NodeID) *agreement.Departure {
	if nt.State().Departure(id) != nil {
		return nil
	}

	nt.mu.Lock()
	defer nt.mu.Unlock()
	for _, pending := range nt.removing[id] {
		if pending.departure != nil {
			return pending.departure
		}
	}
	return nil
}

// unmarkRemoving takes back one mark of markRemoving.
func (nt *nodeTracker) unmarkRemoving(id ring.NodeID, pending *pendingRemoval) {
	nt.mu.Lock()
	defer nt.mu.Unlock()
	marks := slices.DeleteFunc(nt.removing[id], func(other *pendingRemoval) bool { return other == pending })
	if len(marks) == 0 {
		delete(nt.removing, id)
		return
	}
	nt.removing[id] = marks
}
