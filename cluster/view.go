package cluster

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/agreement"
	"github.com/rlnode/rlnode/gossip"
	"github.com/rlnode/rlnode/ring"
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

// Member is a node as this one sees it.
type Member struct {
	ID         ring.NodeID
	Name       string
	Address    string
	Region     string
	Zone       string
	State      gossip.State
	Voter      bool
	Leader     bool
	InRing     bool
	Partitions int // owned, when the move under way is over
}

// View puts together what gossip, Raft and the state say.
func (c *Cluster) View() View {
	conf, _ := c.configuration()
	return makeView(c.Last(), c.gossipMembers(), conf, c.leader(), c.Authority())
}

// makeView is View on what it is made of. Gossip is the newest on what a node is called and where it is.
func makeView(s *agreement.State, members []gossip.Member, conf raft.Configuration, leader ring.NodeID, connected bool) View {
	v := View{Cluster: s.Cluster, Epoch: s.Epoch, Settled: s.Settled, Connected: connected}
	all := map[ring.NodeID]*Member{}
	for id, m := range s.Members {
		all[id] = &Member{ID: id, Name: m.Name, Address: m.Address, Region: m.Region, Zone: m.Zone, State: gossip.Failed}
	}
	for _, m := range members {
		all[m.ID] = &Member{ID: m.ID, Name: m.Name, Address: m.Address, Region: m.Region, Zone: m.Zone, State: m.State}
	}
	for _, server := range conf.Servers {
		id := nodeID(server.ID)
		m := all[id]
		if m == nil {
			m = &Member{ID: id, Name: id.String(), Address: host(string(server.Address)), State: gossip.Failed}
			all[id] = m
		}
		m.Voter = server.Suffrage == raft.Voter
	}
	for id, m := range all {
		m.InRing, m.Partitions = inRing(s, id), s.To.Owned(id)
		if m.Leader = id == leader; m.Leader {
			v.Leader = m.Name
		}
		v.Members = append(v.Members, *m)
	}
	slices.SortFunc(v.Members, func(a, b Member) int {
		if n := strings.Compare(a.Name, b.Name); n != 0 {
			return n
		}
		return a.ID.Compare(b.ID)
	})
	return v
}

// inRing says whether a node is a member of the settled ring or of the one being moved to.
func inRing(s *agreement.State, id ring.NodeID) bool {
	return s.From.Rank(id) >= 0 || s.To.Rank(id) >= 0
}

// host is an address without its port.
func host(address string) string {
	if i := strings.LastIndexByte(address, ':'); i >= 0 {
		return strings.Trim(address[:i], "[]")
	}
	return address
}

// Reasons for not being ready.
var (
	errNoCluster   = errors.New("no cluster yet")
	errNoRules     = errors.New("no rules yet")
	errNoRing      = errors.New("no ring yet")
	errNoAuthority = errors.New("no contact with the leader yet")
)

// Ready is nil once this node knows the rules and the ring, and has had authority, or remembers them and can reach nobody
// to ask; else the reason.
func (c *Cluster) Ready() error {
	c.follow.mu.Lock()
	s := c.follow.told
	c.follow.mu.Unlock()
	switch {
	case c.memory.relied.Load():
		return nil
	case c.Stuck() != nil && !c.holder.Once():
		return c.Stuck() // it was started with the wrong release
	case s == nil || s.Cluster.IsZero():
		if err := c.founder.tooOld.Load(); err != nil {
			return *err
		}
		return errNoCluster
	case rulesVersion(s) == 0:
		return errNoRules
	case s.To == nil:
		return errNoRing
	case !c.holder.Once():
		return errNoAuthority
	}
	return nil
}

// Stats are figures of this node's Raft, and of its gossip.
type Stats struct {
	State         string // follower, candidate, leader or shutdown
	Term          uint64
	Commit        uint64
	Applied       uint64 // of what changes the state
	Last          uint64 // last entry of the log
	LastContact   time.Duration
	Voters        int
	Servers       int
	LeaderChanges uint64 // of this node: leadership won or lost
	UnsavedBytes  int64  // of entries since the last snapshot
	GossipRefused uint64 // messages that no node sends
}

// Stats tells how Raft and gossip do here.
func (c *Cluster) Stats() Stats {
	r := c.raft.Load()
	s := Stats{
		State: strings.ToLower(r.State().String()), Term: r.CurrentTerm(), Commit: r.CommitIndex(), Last: r.LastIndex(),
		Applied: c.State().Index, UnsavedBytes: c.machine.bytes.Load(),
		GossipRefused: c.gossip.Refused(),
	}
	if at := r.LastContact(); !at.IsZero() && r.State() != raft.Leader {
		s.LastContact = time.Since(at)
	}
	conf, _ := c.configuration()
	s.Servers = len(conf.Servers)
	for _, server := range conf.Servers {
		if server.Suffrage == raft.Voter {
			s.Voters++
		}
	}
	c.lead.mu.Lock()
	s.LeaderChanges = c.lead.changes
	c.lead.mu.Unlock()
	return s
}
