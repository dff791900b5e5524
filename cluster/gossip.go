package cluster

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/raftio"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// settingsVersion is the version of the ring's settings that this node
// supports. Gossip announces it.
const settingsVersion = 1

func (c *Cluster) startGossip(empty bool) error {
	g := c.config.Gossip
	self := c.config.Self
	g.Self = gossip.Member{
		ID: self.ID, Boot: self.Boot, Name: self.Name, Region: self.Region, Zone: self.Zone, PeerPort: self.PeerPort,
		Cluster: c.identity.Load().Cluster, BootstrapExpect: c.config.BootstrapExpect,
		RaftEmpty: empty, SettingsVersion: settingsVersion,
		Level: uint32(c.config.Build.Level),
	}
	g.Advertise = cmp.Or(g.Advertise, self.Address)
	g.Logger = cmp.Or(g.Logger, c.config.Logger)

	opened, err := gossip.Open(g)
	if err != nil {
		return fmt.Errorf("start gossip: %w", err)
	}

	c.gossip.Store(opened)
	return nil
}

// announce makes gossip announce this node's cluster, and whether its Raft is empty.
func (c *core) announce() {
	g := c.gossip.Load()
	if g == nil {
		return
	}

	empty, err := c.isRaftEmpty()
	if err == nil {
		err = g.Update(func(m *gossip.Member) {
			m.Cluster = c.identity.Load().Cluster
			m.RaftEmpty = empty
		})
	}
	if err != nil {
		c.config.Logger.Warn("gossip can't announce this node's new state", "error", err)
	}
}

// followGossip is the loop that calls updateAddresses periodically and whenever
// gossip's members change.
func (c *Cluster) followGossip() {
	c.loop(c.config.Timings.Reconcile, c.gossip.Load().Changed(), func() (last bool) {
		c.updateAddresses()
		return false
	})
}

// updateAddresses updates the nodes' addresses from gossip and Raft's
// configuration. It passes gossip's addresses to Config.OnAddresses if they have
// changed, and wakes the loops that follow gossip's members.
func (c *Cluster) updateAddresses() {
	known := map[ring.NodeID]string{}
	conf, _ := c.configuration()
	for _, s := range conf.Servers {
		known[raftio.NodeID(s.ID)] = string(s.Address)
	}

	// Gossip comes last: it knows newer addresses than Raft's configuration.
	for _, m := range c.gossip.Load().Members() {
		known[m.ID] = memberAddress(m)
	}

	delete(known, c.config.Self.ID)
	delete(known, ring.NodeID{}) // of a server in Raft's configuration whose ID can't be read
	c.nodeAddresses.Store(&known)
	c.config.Peers.SetNodes(known)

	if c.config.OnAddresses != nil {
		addresses := c.gossip.Load().Addresses()
		if !slices.Equal(addresses, c.announced) {
			c.announced = addresses
			c.config.OnAddresses(addresses)
		}
	}

	wake.Signal(c.gossipChanged)
	wake.Signal(c.reconcileNeeded)
}

// memberAddress returns the address at which a member accepts calls.
func memberAddress(m gossip.Member) string {
	return net.JoinHostPort(m.Address, strconv.Itoa(m.PeerPort))
}

// aliveNodes returns the nodes of this region that gossip considers alive.
func (c *core) aliveNodes() map[ring.NodeID]bool {
	alive := map[ring.NodeID]bool{}
	for _, m := range c.gossipMembers() {
		if m.State == gossip.Alive {
			alive[m.ID] = true
		}
	}
	return alive
}

// gossipMembers returns gossip's members, or none before gossip has started.
func (c *core) gossipMembers() []gossip.Member {
	g := c.gossip.Load()
	if g == nil {
		return nil
	}
	return g.Members()
}
