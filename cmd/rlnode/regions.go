package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/gossip"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/usage"
	"github.com/rlnode/rlnode/wan"
)

// farFile lists where the entry nodes of other regions gossip, an address a line.
const farFile = "peers-wan"

// openWAN prepares the way to other regions. Nothing is opened on the network before this node is a voter.
func (m *mates) openWAN() (err error) {
	s, c := m.server, m.server.settings
	m.wan, err = wan.Open(wan.Config{
		Self: wan.Node{
			ID: s.id, Boot: s.boot, Name: c.Name, Region: c.Region, Address: c.Advertise, PeerPort: m.port(),
		},
		Primary: c.PrimaryRegion, Bind: c.ClusterBind, Port: c.WANPort, AnyPort: c.alone, Advertise: c.Advertise, Keyring: m.protection.keyring, Join: c.WANJoin,
		Remembered: m.recallAddresses(farFile), Remember: func(list []string) { m.rememberAddresses(farFile, list) },
		Peers: m.peers, Transport: s.world.wan, Logger: s.log,
	})
	if err != nil {
		return err
	}
	m.wan.SetMates(m.entries)
	close(m.abroad)
	return nil
}

// recallAddresses reads what rememberAddresses wrote.
func (m *mates) recallAddresses(name string) []string {
	text, err := os.ReadFile(filepath.Join(m.server.dir, name))
	if err != nil {
		return nil // a new node, or it finds the others by --join
	}
	return strings.Fields(string(text))
}

// rememberAddresses writes a file of where others may be found after a restart.
func (m *mates) rememberAddresses(name string, addresses []string) {
	text := []byte(strings.Join(addresses, "\n") + "\n")
	if err := writeWhole(filepath.Join(m.server.dir, name), text); err != nil {
		m.log.Warn("the other nodes' addresses are not remembered", "file", name, "error", err)
	}
}

// entries are the other entry nodes of this region that can be reached.
func (m *mates) entries() []ring.NodeID {
	if c := m.cluster.Load(); c != nil {
		return c.Entries()
	}
	return nil
}

// acceptFar refuses nodes that have no business here.
func (m *mates) acceptFar(remote peer.Identity) error {
	select {
	case <-m.abroad:
		return m.wan.Accept(remote)
	default:
		return errStarting
	}
}

var errStarting = errors.New("the node is starting")

// Methods that other regions may call: up to lastOfCluster the cluster's, those of the limiter as inside of a region.
const lastOfCluster peer.Method = 47

// serveFar brings what nodes of other regions ask to who answers it.
func (m *mates) serveFar(call *peer.Call) {
	c := m.cluster.Load()
	switch {
	case c == nil:
		call.Fail(codeStarting, "the node is starting")
	case call.Method <= lastOfCluster:
		c.ServeFar(call)
	case call.Method >= limiter.MethodAsk && call.Method < usage.MethodSources:
		m.limiter.ServeFar(call)
	default:
		call.Fail(codeUnknownMethod, "other regions may not call the method")
	}
}

// codeUnknownMethod is the failure of calls that nobody answers.
const codeUnknownMethod peer.Code = 201

// regions lists this node's region and all others that are committed or can be seen, by name.
func (m *mates) regions(c *cluster.Cluster, view cluster.View) []api.Region {
	own := m.server.settings.Region
	agreed := c.Last().Regions
	primary := m.server.settings.PrimaryRegion
	by := map[string]*api.Region{}
	get := func(name string) *api.Region {
		if by[name] == nil {
			by[name] = &api.Region{Name: name, Primary: name == primary}
		}
		return by[name]
	}
	self := get(own)
	self.Reachable = true
	for _, one := range view.Members {
		if one.State == gossip.Alive {
			self.Members++
		}
	}
	for _, far := range m.wan.Regions() {
		r := get(far.Name)
		r.Primary, r.Reachable, r.Members = r.Primary || far.Primary, far.Reachable, far.Members
	}
	for _, name := range agreed.Names {
		get(name).Committed = true
	}
	list := make([]api.Region, 0, len(by))
	for _, r := range by {
		list = append(list, *r)
	}
	slices.SortFunc(list, func(a, b api.Region) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// RemoveRegion takes a region that is gone for good out of the world; see api.RegionRemover.
func (m *mates) RemoveRegion(ctx context.Context, name string) (int64, error) {
	c := m.cluster.Load()
	if c == nil {
		return 0, api.ErrNoLeader
	}
	version, err := c.RemoveRegion(ctx, name)
	return version, inWordsOfAPI(err)
}

// regionFigures tell the metrics how the regions do.
func (m *mates) regionFigures(c *cluster.Cluster) api.RegionFigures {
	following := c.Following()
	f := api.RegionFigures{Recorded: following.Recorded, Follows: following.Leads, FollowAge: following.Age}
	for _, far := range m.wan.Regions() {
		f.Others = append(f.Others, api.Region{Name: far.Name, Primary: far.Primary, Reachable: far.Reachable, Members: far.Members})
	}
	return f
}
