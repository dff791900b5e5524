package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/raftio"
	"github.com/rlnode/rlnode/ring"
)

// reconciler, on the leader, makes Raft's configuration and the feature level match the members.
type reconciler struct {
	*core
	tracker     *nodeTracker
	sharedRules *sharedRules
	// changeSlot holds an element while Raft's configuration or the feature level
	// changes: otherwise a node could be added that does not know the level being
	// agreed on.
	changeSlot chan struct{}
}

// reconcileMembers is a loop. Every node makes gossip forget dead outsiders, and
// notes how many voters there are. The leader also turns away nodes that have
// departed, raises the feature level when it is due, and makes Raft's
// configuration match the members.
func (rc *reconciler) reconcileMembers() {
	var health map[ring.NodeID]nodeHealth
	outsiders := map[ring.NodeID]time.Time{}
	turnedAway := map[ring.NodeID]time.Time{}
	var rising pendingRaise
	rc.loop(rc.config.Timings.Reconcile, rc.reconcileNeeded, func() (last bool) {
		rc.dropOutsiders(outsiders)
		rc.RecordVoters()

		if !rc.leads() || rc.State().Cluster.IsZero() {
			// When this node leads again, it starts over, because it does not watch the
			// others meanwhile.
			health = nil
			rising = pendingRaise{}
			return false
		}

		rc.turnAway(turnedAway)
		rc.raiseWhenDue(&rising)

		if health == nil {
			health = map[ring.NodeID]nodeHealth{}
		}

		rc.changeMembers(health)
		return false
	})
}

// changeMembers makes one change after another, until none is left or one fails.
func (rc *reconciler) changeMembers(health map[ring.NodeID]nodeHealth) {
	for rc.leads() && rc.ctx.Err() == nil {
		p, index := rc.makePlanner(health)
		next := p.next()
		if next.kind == noChange {
			return
		}

		if err := rc.carryOut(next, index); err != nil {
			rc.config.Logger.Info("changing the members failed", "node", next.node.ID, "error", err)
			h := health[next.node.ID]
			h.changeFailedAt = time.Now()
			health[next.node.ID] = h
			return
		}
	}
}

// makePlanner updates the nodes' health and returns a planner, with the index of
// the configuration that its plans are based on.
func (rc *reconciler) makePlanner(health map[ring.NodeID]nodeHealth) (*planner, uint64) {
	// The index is read before the members: if the configuration changes in between,
	// Raft refuses the change.
	_, index := rc.configuration()
	state := rc.State()
	pl := &planner{now: time.Now(), self: rc.config.Self.ID, timings: rc.config.Timings,
		members: rc.tracker.listMembers(state)}

	present := map[ring.NodeID]bool{}
	rc.tracker.mu.Lock()
	defer rc.tracker.mu.Unlock()

	for i := range pl.members {
		m := &pl.members[i]
		caughtUp := rc.tracker.lastReports[m.ID].isCaughtUp(state.Index)
		m.excluded = m.excluded || state.WasRemoved(m.boot)
		m.health = health[m.ID].updated(pl.now, m, caughtUp)
		health[m.ID] = m.health
		present[m.ID] = true
	}

	rc.dropAbsent(health, present)
	slices.SortFunc(pl.members, func(a, b member) int { return a.ID.Compare(b.ID) })
	return pl, index
}

// dropAbsent drops what is known of nodes that are no longer present. The caller
// must hold tracker.mu.
func (rc *reconciler) dropAbsent(health map[ring.NodeID]nodeHealth, present map[ring.NodeID]bool) {
	for id := range health {
		if !present[id] {
			delete(health, id)
			delete(rc.tracker.lastReports, id)
			delete(rc.tracker.removing, id)
		}
	}
}

// carryOut makes a change. Raft refuses it if the configuration has changed since index.
func (rc *reconciler) carryOut(ch change, index uint64) error {
	ctx, cancel := context.WithTimeout(rc.ctx, changeTimeout)
	defer cancel()

	id := raftio.ServerID(ch.node.ID)
	address := raft.ServerAddress(ch.node.peerAddress)
	r := rc.raft.Load()
	log := rc.config.Logger.With("name", ch.node.Name, "id", ch.node.ID, "address", ch.node.peerAddress)

	select {
	case rc.changeSlot <- struct{}{}:
		defer func() { <-rc.changeSlot }()
	case <-ctx.Done():
		return ctx.Err()
	}

	switch ch.kind {
	case addNode:
		if err := rc.invite(ctx, ch.node); err != nil {
			return err
		}
		log.Info("adding a node")
		return rc.awaitRaft(ctx, r.AddNonvoter(id, address, index, changeTimeout))

	case moveNode:
		if ch.node.ID != rc.config.Self.ID {
			if err := rc.invite(ctx, ch.node); err != nil {
				return err
			}
		}

		log.Info("changing a node's address", "before", ch.node.raftAddress)
		if ch.node.Voter {
			return rc.awaitRaft(ctx, r.AddVoter(id, address, index, changeTimeout))
		}
		return rc.awaitRaft(ctx, r.AddNonvoter(id, address, index, changeTimeout))

	case promoteNode:
		log.Info("making a node a voter")
		return rc.awaitRaft(ctx, r.AddVoter(id, raft.ServerAddress(ch.node.raftAddress), index, changeTimeout))
	case demoteNode:
		log.Info("demoting a voter")
		return rc.awaitRaft(ctx, r.DemoteVoter(id, index, changeTimeout))

	case removeNode:
		if err := rc.recordDeparture(ctx, ch.node.ID); err != nil {
			return err
		}
		log.Info("removing a node", "because", ch.why)
		return rc.awaitRaft(ctx, r.RemoveServer(id, index, changeTimeout))

	case forgetNode:
		if err := rc.recordDeparture(ctx, ch.node.ID); err != nil {
			return err
		}
		_, err := rc.agree(ctx, agreement.Forget{Node: ch.node.ID})
		return err
	}

	return nil
}

// recordDeparture records that a node leaves by command or is removed by an
// operator, before the node is out. If this leader fails in between, the next
// one completes the removal.
func (rc *reconciler) recordDeparture(ctx context.Context, id ring.NodeID) error {
	d := rc.tracker.departureOf(id)
	if d == nil {
		return nil
	}
	_, err := rc.agree(ctx, agreement.Depart{Departure: *d})
	return err
}

// turnAway tells the nodes that have departed, but were started again, that
// they are no longer members. last holds when each of them was told.
func (rc *reconciler) turnAway(last map[ring.NodeID]time.Time) {
	for _, m := range rc.tracker.listMembers(rc.State()) {
		d := m.departure
		if d == nil || !m.isAlive() || m.boot == d.Boot || time.Since(last[m.ID]) < nodeRetryPause {
			continue
		}

		last[m.ID] = time.Now()
		rc.background.Go(func() {
			ctx, cancel := context.WithTimeout(rc.ctx, changeTimeout)
			defer cancel()

			// Texts and numbers can always be encoded.
			b, _ := json.Marshal(invitation{Cluster: [16]byte(rc.State().Cluster), Departed: d.String(), Node: m.ID})
			if _, _, err := rc.config.Peers.CallAt(ctx, m.peerAddress, MethodInvite, b); err != nil {
				rc.config.Logger.Debug("a node that was removed can't be told", "name", m.Name, "error", err)
			}
		})
	}

	maps.DeleteFunc(last, func(_ ring.NodeID, at time.Time) bool { return time.Since(at) > time.Hour })
}

// invite calls a node at the address from gossip. It returns an error if the
// node is unreachable or refuses to join, for example because it belongs to
// another cluster.
func (rc *reconciler) invite(ctx context.Context, m member) error {
	s := rc.State()
	in := invitation{Cluster: [16]byte(s.Cluster), Level: s.Level, Release: rc.config.Build.Release,
		Voters: rc.mostVotersKnown()}
	conf, _ := rc.configuration()
	for _, server := range conf.Servers {
		in.Servers = append(in.Servers, raftio.NodeID(server.ID))
	}

	b, _ := json.Marshal(in) // texts and numbers can always be encoded
	_, remote, err := rc.config.Peers.CallAt(ctx, m.peerAddress, MethodInvite, b)
	if err != nil {
		return fmt.Errorf("invite node %s: %w", m.ID, err)
	}
	if remote.Node != m.ID {
		return fmt.Errorf("invite node %s: %w: node %s is at its address", m.ID, ErrRefused, remote.Node)
	}

	return nil
}

// outsiderGrace is how long gossip keeps a dead node that is neither in Raft's
// configuration nor in the agreed state.
const outsiderGrace = time.Minute

// dropOutsiders makes gossip forget dead nodes that were removed from the
// cluster, or never admitted. since holds when each of them was first seen in
// that state.
func (rc *reconciler) dropOutsiders(since map[ring.NodeID]time.Time) {
	outside := map[ring.NodeID]bool{}
	for _, m := range rc.tracker.listMembers(rc.State()) {
		if !m.inGossip || m.inRaft || m.inState || m.isAlive() || m.ID == rc.config.Self.ID {
			continue
		}

		outside[m.ID] = true
		if first, noted := since[m.ID]; !noted {
			since[m.ID] = time.Now()
		} else if time.Since(first) >= outsiderGrace {
			rc.gossip.Load().Forget(m.ID)
		}
	}

	maps.DeleteFunc(since, func(id ring.NodeID, _ time.Time) bool { return !outside[id] })
}
