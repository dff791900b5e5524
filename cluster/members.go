package cluster

import (
	"cmp"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/raftio"
	"github.com/rlnode/rlnode/ring"
)

// Member is a node of the cluster as this node sees it.
type Member struct {
	Name    string       `json:"name"`
	ID      ring.NodeID  `json:"id"`
	Address string       `json:"address"`
	Region  string       `json:"region"`
	Zone    string       `json:"zone"`
	State   gossip.State `json:"state"` // Failed if gossip has not seen it
	Voter   bool         `json:"voter"`
	Leader  bool         `json:"leader"`
	InRing  bool         `json:"in_ring"`
	// Known means that the node is in the agreed state or Raft's configuration: it
	// was added, and not removed since.
	Known      bool `json:"-"`
	Behind     bool `json:"behind"`     // the leader's last answer said that it refuses this node authority
	Partitions int  `json:"partitions"` // owned after the current move; only set in a View
}

// member is a Member with everything else that the leader needs for its decisions.
type member struct {
	Member
	peerAddress     string               // host:port from gossip; empty if gossip has not seen the node
	boot            uint64               // boot of the process that gossip has seen
	settingsVersion uint8                // version of the ring's settings, from gossip
	inGossip        bool                 // gossip has seen the node
	inState         bool                 // in the agreed state
	inRaft          bool                 // in Raft's configuration
	raftAddress     string               // address in Raft's configuration
	excluded        bool                 // its process leaves, an operator removes it, or it has departed
	forced          bool                 // the operator removes it even if it is alive
	departure       *agreement.Departure // the node left by command, or an operator removed it; nil if not
	health          nodeHealth           // used by the reconcile loop
}

// isAlive reports whether gossip considers the node alive.
func (m *member) isAlive() bool { return m.inGossip && m.State == gossip.Alive }

// nodeHealth is a node's health, as this leader has observed it since it began
// to lead.
type nodeHealth struct {
	boot           uint64
	healthy        bool      // alive, and has applied nearly everything
	healthySince   time.Time // when healthy became true
	failed         bool      // failed or left, or gossip has not seen it
	failedSince    time.Time // when failed became true
	changeFailedAt time.Time // when a change of this node last failed
}

// updated returns h with what the leader sees now: m, and whether the node has
// applied nearly everything.
func (h nodeHealth) updated(now time.Time, m *member, caughtUp bool) nodeHealth {
	good := m.isAlive() && caughtUp
	if good && (!h.healthy || h.boot != m.boot) {
		h.healthySince = now
	}
	h.healthy = good

	bad := m.State == gossip.Failed || m.State == gossip.Left
	if bad && !h.failed {
		h.failedSince = now
	}
	h.failed = bad

	h.boot = m.boot
	return h
}

// listMembers lists all nodes in gossip, Raft's configuration or the agreed
// state, sorted by name. Names and addresses come from gossip if possible,
// since it has the newest ones.
func (nt *nodeTracker) listMembers(s *agreement.State) []member {
	byID := stateMembers(s)
	nt.mergeGossip(byID)
	nt.mergeServers(byID)
	list := nt.describe(byID, s)
	slices.SortFunc(list, func(a, b member) int { return cmp.Or(cmp.Compare(a.Name, b.Name), a.ID.Compare(b.ID)) })
	return list
}

// stateMembers returns the members of the agreed state.
func stateMembers(s *agreement.State) map[ring.NodeID]member {
	byID := map[ring.NodeID]member{}
	for id, m := range s.Members {
		byID[id] = member{inState: true,
			Member: Member{ID: id, Name: m.Name, Address: m.Address, Region: m.Region, Zone: m.Zone,
				State: gossip.Failed}}
	}
	return byID
}

// mergeGossip adds gossip's members. What gossip says replaces what the agreed
// state says, because it is newer.
func (nt *nodeTracker) mergeGossip(byID map[ring.NodeID]member) {
	for _, g := range nt.gossipMembers() {
		byID[g.ID] = member{
			inState: byID[g.ID].inState, inGossip: true, boot: g.Boot,
			settingsVersion: g.SettingsVersion, peerAddress: memberAddress(g),
			Member: Member{ID: g.ID, Name: g.Name, Address: g.Address, Region: g.Region, Zone: g.Zone, State: g.State},
		}
	}
}

// mergeServers adds the servers in Raft's configuration, and what it says of nodes
// that are already there.
func (nt *nodeTracker) mergeServers(byID map[ring.NodeID]member) {
	conf, _ := nt.configuration()
	remembered := nt.memory.state.Load() // it has the names of nodes not heard of since this node started
	for _, server := range conf.Servers {
		id := raftio.NodeID(server.ID)
		m, listed := byID[id]
		if !listed {
			m.Member = Member{ID: id, Name: id.String(), Address: hostOf(string(server.Address)), State: gossip.Failed}
			if remembered != nil && remembered.Members[id].Name != "" {
				m.Name = remembered.Members[id].Name
				m.Region = remembered.Members[id].Region
				m.Zone = remembered.Members[id].Zone
			}
		}

		m.inRaft = true
		m.raftAddress = string(server.Address)
		m.Voter = server.Suffrage == raft.Voter
		byID[id] = m
	}
}

// describe returns the members with what this node and the agreed state s know
// about each: whether it leads, is in the ring, is behind, or leaves.
func (nt *nodeTracker) describe(byID map[ring.NodeID]member, s *agreement.State) []member {
	leader := nt.Leader()
	behind := *nt.nodesBehind.Load()
	nt.mu.Lock()
	defer nt.mu.Unlock()

	list := make([]member, 0, len(byID))
	for id, m := range byID {
		m.Leader = id == leader
		m.InRing = s.InRing(id)
		m.Behind = slices.Contains(behind, id)
		m.Known = m.inState || m.inRaft

		// A process that was started after the removal began is not the one being
		// removed.
		for _, pending := range nt.removing[id] {
			if pending.boot == m.boot {
				m.excluded = true
				m.forced = m.forced || pending.forced
			}
		}
		m.departure = s.Departure(id)
		m.excluded = m.excluded || m.departure != nil
		list = append(list, m)
	}
	return list
}

// hostOf returns an address without its port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
