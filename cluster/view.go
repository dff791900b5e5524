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
	"github.com/rlnode/rlnode/internal/metrics"
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

// View returns the cluster as this node sees it, from gossip, Raft and the agreed state.
func (c *Cluster) View() View {
	s := c.StateInUse()
	v := View{Cluster: s.Cluster, Epoch: s.Epoch, Settled: s.Settled, Connected: c.Authority()}
	for _, m := range c.tracker.listMembers(s) {
		// A departed node's process may still run, or run again. One that has left is
		// listed until gossip forgets it.
		isGone := m.departure != nil && !m.inRaft && !m.inState && m.ID != c.config.Self.ID
		if isGone && !(m.departure.Left && m.State == gossip.Left) {
			continue
		}

		m.Partitions = s.To.CountOwned(m.ID)
		v.Members = append(v.Members, m.Member)

		if m.Leader {
			v.Leader = m.Name
		}
	}

	return v
}

// DegradedError returns why callers should not send checks to this node
// although it could decide them, or nil.
func (c *Cluster) DegradedError() error {
	departed := c.founder.departed.Load()
	switch {
	case departed != nil:
		return *departed
	case c.tracker.removed.Load():
		return errRemoved
	case c.tracker.Behind():
		return errBehind
	}
	return nil
}

// Behind reports whether this node asks for authority but can't be granted it,
// because it lags behind the agreed state. If that is so for most nodes, Behind
// is false on all of them: some nodes must be ready to take checks.
func (nt *nodeTracker) Behind() bool {
	list := *nt.nodesBehind.Load()
	if !slices.Contains(list, nt.config.Self.ID) {
		return false
	}

	nodes := len(list)
	for _, id := range nt.State().To.Members() {
		if !slices.Contains(list, id) {
			nodes++
		}
	}
	return 2*len(list) <= nodes
}

// Reasons for not being ready.
var (
	errNoCluster   = errors.New("no cluster yet")
	errNoRules     = errors.New("no rules yet")
	errNoRing      = errors.New("no ring yet")
	errNoAuthority = errors.New("no contact with the leader yet")
	errBehind      = errors.New("behind: this node has not applied what the other nodes rely on")
	errRemoved     = errors.New("removed: an operator has removed this process from the cluster; stop it")
)

// ReadyError returns nil once this node knows the rules and the ring and has
// had authority, or once it relies on its memory because it can't reach a
// majority. Otherwise it returns the reason.
func (c *Cluster) ReadyError() error {
	c.feed.mu.Lock()
	s := c.feed.published
	c.feed.mu.Unlock()

	if err := c.founder.departed.Load(); err != nil {
		return *err
	}

	switch {
	case c.reliesOnMemory():
		return nil
	case c.StuckError() != nil && !c.holder.EverValid():
		return c.StuckError() // the node was started with the wrong release
	case (s == nil || s.Cluster.IsZero()) && c.memory.state.Load() != nil:
		return errNoAuthority // the node was in a cluster before
	case s == nil || s.Cluster.IsZero():
		if err := c.founder.joinError.Load(); err != nil {
			return *err
		}
		if lacks := c.founder.waitReason.Load(); lacks != nil {
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

	return c.DegradedError()
}

// Suspended returns how many live nodes were taken out of the ring within the last hour.
func (c *Cluster) Suspended() (n int) {
	for _, p := range c.StateInUse().Processes {
		s := p.Suspension
		if s.Times > 0 && time.Since(time.UnixMilli(s.Last)) < time.Hour {
			n++
		}
	}
	return n
}

// Metrics reports metrics of this node's part in the cluster.
func (c *Cluster) Metrics(s metrics.Sink) {
	v := c.View()
	s.Gauge("ring_epoch", "Number of the ring in use.", float64(c.State().Epoch))
	s.Flag("connected", "1 while this node may act as an owner, 0 while it is cut off.", v.Connected)
	s.Flag("stuck",
		"1 while this node can't apply what the cluster agrees on, because that needs another release, else 0.",
		c.StuckError() != nil)
	s.Flag("states_differ",
		"1 on a leader that has seen nodes reach different states after the same entries, without a majority for any, else 0.", c.tracker.Split())
	s.Flag("behind",
		"1 while this node asks for authority but can't be granted it, because it is behind the agreed state, else 0.", c.tracker.Behind())
	s.Level("suspended",
		"Live nodes that were taken out of the ring within the last hour, and must stay healthy for a while before they come back.",
		c.Suspended())

	members := map[gossip.State]int{gossip.Alive: 0, gossip.Left: 0, gossip.Failed: 0}
	for i := range v.Members {
		members[v.Members[i].State]++
	}

	for state, n := range members {
		s.Level("members", "Members as this node sees them.", n, "state", state.String())
	}

	following := c.Following()
	s.Gauge("rules_recorded_version",
		"Newest version of the rules that this node knows all regions to use; 0 for none.", float64(following.Recorded))

	if following.Leads {
		s.Gauge("follow_age_seconds",
			"Time since the primary region last answered this leader of another region.", following.Age.Seconds())
	}

	if c.started.Load() {
		s.Count("gossip_refused_total",
			"Messages to the gossip port that were dropped because no node of this cluster sends them.",
			int64(c.gossip.Load().Refused()))
		c.showRaft(s)
	}
}

// showRaft reports Raft's metrics. Raft must have started.
func (c *core) showRaft(s metrics.Sink) {
	r := c.raft.Load()
	raftState := r.State()
	for state := raft.Follower; state <= raft.Shutdown; state++ {
		s.Flag("raft_state", "1 for this node's state in Raft, else 0.", raftState == state, "state",
			strings.ToLower(state.String()))
	}

	s.Gauge("raft_term", "Raft's term.", float64(r.CurrentTerm()))
	s.Gauge("raft_commit_index", "Last entry known to be agreed on.", float64(r.CommitIndex()))
	s.Gauge("raft_applied_index", "Last entry that this node has applied.", float64(c.State().Index))
	s.Gauge("raft_last_index", "Last entry of this node's log, agreed on or not.", float64(r.LastIndex()))

	contact := time.Duration(0)

	at := r.LastContact()
	if !at.IsZero() && raftState != raft.Leader {
		contact = time.Since(at)
	}

	s.Gauge("raft_last_contact_seconds",
		"Time since this node last heard from the leader; 0 on the leader.", contact.Seconds())
	s.Level("raft_voters", "Voters in Raft's configuration.", len(c.voterIDs()))
	s.Count("raft_leader_changes_total", "How many times this node has won or lost leadership.",
		int64(c.leaderChanges.Load()))
}
