package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// admin is a node as the admin plane sees it.
type admin struct{ *Node }

// Write makes a change of the rules; see api.RuleStore.
func (n admin) Write(ctx context.Context, change rules.Change, o api.WriteOptions) (int64, error) {
	version, err := n.cluster.Write(ctx, change, cluster.WriteOptions{IfMatch: o.IfMatch, By: o.By})
	return version, inWordsOfAPI(err)
}

// inWordsOfAPI adds the API's sentinels to the cluster's.
func inWordsOfAPI(err error) error {
	for _, pair := range []struct{ have, want error }{
		{rules.ErrConflict, api.ErrConflict},
		{cluster.ErrUnknown, context.DeadlineExceeded}, // which the API tells as: not known
		{cluster.ErrNoPrimary, api.ErrNoPrimary},
		{cluster.ErrNoLeader, api.ErrNoLeader},
		{cluster.ErrNotFound, api.ErrNoMember},
		{cluster.ErrRefused, api.ErrMemberThere},
	} {
		if errors.Is(err, pair.have) {
			return &worded{kind: pair.want, err: err}
		}
	}
	return err
}

// worded is an error of the cluster that is one of the API's, too. What it says is what the cluster says.
type worded struct{ kind, err error }

// Error is the cluster's text.
func (w *worded) Error() string { return w.err.Error() }

// Unwrap gives both.
func (w *worded) Unwrap() []error { return []error{w.kind, w.err} }

// Versions lists the last versions, newest first.
func (n admin) Versions(context.Context) ([]api.RuleVersion, error) {
	var list []api.RuleVersion
	for _, v := range n.cluster.Last().History.Versions() {
		list = append(list, api.RuleVersion{Version: v.Number, When: v.When, By: v.By, What: v.What, Size: int64(v.Size)})
	}
	return list, nil
}

// Version returns the document that had a number.
func (n admin) Version(_ context.Context, number int64) (*rules.Document, error) {
	doc, err := n.cluster.Last().History.Version(number)
	if errors.Is(err, rules.ErrNotFound) {
		err = fmt.Errorf("%w: %w", api.ErrNoVersion, err)
	}
	return doc, err
}

// Leave hands this node's counters over and takes it out of the cluster for good. It asks the others about each check
// from then on, until it is stopped.
func (n admin) Leave(ctx context.Context) error {
	switch members := n.cluster.View().Members; {
	case n.left.Load():
		return nil
	case len(members) == 0: // it is starting
		return api.ErrNoLeader
	case len(members) == 1:
		return api.ErrOnlyMember
	}
	if err := n.cluster.LeaveRing(ctx); err != nil {
		return inWordsOfAPI(err)
	}
	if err := n.leaveCluster(ctx); err != nil {
		return inWordsOfAPI(err)
	}
	n.left.Store(true)
	return nil
}

// condition is why this node, though it decides, is not one to send checks to.
func (n *Node) condition() error {
	if n.left.Load() {
		return errLeft
	}
	if why := n.cluster.Condition(); why != nil {
		return why
	}
	if n.replacing.Load() {
		return n.cluster.Replacing()
	}
	return nil
}

// errLeft: what this node knows of the rules and the ring gets older and older.
var errLeft = errors.New("the node has left the cluster; stop it")

// Remove takes a node that is gone for good out of the cluster; by force also one that is alive.
func (n admin) Remove(ctx context.Context, name string, force bool) error {
	return inWordsOfAPI(n.cluster.Remove(ctx, name, force))
}

// View is the cluster as this node sees it.
func (n admin) View() api.ClusterView {
	v := n.cluster.View()
	view := api.ClusterView{
		View: "cut-off", Epoch: v.Epoch, Settled: v.Settled, Leader: v.Leader, Members: []api.Member{}, Decided: n.recent.since(),
		Regions: n.regions(v), Recorded: n.cluster.Following().Recorded,
	}
	if v.Connected {
		view.View = "connected"
	}
	for _, one := range v.Members {
		view.Members = append(view.Members, api.Member{
			Name: one.Name, ID: one.ID.String(), Address: one.Address, Region: one.Region, Zone: one.Zone,
			State: one.State.String(), Voter: one.Voter, Leader: one.Leader, InRing: one.InRing, Behind: one.Behind, Partitions: one.Partitions,
			Reachable: one.ID == n.id || n.peers.Reachable(one.ID), Via: via(n.peers, one.ID, v.Members),
		})
	}
	return view
}

// via names the node by way of which another one is reached; empty: directly, or not at all.
func via(peers *peer.Peers, to ring.NodeID, members []cluster.Member) string {
	relay, ok := peers.Via(to)
	if !ok {
		return ""
	}
	for _, one := range members {
		if one.ID == relay {
			return one.Name
		}
	}
	return relay.String()
}

// Owner names a partition's owner and standby.
func (n admin) Owner(partition int) (owner, standby string, epoch int64) {
	r := n.keeper.Route(partition)
	members := n.cluster.Last().Members
	return members[r.Owner].Name, members[r.Standby].Name, r.Epoch
}
