package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/envoy"
	"github.com/rlnode/rlnode/api/httpd"
	"github.com/rlnode/rlnode/api/resp"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/partitions"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/regions"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/history"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/loads"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
	"github.com/rlnode/rlnode/usage"
)

// countersPerLease bounds the subjects with leases to one for every 64
// counters: a lease takes about 400 bytes at its owner and as many at each
// holder.
const countersPerLease = 64

// Optional files in the data directory. A node without them takes longer to
// find other nodes or to be ready.
const (
	gossipFile    = "peers"     // gossip addresses of this region's nodes, one per line
	wanGossipFile = "peers-wan" // gossip addresses of other regions' entry nodes, one per line
	appliedFile   = "applied"   // how far this node has applied the Raft log
)

// build makes all parts of a node. Their loops may run already, but none
// decides a check or calls another node before Start. On an error it returns
// the parts made so far, for release.
//
// Some parts need each other: the calls between nodes ask the cluster for this
// node's identity, and the cluster tells the keeper and the limiter what was
// committed. The part that is made first then gets a function, which it calls
// only after its Start.
func build(c *settings) (*Node, error) {
	events := &history.Events{}
	c.Logger = slog.New(events.Handler(c.Logger.Handler()))
	n := &Node{config: c, log: c.Logger, events: events, env: c.env.complete(c), opened: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())

	for _, part := range []func() error{
		n.openStorage, n.openTables, n.openMeter, n.openPeers, n.openWAN, n.openCluster,
		n.openPartitions, n.openHistory, n.openFiles, n.openTracing,
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

// onRelease registers a function for release, which calls them in reverse order.
func (n *Node) onRelease(step func(context.Context) error) {
	n.releaseSteps = append(n.releaseSteps, step)
}

// closeOnRelease registers the part's Close for release.
func (n *Node) closeOnRelease(part interface{ Close() error }) {
	n.onRelease(func(context.Context) error { return part.Close() })
}

// storage holds what outlives the process, and the node's identity.
type storage struct {
	id   ring.NodeID
	boot uint64 // identifies this process; not zero
	dir  string // the data directory; empty if there is none
	// checkpoints is set if counters are saved in dir.
	checkpoints bool
	isOld       bool // an earlier process of this node has taken part in a cluster
	store       store
	disk        func() persist.RaftStatus // the store's status; nil without a disk
}

// store holds Raft's durable state. *persist.Raft implements it.
type store interface {
	cluster.Store
	Close() error
}

func (n *Node) openStorage() (err error) {
	n.storage, err = n.env.storage(n.config)
	if err != nil {
		return err
	}
	n.closeOnRelease(n.store)
	return nil
}

// openStore opens the data directory and Raft's state in it. Without a
// directory, both are in memory.
func openStore(c *settings) (s storage, err error) {
	s.boot = rand.Uint64() | 1 // not zero
	if c.DataDir == "" {
		s.id = newIdentity()
		s.store = newMemoryStore()
		return s, nil
	}

	if c.Rejoin {
		if err := rejoin(c); err != nil {
			return s, err
		}
	}

	s.id, err = persist.OpenDir(c.DataDir)
	if err != nil {
		return s, fmt.Errorf("%s: %w", c.FieldName("DataDir"), err)
	}

	config := persist.DefaultRaftConfig()
	config.Dir = c.DataDir
	config.Logger = c.Logger
	opened, err := persist.OpenRaft(config)
	if c.Rejoin && errors.Is(err, persist.ErrCorrupt) {
		// The damaged state is given up together with its identity.
		s.id, err = rejoinDamaged(c, err)
		if err == nil {
			opened, err = persist.OpenRaft(config)
		}
	}

	if err != nil {
		return s, fmt.Errorf("%s: %w", c.FieldName("DataDir"), err)
	}

	s.store = opened
	s.disk = opened.Status
	s.dir = c.DataDir
	s.checkpoints = true
	last, err := opened.Logs().LastIndex()
	s.isOld = err == nil && last > 0

	return s, nil
}

// rejoin gives the node a new identity, unless --rejoin has done so already.
func rejoin(c *settings) error {
	aside, err := persist.RenewIdentity(c.DataDir)
	if err != nil {
		return fmt.Errorf("%s: %w", c.FieldName("Rejoin"), err)
	}
	if aside != "" {
		c.Logger.Info("this node has a new identity; what the old one had is set aside, except for bills", "folder", aside)
	}
	return nil
}

// rejoinDamaged gives a node whose agreed state is damaged a new identity: the
// node may have forgotten what it acknowledged under the old one.
func rejoinDamaged(c *settings, damage error) (id ring.NodeID, err error) {
	c.Logger.Error("what the cluster agreed on is damaged here", "error", damage)
	// rejoin keeps an identity that an earlier rejoin gave this node, unless the
	// cluster has refused it. This identity must go, so it counts as refused.
	if err := persist.MarkDeparted(c.DataDir); err != nil {
		return id, errors.Join(damage, err)
	}
	if err := rejoin(c); err != nil {
		return id, errors.Join(damage, err)
	}
	return persist.OpenDir(c.DataDir)
}

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
	n.protection, err = n.protect()
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
	config.LaggingNodes = func() []ring.NodeID { return n.keeper.Lagging() }
	config.Boottime = n.env.boottime
	config.Build = n.env.build

	if n.dir != "" {
		config.OnDeparted = n.markDeparted
		config.OnAddresses = func(list []string) { n.saveAddresses(gossipFile, list) }
		config.AppliedStore = persist.NewSmallFile(n.dir, appliedFile)
	}

	tune(&config)
	n.cluster, err = cluster.New(config)
	if err != nil {
		return err
	}

	n.closeOnRelease(n.cluster)
	n.wan.SetOwnEntryNodes(n.cluster.EntryNodes)
	return nil
}

// openPartitions makes the keeper, which holds partitions, and the limiter,
// which decides checks of their counters.
func (n *Node) openPartitions() (err error) {
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

	if n.meter != nil {
		n.usage = usage.NewTotals(n.meter, n.peers, n.countingMembers)
		n.closeOnRelease(n.usage) // it closes after the limiter, which counts until its end
	}

	n.limiter, err = limiter.NewInCluster(n.table, n.clock, limiter.ClusterConfig{
		Self: n.id, Boot: n.boot, Ownership: n.keeper, Backup: n.keeper, Peers: n.peers, OtherRegions: n.wan,
		Authority: n.cluster.Authority, AwaitRevision: n.cluster.AwaitRevision, Ring: n.ring, Secret: n.clusterSecret,
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
	n.recent.passSecond = n.limiter.PassSecond

	if n.meter != nil {
		n.limiter.UseMeter(n.meter)
	}

	// The cluster closes before the parts that it notifies of commits. A second
	// Close does nothing.
	n.closeOnRelease(n.cluster)
	return nil
}

// ring returns the latest ring known to this node; nil before the first.
func (n *Node) ring() *ring.Table { return n.cluster.StateInUse().To }

// markDeparted notes on disk that this node's identity is refused, so that --rejoin replaces it.
func (n *Node) markDeparted() {
	if err := persist.MarkDeparted(n.dir); err != nil {
		n.log.Warn("can't note that this node is no longer a member", "error", err)
	}
}

// clusterSecret returns the cluster's secret; nil until this node has a cluster.
func (n *Node) clusterSecret() []byte { return n.cluster.StateInUse().Secret }

// nodeCount returns the number of nodes in the ring; 1 before the first ring.
func (n *Node) nodeCount() int {
	return max(1, len(n.ring().Members()))
}

// listen opens the configured doors.
func (n *Node) listen() (err error) {
	c := n.config
	shared := api.Config{
		CertFile: c.CertFile, KeyFile: c.KeyFile, APIToken: c.APIToken, AdminToken: c.AdminToken,
		TokensFile: c.TokensFile,
		Memory:     c.MemoryLimit, Connections: c.MaxConnections, MaxMatched: c.MaxMatched,
		Node: c.Name, Version: Version(), Decider: n.limiter, CheckReady: n.condition,
		CheckMember: n.membership, Health: n.clusterHealth, Logger: n.log,
	}

	sources := []metrics.Source{
		n.limiter.Metrics, n.table.Metrics, n.cluster.Metrics, n.keeper.Metrics, n.peers.Metrics,
		n.wan.Metrics, n.clockMetrics,
		func(s metrics.Sink) { n.storeStatus().Metrics(s) },
	}
	if n.checkpoints {
		shared.Checkpoints = n.files.tableFile().Status
		sources = append(sources, n.files.tableFile().Metrics)
	}

	n.doors, err = api.Open(shared)
	if err != nil {
		return err
	}
	n.onRelease(n.closeListeners)
	n.doors.Explain("loading counters")

	if c.DataAddr != "" {
		n.data, err = httpd.Open(n.doors, httpd.Config{Addr: c.DataAddr, Tracer: n.tracer})
		if err != nil {
			return err
		}
		sources = append(sources, n.data.Metrics)
		n.doorLatencies = append(n.doorLatencies, doorLatency{"data", n.data.Latency})
	}

	if c.GRPCAddr != "" {
		n.grpc, err = n.openGRPC(c.GRPCAddr)
		if err != nil {
			return err
		}
		sources = append(sources, n.grpc.Metrics)
		n.doorLatencies = append(n.doorLatencies, doorLatency{"envoy", n.grpc.Latency})
	}

	if c.RedisAddr != "" {
		n.redis, err = resp.Open(n.doors, resp.Config{Addr: c.RedisAddr, Listen: n.env.redis, Tracer: n.tracer})
		if err != nil {
			return err
		}
		sources = append(sources, n.redis.Metrics)
		n.doorLatencies = append(n.doorLatencies, doorLatency{"redis", n.redis.Latency})
	}

	if c.AdminAddr == "" {
		return nil
	}
	return n.openAdmin(sources)
}

// openAdmin listens for the admin plane, which serves the metrics of sources.
func (n *Node) openAdmin(sources []metrics.Source) (err error) {
	c := n.config
	view := adminView{n.cluster, n}
	config := admin.Config{
		Addr: c.AdminAddr, Hosts: c.AdminHosts, Region: c.Region, Subjects: n.limiter,
		Rules: view, Entries: n.cluster, Cluster: view, Membership: view, Levels: n.cluster,
		Regions: n.cluster, Loads: n.loads, Activity: n.limiter.Activity, History: n.history.Report,
		Events: n.history.Events, CatchUp: n.cluster.CatchUp,
	}

	desk := httpd.NewDesk(n.doors)
	config.Desk = desk.Answer
	sources = append(sources, desk.Metrics)
	n.doorLatencies = append(n.doorLatencies, doorLatency{"admin", desk.Latency})

	if n.usage != nil {
		config.Months = n.usage
		sources = append(sources, n.meter.Metrics, n.usage.Metrics)
	}

	config.Metrics = sources
	n.admin, err = admin.Open(n.doors, config)
	return err
}

// openGRPC listens for Envoy. If the port is in use, AnyGRPCPort makes it take a free one.
func (n *Node) openGRPC(addr string) (*envoy.Server, error) {
	s, err := envoy.Open(n.doors, envoy.Config{Addr: addr, Tracer: n.tracer})
	host, _, badAddr := net.SplitHostPort(addr)
	if !n.config.AnyGRPCPort || badAddr != nil || !errors.Is(err, syscall.EADDRINUSE) {
		return s, err
	}
	n.grpcConfigured = addr
	return envoy.Open(n.doors, envoy.Config{Addr: net.JoinHostPort(host, "0"), Tracer: n.tracer})
}

// closeListeners closes the admin plane last, so that it reports the node's
// state while the last checks are decided.
func (n *Node) closeListeners(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()

	// Calls of this process end as well, because what they take from now on would
	// not be saved.
	n.closed.Store(true)
	n.doors.Drain()

	var err, grpcErr, redisErr error
	var others sync.WaitGroup
	if n.grpc != nil {
		others.Go(func() { grpcErr = n.grpc.Close(ctx) })
	}
	if n.redis != nil {
		others.Go(func() { redisErr = n.redis.Close(ctx) })
	}
	if n.data != nil {
		err = n.data.Close(ctx)
	}
	others.Wait()
	err = errors.Join(err, grpcErr, redisErr)

	if n.admin != nil {
		err = errors.Join(err, n.admin.Close(ctx))
	}
	n.doors.Close()

	if errors.Is(err, context.DeadlineExceeded) {
		n.log.Info("requests that did not finish in time were cut off")
		return nil
	}

	return err
}
