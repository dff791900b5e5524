package node

import (
	"context"
	"errors"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// adminView is a node as the admin plane sees it: the cluster's methods, and
// some that need other parts as well.
type adminView struct {
	*cluster.Cluster
	node *Node
}

// Versions lists the versions of the rules that are kept, newest first.
func (a adminView) Versions() []rules.Version { return a.StateInUse().History.Versions() }

// Version returns the document of a version.
func (a adminView) Version(number int64) (*document.Document, error) {
	return a.StateInUse().History.DocumentAt(number)
}

// Leave hands this node's partitions over and takes it out of the cluster for
// good. Until it is stopped, the node then asks other nodes about each check.
// by names who gave the command. The last node leaves only if forced. It then
// stays as it is, but /readyz says that it has left.
func (a adminView) Leave(ctx context.Context, force bool, by string) (last bool, err error) {
	n := a.node
	last = n.isLastMember()
	switch {
	case n.leftOnRequest.Load():
		return last, nil
	case n.cluster.StateInUse().Cluster.IsZero():
		return false, admin.ErrNoCluster
	case last && !force:
		return true, admin.ErrOnlyMember
	}

	if err := n.leave(ctx, true, by); err != nil {
		// The command fails, so the node stays a member.
		n.cluster.Stay()
		if n.usage != nil {
			n.usage.Stay()
		}
		return last, err
	}

	n.leftOnRequest.Store(true)
	return last, nil
}

// membershipError returns why this node is not a working member of the cluster; nil
// if it is one. A node that is cut off still is one.
func (n *Node) membershipError() error {
	if n.leftOnRequest.Load() {
		return errLeft
	}
	if n.cluster.HasGivenUp() {
		return errGivenUp
	}
	return n.cluster.DegradedError()
}

// probeError returns why load balancers should send no checks to this node,
// although it decides them; nil if they may.
func (n *Node) probeError() error {
	if err := n.membershipError(); err != nil {
		return err
	}
	if n.replacing.Load() {
		return n.cluster.ReplacingError()
	}
	return nil
}

// errLeft makes probes fail: a node that has left gets no updates of the rules or the ring.
var errLeft = errors.New("the node has left the cluster; stop it")

// errGivenUp makes probes fail: nothing gives this process authority again.
var errGivenUp = errors.New("the node has handed its partitions over, but is still a member; repeat the command to leave, or restart it")

// View returns the cluster as this node sees it.
func (a adminView) View() admin.ClusterView {
	n := a.node
	v := n.cluster.View()
	view := admin.ClusterView{
		View: "cut-off", Epoch: v.Epoch, Settled: v.Settled, Leader: v.Leader,
		Members: []admin.Member{}, Decided: n.recent.decidedBy(),
		Regions: n.regions(v), Recorded: n.cluster.Following().Recorded,
	}
	if v.Connected {
		view.View = "connected"
	}

	offsets := n.clockOffsets()
	for _, m := range v.Members {
		reachable := m.ID == n.id || n.peers.Reachable(m.ID)
		view.Members = append(view.Members,
			admin.Member{Member: m, Reachable: reachable,
				Via:         relayName(n.peers, m.ID, v.Members),
				ClockOffset: offsetMillis(offsets, m.ID)})
	}

	return view
}

// relayName returns the name of the node that relays calls to another; empty if
// calls go directly or not at all.
func relayName(peers *peer.Peers, to ring.NodeID, members []cluster.Member) string {
	relay, ok := peers.Via(to)
	if !ok {
		return ""
	}
	for _, m := range members {
		if m.ID == relay {
			return m.Name
		}
	}
	return relay.String()
}

// Owner returns the names of a partition's owner and standby, and its epoch.
func (a adminView) Owner(partition int) (owner, standby string, epoch int64) {
	r := a.node.keeper.Route(partition)
	members := a.StateInUse().Members
	return members[r.Owner].Name, members[r.Standby].Name, r.Epoch
}
