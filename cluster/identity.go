package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
)

// recallIdentity loads what earlier processes of this node stored: the cluster
// that it belongs to, and its promise.
func (f *founder) recallIdentity() error {
	self := f.config.Self
	id := peer.Identity{Node: self.ID, Boot: self.Boot, Name: self.Name, Region: self.Region,
		Release: f.config.Build.Release}

	b, err := stableGet(f.config.Store.Stable(), keyCluster)
	if err != nil {
		return err
	}
	copy(id.Cluster[:], b)
	f.identity.Store(&id)

	f.promise, err = loadPromise(f.config.Store.Stable())
	return err
}

// recordCluster permanently records the cluster that this node belongs to.
func (f *founder) recordCluster(cluster agreement.ClusterID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.storeClusterID(cluster); err != nil {
		f.config.Logger.Error("can't store the cluster's ID", "cluster", cluster, "error", err)
	}
}

// storeClusterID stores the ID of this node's cluster and announces it. The
// caller must hold mu.
func (f *founder) storeClusterID(cluster agreement.ClusterID) error {
	id := *f.identity.Load()
	if cluster.IsZero() || id.Cluster == [16]byte(cluster) {
		return nil
	}

	// The ID is stored first, because an announced ID must outlive a crash.
	if err := f.config.Store.Stable().Set([]byte(keyCluster), cluster[:]); err != nil {
		return fmt.Errorf("store the cluster's ID: %w", err)
	}

	id.Cluster = [16]byte(cluster)
	f.identity.Store(&id)
	f.announce()
	f.config.Logger.Info("this node belongs to a cluster", "cluster", cluster)
	return nil
}

// invitation is a call that the leader makes before it adds a node, to check
// that the node is reachable and willing.
type invitation struct {
	Cluster [16]byte      `json:"cluster"`
	Servers []ring.NodeID `json:"servers"` // in Raft's configuration
	// Level is the cluster's feature level, which the node must know. Release is a
	// release that knows it.
	Level   agreement.Level `json:"level"`
	Release string          `json:"release"`
	// Voters is the highest known number of voters, including those that have died
	// or been removed; see ReplacingError.
	Voters int `json:"voters"`
	// Departed, if set, makes the call no invitation: it tells a node that it is no
	// longer a member, and whether it left or was removed. Node is that node's ID.
	// By now, another node may be at its address, or the same one with a new
	// identity. An older release sends no Node.
	Departed string      `json:"departed,omitempty"`
	Node     ring.NodeID `json:"node,omitzero"`
}

// serveInvitation accepts an invitation, or returns why it does not. A node
// that accepts belongs to that cluster from then on.
func (f *founder) serveInvitation(_ context.Context, in invitation) (noBody, error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	ours := f.Identity().Cluster
	p := f.promise
	empty, err := f.isRaftEmpty()
	switch {
	case in.Cluster == [16]byte{}:
		return noBody{}, errBadCall
	case err != nil:
		return noBody{}, err
	case in.Departed != "":
		if ours == in.Cluster && (in.Node == f.config.Self.ID || in.Node.IsZero()) {
			f.recordDeparture(in.Departed)
		}
		return noBody{}, nil
	case f.leavingCluster.Load():
		return noBody{}, fmt.Errorf("%w: node %s is leaving", ErrRefused, f.config.Self.ID)
	case in.Level > f.config.Build.Level:
		err := fmt.Errorf("%w: the cluster is at feature level %d, and node %s knows %d (release %q): run release %q or a later one",
			ErrRefused, in.Level, f.config.Self.Name, f.config.Build.Level, f.config.Build.Release, in.Release)

		before := f.joinError.Swap(&err)
		if before == nil || (*before).Error() != err.Error() {
			f.config.Logger.Error("this node can't join the cluster", "error", err)
		}
		return noBody{}, err
	case ours != [16]byte{} && ours != in.Cluster:
		return noBody{}, fmt.Errorf("%w: node %s belongs to another cluster", ErrRefused, f.config.Self.ID)
	case ours == [16]byte{} && empty && p.isBy(f.config.Self.ID):
		// There is a cluster, so this node founds none.
		if err := f.setPromise(p.withdrawn()); err != nil {
			return noBody{}, err
		}
	case ours == [16]byte{} && !p.Proposer.IsZero() && !slices.Contains(in.Servers, p.Proposer):
		return noBody{}, fmt.Errorf("%w: node %s has promised node %s to found a cluster with it",
			ErrRefused, f.config.Self.ID, p.Proposer)
	}

	if err := f.storeClusterID(in.Cluster); err != nil {
		return noBody{}, err
	}

	f.joinError.Store(nil)
	f.recordReportedVoters(in.Voters)
	return noBody{}, nil
}

// recordDeparture records that this node is no longer a member, and how it left.
func (f *founder) recordDeparture(how string) {
	err := fmt.Errorf("%w: it %s", ErrDeparted, how)
	before := f.departed.Swap(&err)
	if before != nil {
		return
	}

	f.config.Logger.Error("this node is no longer a member: it " + how)
	if f.config.OnDeparted != nil {
		f.config.OnDeparted()
	}
}
