package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/tasks"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

const (
	// maxTasks bounds the calls that are answered concurrently. Further calls are refused as busy.
	maxTasks = 1024
	// closeTimeout bounds each step of Close.
	closeTimeout = 5 * time.Second
	// drainTimeout is how long Close waits for pending entries: longer than a
	// leader needs to notice that it lost its majority.
	drainTimeout = 2 * time.Second
)

// Cluster is this node's part in the cluster.
type Cluster struct {
	*core
	founder     *founder
	tracker     *nodeTracker
	reconciler  *reconciler
	sharedRules *sharedRules

	announced []string // addresses last passed to Config.OnAddresses; only updateAddresses uses it

	closeOnce sync.Once
	closeErr  error
}

// New creates a node's part in the cluster without joining: until Start, it
// knows only its own identity. The caller must always Close it.
func New(config Config) (*Cluster, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}

	if config.SettledEpoch == nil {
		config.SettledEpoch = func() int64 { return math.MaxInt64 } // without partitions, every epoch is settled
	}

	config.Primary = cmp.Or(config.Primary, config.Self.Region)
	config.Build.Level = cmp.Or(config.Build.Level, agreement.Newest)

	shared := &core{
		config: config, startedAt: time.Now(), calls: tasks.Group{Most: maxTasks},
		stateApplied: make(chan struct{}, 1), leadChanged: make(chan struct{}, 1),
		reconcileNeeded: make(chan struct{}, 1), gossipChanged: make(chan struct{}, 1),
	}
	shared.ctx, shared.cancel = context.WithCancel(context.Background())
	shared.machine = newMachine(config.Build, func() { wake.Signal(shared.stateApplied) })
	shared.memory.noMajority = make(chan struct{}, 1)
	shared.nodeAddresses.Store(&map[ring.NodeID]string{})

	c := &Cluster{
		core: shared, founder: &founder{core: shared},
		tracker: &nodeTracker{core: shared, lastReports: map[ring.NodeID]nodeReport{},
			removing: map[ring.NodeID]pendingRemoval{}},
		sharedRules: &sharedRules{core: shared, wake: make(chan struct{}, 1),
			writeSlot: make(chan struct{}, 1), reports: regionReports{}},
	}
	c.tracker.behind.Store(&[]ring.NodeID{})
	c.reconciler = &reconciler{core: shared, tracker: c.tracker, sharedRules: c.sharedRules,
		changeSlot: make(chan struct{}, 1)}

	if err := c.founder.recallIdentity(); err != nil {
		return nil, err
	}

	c.makeAuthority()
	c.handlers = c.localHandlers()
	return c, nil
}

// Start joins or founds the cluster: it opens gossip and Raft, and starts the
// loops. It may return before the cluster exists: see Ready.
func (c *Cluster) Start() error {
	c.startedAt = time.Now()
	c.recallState()

	// This comes before Raft starts, because Raft reads its term when it starts.
	if err := c.founder.clearHalfFounded(); err != nil {
		return err
	}
	if err := c.startRaft(); err != nil {
		return err
	}

	empty, err := c.isRaftEmpty()
	if err != nil {
		return err
	}

	if empty && c.config.foundsAlone() {
		if err := c.founder.bootstrap([]ring.NodeID{c.config.Self.ID}); err != nil {
			return err
		}
		empty = false
	}

	if err := c.startGossip(empty); err != nil {
		return err
	}

	c.holder.Start()
	c.started.Store(true)
	c.updateAddresses()

	for _, loop := range []func(){
		c.followLeadership, c.feedStates, c.followGossip, c.snapshotBySize, c.initCluster,
		c.reconciler.reconcileMembers,
		c.tracker.deferElections, c.probeStore, c.recordApplied, c.watchContact,
		c.sharedRules.informRegions, c.sharedRules.runRegionsLoop, c.writeChronicle,
		c.sharedRules.endEntries,
	} {
		c.loops.Go(loop)
	}

	if empty {
		c.loops.Go(c.founder.foundCluster)
	}

	return nil
}

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

// settingsVersion is the version of the ring's settings that this node
// supports. Gossip announces it.
const settingsVersion = 1

// State returns the newest agreed state that this node has applied. It is never
// nil. It may be older than StateInUse.
func (c *core) State() *agreement.State { return c.machine.state.Load() }

// Identity returns this node's identity, for peer.Config.Self.
func (c *core) Identity() peer.Identity { return *c.identity.Load() }

// Accept returns an error if the remote node belongs to another cluster. It is
// meant for peer.Config.Accept.
func (c *core) Accept(remote peer.Identity) error {
	ours := c.identity.Load().Cluster
	if ours != [16]byte{} && remote.Cluster != [16]byte{} && ours != remote.Cluster {
		return fmt.Errorf("%w: node %s (%s) belongs to cluster %s, but this node belongs to %s", ErrRefused,
			remote.Node, remote.Name, agreement.ClusterID(remote.Cluster), agreement.ClusterID(ours))
	}
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

// updateAddresses updates the nodes' addresses from gossip and Raft's configuration.
func (c *Cluster) updateAddresses() {
	known := map[ring.NodeID]string{}
	conf, _ := c.configuration()
	for _, s := range conf.Servers {
		known[nodeID(s.ID)] = string(s.Address)
	}

	// Gossip comes last: it knows newer addresses than Raft's configuration.
	for _, m := range c.gossip.Load().Members() {
		known[m.ID] = memberAddress(m)
	}

	delete(known, c.config.Self.ID)
	delete(known, ring.NodeID{})
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

// Close stops everything that Start has started. The node does not leave the
// cluster: the other nodes see it fail. Close takes at most some seconds. If
// something hangs, the error names it.
//
// The order matters. First, this node stops asking for authority and granting
// it. Then pending entries get their outcome, because Raft, once shut down,
// never answers entries that are committed but not applied. Then Raft ends, its
// connections first, because it waits for their readers. Gossip ends last, so
// that the other nodes see this node as long as it votes. The caller closes
// Peers.
func (c *Cluster) Close() error {
	c.closeOnce.Do(func() { c.closeErr = c.close() })
	return c.closeErr
}

func (c *Cluster) close() error {
	c.cancel()
	answered, done := c.calls.Close(), c.background.Close()

	errs := []error{c.holder.Close(), c.granter.Close()}
	waitAtMost(drainTimeout, answered, done)
	errs = append(errs, c.stopRaft(closeTimeout))

	if g := c.gossip.Load(); g != nil {
		errs = append(errs, g.Close())
	}
	if !waitAtMost(closeTimeout, answered, done, c.loops.Close()) {
		errs = append(errs, errors.New("close the cluster: a task still waits for the store"))
	}

	return errors.Join(errs...)
}

// waitAtMost waits until all channels are closed, for at most bound. It reports
// whether they were closed in time.
func waitAtMost(bound time.Duration, all ...<-chan struct{}) bool {
	over := time.After(bound)
	for _, done := range all {
		select {
		case <-done:
		case <-over:
			return false
		}
	}
	return true
}
