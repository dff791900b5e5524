package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

// Write makes a change of the rules; see api.RuleStore.
func (m *mates) Write(ctx context.Context, change rules.Change, o api.WriteOptions) (int64, error) {
	c := m.cluster.Load()
	if c == nil {
		return 0, api.ErrNoLeader
	}
	version, err := c.Write(ctx, change, cluster.WriteOptions{IfMatch: o.IfMatch, By: o.By})
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
func (m *mates) Versions(context.Context) ([]api.RuleVersion, error) {
	var list []api.RuleVersion
	if c := m.cluster.Load(); c != nil {
		for _, v := range c.Last().History.Versions() {
			list = append(list, api.RuleVersion{Version: v.Number, When: v.When, By: v.By, What: v.What, Size: int64(v.Size)})
		}
	}
	return list, nil
}

// Version returns the document that was version n.
func (m *mates) Version(_ context.Context, n int64) (*rules.Document, error) {
	c := m.cluster.Load()
	if c == nil {
		return nil, api.ErrNoVersion
	}
	doc, err := c.Last().History.Version(n)
	if errors.Is(err, rules.ErrNotFound) {
		err = fmt.Errorf("%w: %w", api.ErrNoVersion, err)
	}
	return doc, err
}

// Leave hands this node's counters over and takes it out of the cluster for good. It asks the others about each check
// from then on, until it is stopped.
func (m *mates) Leave(ctx context.Context) error {
	c := m.cluster.Load()
	switch {
	case c == nil:
		return api.ErrNoLeader
	case m.left.Load():
		return nil
	case len(c.View().Members) < 2:
		return api.ErrOnlyMember
	}
	if err := c.LeaveRing(ctx); err != nil {
		return inWordsOfAPI(err)
	}
	if err := m.leaveCluster(ctx, c); err != nil {
		return inWordsOfAPI(err)
	}
	m.left.Store(true)
	return nil
}

// condition is why this node, though it decides, is not one to send checks to.
func (m *mates) condition() error {
	if m.left.Load() {
		return errLeft
	}
	c := m.cluster.Load()
	if c == nil {
		return nil
	}
	if why := c.Condition(); why != nil {
		return why
	}
	if m.replacing.Load() {
		return c.Replacing()
	}
	return nil
}

// errLeft: what this node knows of the rules and the ring gets older and older.
var errLeft = errors.New("the node has left the cluster; stop it")

// Remove takes a node that is gone for good out of the cluster; by force also one that is alive.
func (m *mates) Remove(ctx context.Context, name string, force bool) error {
	c := m.cluster.Load()
	if c == nil {
		return api.ErrNoLeader
	}
	return inWordsOfAPI(c.Remove(ctx, name, force))
}

// View is the cluster as this node sees it.
func (m *mates) View() api.ClusterView {
	view := api.ClusterView{View: "cut-off", Members: []api.Member{}, Decided: m.recent.since()}
	region := m.server.settings.Region
	c := m.cluster.Load()
	if c == nil {
		view.Regions = []api.Region{{Name: region, Primary: region == m.server.settings.PrimaryRegion}}
		return view
	}
	v := c.View()
	view.Epoch, view.Settled, view.Leader = v.Epoch, v.Settled, v.Leader
	if v.Connected {
		view.View = "connected"
	}
	for _, one := range v.Members {
		view.Members = append(view.Members, api.Member{
			Name: one.Name, ID: one.ID.String(), Address: one.Address, Region: one.Region, Zone: one.Zone,
			State: one.State.String(), Voter: one.Voter, Leader: one.Leader, InRing: one.InRing, Behind: one.Behind, Partitions: one.Partitions,
			Reachable: one.ID == m.server.id || m.peers.Reachable(one.ID), Via: via(m.peers, one.ID, v.Members),
		})
	}
	view.Regions, view.Recorded = m.regions(c, v), c.Following().Recorded
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
func (m *mates) Owner(partition int) (owner, standby string, epoch int64) {
	r := m.keeper.Route(partition)
	c := m.cluster.Load()
	if c == nil {
		return "", "", 0
	}
	members := c.Last().Members
	return members[r.Owner].Name, members[r.Standby].Name, r.Epoch
}

// checkpoints tells the API how saving the counters goes.
func (s *server) checkpoints() api.CheckpointStatus {
	c := s.counters.Load()
	if c == nil {
		return api.CheckpointStatus{}
	}
	status := c.Status()
	return api.CheckpointStatus{
		Last: status.Completed, Took: status.Duration, Counters: status.Counters, Failures: int64(status.Failures), Err: status.Err,
		FileSize: status.FileSize, SetAside: status.SetAside, DamagedFrames: status.Damaged,
	}
}
