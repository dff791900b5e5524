package node

import (
	"context"
	"log/slog"
	"net"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/regions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/loads"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// countersPerLease bounds the subjects with leases to one for every 64
// counters: a lease takes about 400 bytes at its owner and as many at each
// holder.
const countersPerLease = 64

// Files in the data directory that may be missing. Without them, a node takes
// longer to find other nodes or to become ready.
const (
	gossipFile    = "peers"     // gossip addresses of this region's nodes, one per line
	wanGossipFile = "peers-wan" // gossip addresses of other regions' entry nodes, one per line
	appliedFile   = "applied"   // how far this node has applied the Raft log
)

// build makes all parts of a node. Their loops may run already, but none
// decides a check or calls another node before Start. On an error it returns
// the parts made so far, for release.
//
// Some parts need a part that is made after them: the calls between nodes ask
// the cluster for this node's identity, and the cluster tells the keeper and
// the limiter what was committed. The earlier part then gets a function, which
// it calls only after its Start.
func build(c *settings) (*Node, error) {
	events := &history.Events{}
	c.Logger = slog.New(events.Handler(c.Logger.Handler()))
	n := &Node{config: c, log: c.Logger, events: events, env: c.env.complete(c), opened: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())

	for _, part := range []func() error{
		n.openStorage, n.openTables, n.openMeter, n.openPeers, n.openWAN, n.openCluster,
		n.openKeeper, n.openUsage, n.openLimiter, n.openHistory, n.openFiles, n.openTracing,
	} {
		if err := part(); err != nil {
			return n, err
		}
	}

	n.cluster.Handle(n.peers)
	n.keeper.Handle(n.peers)
	n.limiter.Handle(n.peers)
	n.wan.Handle(n.peers)
	n.history.Handle(n.peers)

	if n.usage != nil {
		n.usage.Handle(n.peers)
	}

	return n, nil
}

// openTables makes the clock and the tables of counters, which are in memory.
func (n *Node) openTables() error {
	n.clock = limiter.NewClockWithOffset(n.env.clockOffset)
	n.closeOnRelease(n.clock)

	n.table = counters.New(n.config.MaxCounters)
	n.fallback = localcache.NewFallbackTable(n.config.MaxCounters)
	for _, t := range []*counters.Table{n.table, n.fallback} {
		t.Notes().BoundReservations(n.config.ReservationBytes)
	}

	n.onRelease(func(context.Context) error {
		n.table.Close()
		n.fallback.Close()
		return nil
	})
	return nil
}

// openPeers binds the port for calls between nodes.
func (n *Node) openPeers() (err error) {
	n.protection, err = n.loadProtection()
	if err != nil {
		return err
	}

	n.peers, err = peer.New(peer.Config{
		Self:      func() peer.Identity { return n.cluster.Identity() },
		Accept:    func(remote peer.Identity) error { return n.cluster.Accept(remote) },
		AcceptFar: func(remote peer.Identity) error { return n.wan.Accept(remote) },
		Leader:    func() ring.NodeID { return n.cluster.Leader() },
		Listen:    n.env.listen, Dial: n.env.dial, TLS: n.protection.credentials, Logger: n.log,
		Silence: n.env.silence, Boottime: n.env.boottime, Wall: n.clock.System,
	})
	if err != nil {
		return err
	}

	n.closeOnRelease(n.peers)
	return nil
}

// peerPort returns the port on which this node answers calls between nodes.
func (n *Node) peerPort() int {
	if a, ok := n.peers.Raft().Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return n.config.PeerPort
}

// openWAN prepares the connections to other regions. It opens nothing on the
// network until this node is a voter.
func (n *Node) openWAN() (err error) {
	c := n.config
	n.wan, err = regions.Open(regions.Config{
		Self: regions.Node{
			ID: n.id, Boot: n.boot, Name: c.Name, Region: c.Region, PeerPort: n.peerPort(),
		},
		Primary: c.PrimaryRegion, Bind: c.bindIP(), Port: c.WANPort, AnyPort: c.AnyPort, Advertise: c.Advertise,
		Keyring: n.protection.keyring, Join: c.WANJoin,
		Remembered: n.savedAddresses(wanGossipFile),
		Remember:   func(list []string) { n.saveAddresses(wanGossipFile, list) },
		Peers:      n.peers, Transport: n.env.wan, Logger: n.log,
	})
	if err != nil {
		return err
	}

	n.closeOnRelease(n.wan)
	return nil
}

// openCluster makes this node's side of the consensus.
func (n *Node) openCluster() (err error) {
	c := n.config
	n.loads = loads.New(loads.Config{Self: n.id, Now: n.env.boottime, Nodes: n.nodeCount})

	config := cluster.DefaultConfig()
	config.Self = cluster.Node{
		ID: n.id, Boot: n.boot, Name: c.Name, Address: c.Advertise, Region: c.Region, Zone: c.Zone,
		PeerPort: n.peerPort(),
	}
	config.Primary = c.PrimaryRegion
	config.OtherRegions = n.wan
	config.BootstrapExpect = c.BootstrapExpect

	config.Store = n.store
	config.Peers = n.peers
	config.Logger = n.log

	config.Gossip = gossip.Config{
		BindAddr: c.bindIP(), Port: c.GossipPort, AnyPort: c.AnyPort, Advertise: c.Advertise,
		Keyring: n.protection.keyring, Join: c.Join,
		Remembered: n.savedAddresses(gossipFile), News: n.loads, Transport: n.env.gossip, Logger: n.log,
	}

	config.InitialRules = func() ([]byte, string) { return c.initialRules.YAML(), c.initialRulesAuthor }
	config.OnState = func(s *agreement.State) { n.keeper.Adopt(s) }
	config.OnRules = func(s *rules.Set) { n.limiter.SetRules(s) }
	config.OnEntries = func(e *entries.State) { n.limiter.SetEntries(e) }
	config.SettledEpoch = func() int64 { return n.keeper.SettledEpoch() }
	config.Clocks = n.countingClocks
	config.UnresponsiveNodes = func() []ring.NodeID { return n.keeper.Unresponsive() }
	config.Boottime = n.env.boottime
	config.Build = n.env.build

	if n.dir != "" {
		config.OnDeparted = n.markDeparted
		config.OnAddresses = func(list []string) { n.saveAddresses(gossipFile, list) }
		config.AppliedStore = persist.NewSmallFile(n.dir, appliedFile)
	}

	applyFaultSettings(&config)
	n.cluster, err = cluster.New(config)
	if err != nil {
		return err
	}

	n.closeOnRelease(n.cluster)
	n.wan.SetOwnEntryNodes(n.cluster.EntryNodes)
	return nil
}

// openKeeper makes the keeper, which holds partitions.
func (n *Node) openKeeper() (err error) {
	config := partitions.DefaultConfig()
	config.Self = n.id
	config.Boot = n.boot
	config.Table = n.table
	config.Now = n.clock.Now
	config.Calls = n.peers
	config.Authority = n.cluster.Authority
	config.Logger = n.log

	if n.checkpoints { // so there is a data directory
		config.Save = n.checkpoint
	}

	n.keeper, err = partitions.Open(config)
	if err != nil {
		return err
	}

	n.closeOnRelease(n.keeper)
	return nil
}

// openLimiter makes the limiter, which decides checks.
func (n *Node) openLimiter() (err error) {
	n.limiter, err = limiter.NewInCluster(n.table, n.clock, limiter.ClusterConfig{
		Self: n.id, Boot: n.boot, Ownership: n.keeper, Confirmer: n.keeper, Peers: n.peers, OtherRegions: n.wan,
		ReadAuthority: n.cluster.ReadAuthority, AwaitRevision: n.cluster.AwaitRevision, Ring: n.ring, SigningKey: n.signingKey,
		Fallback: n.fallback, Recorder: n.env.recorder, Boottime: n.env.boottime,
		Leases: n.config.MaxCounters / countersPerLease,
		Level:  func() int { return int(n.cluster.StateInUse().Level) },
	})
	if err != nil {
		return err
	}

	n.closeOnRelease(n.limiter)
	n.limiter.FollowLoads(n.loads.Steps, n.loads.Left)
	n.limiter.UseVitals((&vitals{dir: n.dir, maxMemory: n.config.MemoryLimit}).read)
	n.recent.ruleStats = n.limiter.Stats
	n.recent.passSecond = n.limiter.Tick

	if n.meter != nil {
		n.limiter.UseMeter(n.meter)
	}

	// The cluster closes before the parts that it notifies of commits. A second
	// Close does nothing.
	n.closeOnRelease(n.cluster)
	return nil
}

// markDeparted notes on disk that the cluster refuses this node's identity, so
// that the next start with --rejoin replaces the identity.
func (n *Node) markDeparted() {
	if err := persist.MarkDeparted(n.dir); err != nil {
		n.log.Warn("can't note that this node is no longer a member", "error", err)
	}
}
