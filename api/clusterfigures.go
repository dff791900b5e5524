package api

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ClusterFigures tell how a node does among others.
type ClusterFigures struct {
	Connected bool // this node may act as an owner
	// Stuck is why this node applies nothing more that the cluster agrees on; nil: it does.
	Stuck error
	// Behind: this node asks for authority and can't be given any, as the leader says. Suspended are the nodes that were taken out
	// of the ring, though they live, within the last hour.
	Behind    bool
	Suspended int
	// Split: nodes have made different states of the same entries, as this node has seen as the leader.
	Split      bool
	Members    MemberFigures
	Refused    uint64 // messages to the gossip port that no node sends
	Relayed    int64  // bytes that this node has carried between others
	Tunnels    int64  // that it carries now
	Raft       RaftFigures
	Store      StoreFigures
	Partitions PartitionFigures
	Regions    RegionFigures
}

// MemberFigures count the members by their state, as this node sees them.
type MemberFigures struct{ Alive, Suspect, Left, Failed int }

// RaftFigures tell how Raft does on this node.
type RaftFigures struct {
	State         string // follower, candidate, leader or shutdown; empty: Raft has not been started yet
	LeaderKnown   bool
	Term          uint64
	Commit        uint64 // index of the last entry that is known to be agreed on
	Applied       uint64 // index of the last entry that this node has acted on
	Last          uint64 // index of the last entry of its log, agreed on or not
	LastContact   time.Duration
	Voters        int
	LeaderChanges uint64 // leadership won or lost by this node
}

// StoreFigures tell how the store of Raft's log does.
type StoreFigures struct {
	Bytes int64
	Hung  bool // a write has been under way for too long
	Full  bool // the last write failed, for want of room or otherwise
	Err   error
}

// PartitionFigures tell how the counters of this node's part of the ring do.
type PartitionFigures struct {
	Owned, Standby int
	Behind         int           // owned, and some standby has no whole copy
	Lagging        int           // nodes that can be reached and take no copies from this one
	Pushed         int64         // bytes sent to standbys
	Unacked        int64         // bytes of them that are not acknowledged
	HandOffs       int64         // partitions handed over
	Frozen         time.Duration // in all, that partitions were frozen for that
	Begun          int64         // lineages begun anew
	Debts          int           // counters whose owners are to be told what was admitted without them
	Dropped        int64         // checks in fallback that owners will not be told of
}

// raftStates are the values of the label state of rlnode_raft_state.
var raftStates = [...]string{"follower", "candidate", "leader", "shutdown"}

// clusterCollector reads ClusterFigures when it is asked.
type clusterCollector struct {
	read func() ClusterFigures

	state, term, commit, applied, last, contact, voters, changes *prometheus.Desc
	logBytes, hung, full                                         *prometheus.Desc
	members, refused, connected, stuck, split, late, suspended   *prometheus.Desc
	partitions, behind, lagging                                  *prometheus.Desc
	pushed, unacked, handOffs, frozen, begun, debts, dropped     *prometheus.Desc
	relayed, tunnels                                             *prometheus.Desc
	regions                                                      regionDescs
}

func newClusterCollector(read func() ClusterFigures) *clusterCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("rlnode_"+name, help, labels, nil)
	}
	return &clusterCollector{
		read: read, regions: newRegionDescs(),
		state:      desc("raft_state", "1 for what this node is in Raft, else 0.", "state"),
		term:       desc("raft_term", "Raft's term."),
		commit:     desc("raft_commit_index", "Last entry known to be agreed on."),
		applied:    desc("raft_applied_index", "Last entry that this node has acted on."),
		last:       desc("raft_last_index", "Last entry of this node's log, agreed on or not."),
		contact:    desc("raft_last_contact_seconds", "Time since the leader was heard; 0 on the leader."),
		voters:     desc("raft_voters", "Nodes that vote."),
		changes:    desc("raft_leader_changes_total", "Times that this node won or lost leadership."),
		logBytes:   desc("raft_log_bytes", "Size of the file with Raft's log."),
		hung:       desc("raft_store_hung", "1 while a write of Raft's log takes too long, else 0."),
		full:       desc("raft_store_failing", "1 while writes of Raft's log fail, for want of room or otherwise, else 0."),
		members:    desc("members", "Members as this node sees them.", "state"),
		refused:    desc("gossip_refused_total", "Messages to the gossip port thrown away because no node of this cluster sends such."),
		relayed:    desc("relayed_bytes_total", "Bytes carried between other nodes whose direct way is broken."),
		tunnels:    desc("tunnels", "Tunnels between other nodes that this one carries."),
		connected:  desc("connected", "1 while this node may act as an owner, 0 while it is cut off."),
		stuck:      desc("stuck", "1 while this node applies nothing that the cluster agrees on, for want of another release, else 0."),
		split:      desc("states_differ", "1 on a leader that has seen nodes make different states of the same entries, and no side is a majority, else 0."),
		late:       desc("behind", "1 while this node asks for authority and can't be given any, because it is behind in what is agreed, else 0."),
		suspended:  desc("suspended", "Nodes that were taken out of the ring within the last hour though they live, and have to do well for a while before they come back."),
		partitions: desc("partitions", "Partitions whose counters are here, as their owner or as a standby.", "as"),
		behind:     desc("partitions_behind", "Partitions owned of which some standby has no whole copy."),
		lagging:    desc("standbys_lagging", "Nodes that can be reached and have taken no copies from this one for five seconds."),
		pushed:     desc("replica_bytes_total", "Bytes of counters sent to standbys."),
		unacked:    desc("replica_unacked_bytes", "Bytes of counters that standbys have not acknowledged."),
		handOffs:   desc("handoffs_total", "Partitions handed over."),
		frozen:     desc("handoff_seconds", "Time that partitions were frozen to be handed over."),
		begun:      desc("lineages_begun_total", "Partitions whose counters began anew."),
		debts:      desc("standby_debts", "Counters whose owners are to be told what was admitted without them."),
		dropped:    desc("debts_dropped_total", "Checks in fallback that owners will not be told of, for want of room."),
	}
}

// Describe sends the descriptions of all figures.
func (c *clusterCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range append(c.regions.all(),
		c.state, c.term, c.commit, c.applied, c.last, c.contact, c.voters, c.changes, c.logBytes, c.hung, c.full, c.members,
		c.refused, c.relayed, c.tunnels, c.connected, c.stuck, c.split, c.late, c.suspended, c.partitions, c.behind, c.lagging, c.pushed, c.unacked, c.handOffs, c.frozen, c.begun, c.debts, c.dropped) {
		ch <- d
	}
}

// Collect sends all figures.
func (c *clusterCollector) Collect(ch chan<- prometheus.Metric) {
	s, f := sink(ch), c.read()
	s.flag(c.connected, f.Connected)
	s.flag(c.stuck, f.Stuck != nil)
	s.flag(c.split, f.Split)
	s.flag(c.late, f.Behind)
	s.gauge(c.suspended, float64(f.Suspended))
	for state, n := range map[string]int{
		"alive": f.Members.Alive, "suspect": f.Members.Suspect, "left": f.Members.Left, "failed": f.Members.Failed,
	} {
		s.gauge(c.members, float64(n), state)
	}
	s.count(c.refused, int64(f.Refused))
	s.count(c.relayed, f.Relayed)
	s.gauge(c.tunnels, float64(f.Tunnels))
	c.raft(s, f.Raft)
	s.gauge(c.logBytes, float64(f.Store.Bytes))
	s.flag(c.hung, f.Store.Hung)
	s.flag(c.full, f.Store.Full)
	p := f.Partitions
	s.gauge(c.partitions, float64(p.Owned), "owner")
	s.gauge(c.partitions, float64(p.Standby), "standby")
	s.gauge(c.behind, float64(p.Behind))
	s.gauge(c.lagging, float64(p.Lagging))
	s.count(c.pushed, p.Pushed)
	s.gauge(c.unacked, float64(p.Unacked))
	s.count(c.handOffs, p.HandOffs)
	s <- prometheus.MustNewConstSummary(c.frozen, uint64(p.HandOffs), p.Frozen.Seconds(), nil)
	s.count(c.begun, p.Begun)
	s.gauge(c.debts, float64(p.Debts))
	s.count(c.dropped, p.Dropped)
	c.regions.send(s, &f.Regions)
}

func (c *clusterCollector) raft(s sink, r RaftFigures) {
	if r.State == "" {
		return
	}
	for _, state := range raftStates {
		s.flag(c.state, r.State == state, state)
	}
	s.gauge(c.term, float64(r.Term))
	s.gauge(c.commit, float64(r.Commit))
	s.gauge(c.applied, float64(r.Applied))
	s.gauge(c.last, float64(r.Last))
	s.gauge(c.contact, r.LastContact.Seconds())
	s.gauge(c.voters, float64(r.Voters))
	s.count(c.changes, int64(r.LeaderChanges))
}
