package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/internal/figures"
)

// View is the cluster as this node sees it.
type View struct {
	Cluster   agreement.ClusterID
	Epoch     int64
	Settled   bool
	Connected bool // this node has authority
	Leader    string
	Members   []Member // sorted by name
}

// View combines what gossip, Raft and the agreed state say.
func (c *Cluster) View() View {
	s := c.Last()
	v := View{Cluster: s.Cluster, Epoch: s.Epoch, Settled: s.Settled, Connected: c.Authority()}
	for _, m := range c.crew.census(s) {
		m.Partitions = s.To.Owned(m.ID)
		v.Members = append(v.Members, m.Member)
		if m.Leader {
			v.Leader = m.Name
		}
	}
	return v
}

// Condition returns why checks should not be sent to this node although it decides; nil if they may be.
func (c *Cluster) Condition() error {
	switch {
	case c.crew.removed.Load():
		return errRemoved
	case c.crew.Behind():
		return errBehind
	}
	return nil
}

// Behind reports whether this node asks for authority and can't be granted any, because it lags behind what is agreed on.
// While most nodes do, it is false on all of them: some node must be ready.
func (c *crew) Behind() bool {
	list := *c.withoutAuthority.Load()
	nodes := len(list)
	for _, id := range c.State().To.Members() {
		if !slices.Contains(list, id) {
			nodes++
		}
	}
	return 2*len(list) <= nodes && slices.Contains(list, c.cfg.Self.ID)
}

// Reasons for not being ready.
var (
	errNoCluster   = errors.New("no cluster yet")
	errNoRules     = errors.New("no rules yet")
	errNoRing      = errors.New("no ring yet")
	errNoAuthority = errors.New("no contact with the leader yet")
	errBehind      = errors.New("behind: this node has not applied what the others go by")
	errRemoved     = errors.New("removed: an operator has removed this process from the cluster; stop it")
)

// Ready returns nil once this node knows the rules and the ring and has had authority, or relies on its memory because no
// majority can be reached; otherwise the reason.
func (c *Cluster) Ready() error {
	c.feed.mu.Lock()
	s := c.feed.told
	c.feed.mu.Unlock()
	switch {
	case c.memory.relied.Load():
		return nil
	case c.Stuck() != nil && !c.holder.EverValid():
		return c.Stuck() // it was started with the wrong release
	case (s == nil || s.Cluster.IsZero()) && c.memory.state.Load() != nil:
		return errNoAuthority // it was in a cluster
	case s == nil || s.Cluster.IsZero():
		if err := c.founder.tooOld.Load(); err != nil {
			return *err
		}
		if lacks := c.founder.lacks.Load(); lacks != nil {
			return fmt.Errorf("%w: %w", errNoCluster, *lacks)
		}
		return errNoCluster
	case rulesVersion(s) == 0:
		return errNoRules
	case s.To == nil:
		return errNoRing
	case !c.holder.EverValid():
		return errNoAuthority
	}
	return c.Condition()
}

// Suspended returns how many nodes were taken out of the ring within the last hour although they are alive.
func (c *Cluster) Suspended() (n int) {
	for _, b := range c.Last().Boots {
		if s := b.Suspension; s.Times > 0 && time.Since(time.UnixMilli(s.Last)) < time.Hour {
			n++
		}
	}
	return n
}

// Figures reports metrics of this node's part in the cluster.
func (c *Cluster) Figures(s figures.Sink) {
	v := c.View()
	s.Gauge("ring_epoch", "Number of the ring in use.", float64(c.State().Epoch))
	s.Flag("connected", "1 while this node may act as an owner, 0 while it is cut off.", v.Connected)
	s.Flag("stuck", "1 while this node applies nothing that the cluster agrees on, for want of another release, else 0.", c.Stuck() != nil)
	s.Flag("states_differ",
		"1 on a leader that has seen nodes make different states of the same entries, and no side is a majority, else 0.", c.crew.Split())
	s.Flag("behind",
		"1 while this node asks for authority and can't be given any, because it is behind in what is agreed, else 0.", c.crew.Behind())
	s.Level("suspended", "Nodes that were taken out of the ring within the last hour though they live, and have to do well for a while before they come back.", c.Suspended())
	members := map[gossip.State]int{gossip.Alive: 0, gossip.Suspect: 0, gossip.Left: 0, gossip.Failed: 0}
	for i := range v.Members {
		members[v.Members[i].State]++
	}
	for state, n := range members {
		s.Level("members", "Members as this node sees them.", n, "state", state.String())
	}
	following := c.Following()
	s.Gauge("rules_recorded_version",
		"Newest version of the rules that all regions are known to go by, as known here; 0 for none.", float64(following.Recorded))
	if following.Leads {
		s.Gauge("follow_age_seconds",
			"Time since the primary region answered what is new; of the leader of another region only.", following.Age.Seconds())
	}
	if c.started.Load() {
		s.Count("gossip_refused_total", "Messages to the gossip port thrown away because no node of this cluster sends such.",
			int64(c.gossip.Load().Refused()))
		c.showRaft(s)
	}
}

// showRaft reports Raft's metrics. Call it only once Raft has started.
func (c *core) showRaft(s figures.Sink) {
	r := c.raft.Load()
	now := r.State()
	for state := raft.Follower; state <= raft.Shutdown; state++ {
		s.Flag("raft_state", "1 for what this node is in Raft, else 0.", now == state, "state", strings.ToLower(state.String()))
	}
	s.Gauge("raft_term", "Raft's term.", float64(r.CurrentTerm()))
	s.Gauge("raft_commit_index", "Last entry known to be agreed on.", float64(r.CommitIndex()))
	s.Gauge("raft_applied_index", "Last entry that this node has acted on.", float64(c.State().Index))
	s.Gauge("raft_last_index", "Last entry of this node's log, agreed on or not.", float64(r.LastIndex()))
	contact := time.Duration(0)
	if at := r.LastContact(); !at.IsZero() && now != raft.Leader {
		contact = time.Since(at)
	}
	s.Gauge("raft_last_contact_seconds", "Time since the leader was heard; 0 on the leader.", contact.Seconds())
	s.Level("raft_voters", "Nodes that vote.", len(c.voterIDs()))
	s.Count("raft_leader_changes_total", "Times that this node won or lost leadership.", int64(c.leaderChanges.Load()))
}
