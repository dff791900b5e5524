package cluster

import (
	"errors"
	"fmt"
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
	Behind     bool // it asks for authority and can't be given any, as the leader told this node last
	Partitions int  // owned, when the move under way is over
}

// View puts together what gossip, Raft and the state say.
func (c *Cluster) View() View {
	conf, _ := c.configuration()
	v := makeView(c.Last(), c.gossipMembers(), conf, c.leader(), c.Authority())
	for i, m := range v.Members {
		v.Members[i].Behind = slices.Contains(c.behind(), m.ID)
	}
	return v
}

// behind are the nodes that ask for authority and can't be given any, as the leader told last; none without contact.
func (c *Cluster) behind() []ring.NodeID {
	if list := c.crew.behind.Load(); list != nil {
		return *list
	}
	return nil
}

// Condition is why this node, though it decides, is not one to send checks to; nil: it is.
func (c *Cluster) Condition() error {
	switch {
	case c.crew.removed.Load():
		return errRemoved
	case c.Behind():
		return errBehind
	}
	return nil
}

// Behind says that this node asks for authority and can't be given any, because it is behind in what is agreed. While most
// nodes are, nobody says so: somebody has to be ready.
func (c *Cluster) Behind() bool {
	list := c.behind()
	nodes := len(list)
	for _, id := range c.State().To.Members() {
		if !slices.Contains(list, id) {
			nodes++
		}
	}
	return 2*len(list) <= nodes && slices.Contains(list, c.cfg.Self.ID)
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
		m.InRing, m.Partitions = s.InRing(id), s.To.Owned(id)
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
	errBehind      = errors.New("behind: it has not applied what the others go by")
	errRemoved     = errors.New("removed: an operator has removed this process from the cluster; stop it")
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
		if refused := c.founder.refused.Load(); refused != nil {
			return fmt.Errorf("%w: %w", errNoCluster, *refused)
		}
		return errNoCluster
	case rulesVersion(s) == 0:
		return errNoRules
	case s.To == nil:
		return errNoRing
	case !c.holder.Once():
		return errNoAuthority
	}
	return c.Condition()
}

// Suspended is how many nodes were taken out of the ring, though they live, within the last hour.
func (c *Cluster) Suspended() (n int) {
	for _, s := range c.Last().Suspensions {
		if time.Since(time.UnixMilli(s.Last)) < time.Hour {
			n++
		}
	}
	return n
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
	if !c.started.Load() {
		return Stats{}
	}
	r := c.raft.Load()
	s := Stats{
		State: strings.ToLower(r.State().String()), Term: r.CurrentTerm(), Commit: r.CommitIndex(), Last: r.LastIndex(),
		Applied: c.State().Index, UnsavedBytes: c.machine.bytes.Load(),
		GossipRefused: c.gossip.Load().Refused(),
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
