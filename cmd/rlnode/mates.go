package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/gossip"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/loads"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/partitions"
	"github.com/rlnode/rlnode/peer"
	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/usage"
	"github.com/rlnode/rlnode/wan"
)

// readyInterval is how often a node that is starting looks whether it is ready.
const readyInterval = 10 * time.Millisecond

// mates is a node's life with others: the calls between them, what they agree on, and who owns what. It answers the
// API's questions about rules and members.
type mates struct {
	server  *server
	log     *slog.Logger
	private *localcache.Counters
	peers   *peer.Peers
	wan     *wan.Pool
	abroad  chan struct{} // closed once wan is there: other regions dial as soon as the peer port is open
	keeper  *partitions.Keeper
	limiter *limiter.Limiter
	loads   *loads.Loads
	recent  recent
	cluster atomic.Pointer[cluster.Cluster] // nil until join
	left    atomic.Bool                     // this node has left the cluster for good
	gone    atomic.Bool                     // as left, also at a stop
	// replacing: this node has just started, and may have to wait until a dead voter is replaced.
	replacing atomic.Bool
	usage     *usage.Cluster // nil: turned off

	protection protection

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// meet opens the calls between nodes and what answers them. No other node is known before join.
func (s *server) meet() (*mates, error) {
	m := &mates{server: s, log: s.log, private: localcache.New(s.settings.MaxCounters), abroad: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	if err := m.open(); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *mates) open() (err error) {
	s := m.server
	if m.protection, err = s.protect(); err != nil {
		return err
	}
	if m.peers, err = peer.Open(peer.Config{
		Self: m.identity, Listen: s.world.listen, Dial: s.world.dial, TLS: m.protection.credentials, Serve: m.serve, Accept: m.accept,
		ServeFar: m.serveFar, AcceptFar: m.acceptFar, Leader: m.leader, Logger: s.log,
	}); err != nil {
		return err
	}
	if err := m.openWAN(); err != nil {
		return err
	}
	config := partitions.DefaultConfig()
	config.Self, config.Boot, config.Table, config.Now = s.id, s.boot, s.table, s.clock.Now
	config.Calls, config.Authority, config.Logger = m.peers, m.authority, s.log
	config.Save = s.checkpoint
	if m.keeper, err = partitions.Open(config); err != nil {
		return err
	}
	m.limiter, err = limiter.Join(s.table, s.clock, limiter.Cluster{
		Self: s.id, Ownership: m.keeper, Backup: m.keeper, Peers: m.peers, Authority: m.authority, Await: m.await, Ring: m.ring,
		Private: m.private, Recorder: s.world.recorder, Boottime: s.world.boottime, Leases: s.settings.MaxCounters / leasePart,
		Secret: m.secret, Far: m.wan,
	})
	if err != nil {
		return err
	}
	m.adapt()
	m.joinUsage()
	if file := m.protection.file; file != nil {
		m.done.Go(func() { file.Follow(m.ctx, m.peers.Renew) })
	}
	m.recent.read = m.limiter.Stats
	m.done.Go(func() { m.recent.follow(m.ctx.Done()) })
	return nil
}

// leader is the node that leads, as far as this one knows; zero: nobody.
func (m *mates) leader() ring.NodeID {
	if c := m.cluster.Load(); c != nil {
		return c.Leader()
	}
	return ring.NodeID{}
}

// secret is the cluster's; nil as long as this node has no cluster.
func (m *mates) secret() []byte {
	if c := m.cluster.Load(); c != nil {
		return c.Last().Secret
	}
	return nil
}

// join finds the others, or begins a cluster. It calls open once the node can decide checks, and ready once others may be
// restarted, too.
func (m *mates) join(explain func(string), open, ready func()) error {
	s, c := m.server, m.server.settings
	doc, by, err := s.seed()
	if err != nil {
		return err
	}
	config := cluster.DefaultConfig()
	config.Self = cluster.Node{
		ID: s.id, Boot: s.boot, Name: c.Name, Address: c.Advertise, Region: c.Region, Zone: c.Zone, PeerPort: m.port(),
	}
	config.Primary, config.Far = c.PrimaryRegion, m.wan
	config.Expect, config.Store, config.Peers, config.Logger = c.BootstrapExpect, s.store, m.peers, s.log
	config.Gossip = gossip.Config{
		BindAddr: c.ClusterBind, Port: c.GossipPort, AnyPort: c.alone, Advertise: c.Advertise, Keyring: m.protection.keyring, Join: c.Join,
		Remembered: m.recallAddresses(rememberedFile), News: m.loads, Transport: s.world.gossip, Logger: s.log,
	}
	config.Seed = func() ([]byte, string) {
		text, err := doc.YAML()
		if err != nil {
			m.log.Error("the first rules can't be written", "error", err)
		}
		return text, by
	}
	config.OnState, config.OnRules, config.Settled = m.keeper.Use, m.limiter.Use, m.keeper.Settled
	config.Lagging = m.keeper.Lagging
	config.Boottime, config.Build = s.world.boottime, s.world.build
	config.Remember = func(list []string) { m.rememberAddresses(rememberedFile, list) }
	config.Applied = persist.NewNote(s.dir, appliedFile)
	tune(&config)
	opened, err := cluster.Open(config)
	if err != nil {
		return err
	}
	m.cluster.Store(opened)
	m.done.Go(func() {
		if m.wait(opened, explain, open) && m.waitForVoters(opened) {
			ready()
		}
	})
	return nil
}

// wait calls open once the node can decide checks, and says meanwhile why it can't. It reports false when the node stops first.
func (m *mates) wait(c *cluster.Cluster, explain func(string), open func()) bool {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	var since time.Time // but for copies it has been ready
	m.replacing.Store(true)
	for {
		_ = c.Replacing() // it remembers how many voters there were
		err := m.notReady(c)
		if err == nil && since.IsZero() {
			since = time.Now()
		}
		if err == nil && time.Since(since) < copiesTime && m.keeper.Lacking() {
			err = errCopies
		}
		if err == nil {
			break
		}
		explain(err.Error())
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			return false
		}
	}
	if c := m.server.settings; c.Rules != "" && !strings.HasSuffix(m.firstBy(), c.Rules) {
		m.log.Warn("--rules is not used: there are rules already; rlnode apply changes them", "file", c.Rules,
			"rules_version", m.limiter.Rules().Version)
	}
	open()
	return true
}

// replacingTime is how long a node that starts waits for a dead voter to be replaced: that takes fifteen seconds, or thirty where the
// leader changes. After that something hinders it, and this node is of more use when it is ready.
const replacingTime = 2 * time.Minute

// waitForVoters waits until there are as many live voters as before; meanwhile checks are decided, and probes are told
// that the node is not ready. It reports false when the node stops first.
func (m *mates) waitForVoters(c *cluster.Cluster) bool {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for since := time.Now(); ; {
		err := c.Replacing()
		if err != nil && time.Since(since) >= replacingTime {
			m.log.Warn("no node takes a dead voter's place: restart no other node before rlnode members shows why", "reason", err)
			err = nil
		}
		if err == nil {
			m.replacing.Store(false)
			return true
		}
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			return false
		}
	}
}

// copiesTime is how long a node that starts waits for copies of what it is the standby of.
const copiesTime = 2 * time.Second

// Whoever restarts or loses one node after the other can do without the next one only when these are over: until then
// checks of a partition can only wait, or be decided without its owner; or its counters are in one place only.
var (
	errRecovering = errors.New("its partitions are coming back from their standbys")
	errCopies     = errors.New("copies of others' partitions are coming")
)

// notReady is why the node is not ready yet; nil: it is.
func (m *mates) notReady(c *cluster.Cluster) error {
	if err := c.Ready(); err != nil {
		return err
	}
	if c.Authority() && (m.keeper.Used() < c.State().Revision || m.keeper.Recovering()) {
		return errRecovering
	}
	return nil
}

// firstBy is who wrote the first rules, if that is still known.
func (m *mates) firstBy() string {
	for _, v := range m.cluster.Load().Last().History.Versions() {
		if v.Number == 1 {
			return v.By
		}
	}
	return ""
}

func (m *mates) port() int {
	if a, ok := m.peers.Raft().Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return m.server.settings.PeerPort
}

// rememberedFile lists where gossip was found, an address a line.
const rememberedFile = "peers"

// appliedFile says up to where this node has applied what was agreed.
const appliedFile = "applied"

func (m *mates) identity() peer.Identity {
	if c := m.cluster.Load(); c != nil {
		return c.Identity()
	}
	s := m.server
	return peer.Identity{Node: s.id, Boot: s.boot, Name: s.settings.Name, Region: s.settings.Region, Release: s.world.build.Release}
}

func (m *mates) accept(remote peer.Identity) error {
	if c := m.cluster.Load(); c != nil {
		return c.Accept(remote)
	}
	return nil
}

func (m *mates) authority() bool {
	c := m.cluster.Load()
	return c != nil && c.Authority()
}

func (m *mates) await(ctx context.Context, revision, version int64) bool {
	c := m.cluster.Load()
	return c != nil && c.Await(ctx, revision, version)
}

func (m *mates) ring() *ring.Table {
	if c := m.cluster.Load(); c != nil {
		return c.Last().To
	}
	return nil
}

// serve brings what other nodes ask to who answers it.
func (m *mates) serve(call *peer.Call) {
	c := m.cluster.Load()
	switch {
	case c == nil:
		call.Fail(codeStarting, "the node is starting")
	case call.Method < partitions.MethodPush:
		c.Serve(call)
	case call.Method < limiter.MethodAsk:
		m.keeper.Serve(call)
	case call.Method < usage.MethodSources:
		m.limiter.Serve(call)
	case call.Method >= wan.MethodPass && call.Method <= lastOfWAN:
		m.wan.Serve(call)
	case m.usage != nil:
		m.usage.Serve(call)
	default:
		call.Fail(usage.CodeFailed, "usage is not counted here")
	}
}

// leasePart is how many counters there may be for each subject with leases, which takes some 400 bytes at its holders,
// and as many at its owner.
const leasePart = 64

// lastOfWAN is the last method of package wan.
const lastOfWAN peer.Method = 207

// codeStarting is the failure of calls that come too early; callers take it as any other.
const codeStarting peer.Code = 200

// stepBack hands this node's partitions over, and leaves the cluster if it is for good.
func (m *mates) stepBack(ctx context.Context, forGood bool) error {
	c := m.cluster.Load()
	if c == nil || m.left.Load() {
		return nil
	}
	m.limiter.UseLeases(false)
	if err := c.LeaveRing(ctx); err != nil || !forGood {
		m.limiter.UseLeases(err != nil)
		return err
	}
	return m.leaveCluster(ctx, c)
}

// leaveCluster leaves for good, once another node has what was counted here: without that this node stays a member
// that is away, so that nobody takes what the others have for all.
func (m *mates) leaveCluster(ctx context.Context, c *cluster.Cluster) error {
	if err := m.handUsage(ctx); err != nil {
		return err
	}
	if err := c.LeaveCluster(ctx); err != nil {
		return err
	}
	if err := m.wan.Leave(ctx); err != nil {
		m.log.Info("other regions were not told that this node leaves", "error", err)
	}
	m.gone.Store(true)
	return nil
}

// close ends what open and join began, last things first.
func (m *mates) close() error {
	m.cancel()
	m.done.Wait()
	var errs []error
	if c := m.cluster.Load(); c != nil {
		errs = append(errs, c.Close())
	}
	if m.usage != nil {
		errs = append(errs, m.usage.Close())
	}
	if m.limiter != nil {
		errs = append(errs, m.limiter.Close())
	}
	if m.keeper != nil {
		errs = append(errs, m.keeper.Close())
	}
	if m.wan != nil {
		errs = append(errs, m.wan.Close())
	}
	if m.peers != nil {
		errs = append(errs, m.peers.Close())
	}
	m.private.Close()
	return errors.Join(errs...)
}

// catch waits until this node has all that was agreed before.
func (m *mates) catch(ctx context.Context) error {
	c := m.cluster.Load()
	if c == nil {
		return cluster.ErrNoLeader
	}
	if err := c.Catch(ctx); err != nil {
		return fmt.Errorf("catch up with the leader: %w", err)
	}
	return nil
}
