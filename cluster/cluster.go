package cluster

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
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

	if config.Clocks == nil {
		config.Clocks = func() authority.Clocks {
			now := time.Now().UnixMilli()
			return authority.Clocks{Earliest: now, Latest: now}
		}
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
			removing: map[ring.NodeID][]*pendingRemoval{}},
		sharedRules: &sharedRules{core: shared, wake: make(chan struct{}, 1),
			writeSlot: make(chan struct{}, 1), reports: regionReports{}},
	}
	c.tracker.nodesBehind.Store(&[]ring.NodeID{})
	c.reconciler = &reconciler{core: shared, tracker: c.tracker, sharedRules: c.sharedRules,
		changeSlot: make(chan struct{}, 1)}

	if err := c.founder.recallIdentity(); err != nil {
		return nil, err
	}

	c.makeAuthority()
	c.handlers = c.makeHandlers()
	return c, nil
}

// makeAuthority creates the granter, which grants authority while this node
// leads, and the holder, which obtains it for this node.
func (c *Cluster) makeAuthority() {
	self := c.config.Self
	began := time.Now()
	c.granter = authority.NewGranter(authority.GranterConfig{
		Self: self.ID, Boot: self.Boot, BootstrapExpect: c.config.BootstrapExpect,
		State: c.State, Propose: c.propose, Confirm: c.confirmLead,
		Nodes: c.tracker.authorityNodes, RulesIndex: c.machine.rulesIndex.Load,
		TransferLead: func() { c.background.Go(func() { c.tracker.transferLead(c.ctx) }) },
		Now:          func() time.Duration { return time.Since(began) }, Logger: c.config.Logger,
	})
	c.holder = authority.NewHolder(authority.HolderConfig{
		Self: self.ID, Boot: self.Boot, Boottime: c.config.Boottime, Ask: c.tracker.askForAuthority,
		Status:   c.tracker.requestStatus,
		OnChange: func() { wake.Signal(c.reconcileNeeded) }, Logger: c.config.Logger,
	})
}

// makeHandlers returns the handlers by method. Handle lets other regions call
// only the methods in crossRegionMethods, through this region's leader.
func (c *Cluster) makeHandlers() map[peer.Method]handler {
	return map[peer.Method]handler{
		MethodPromise:             c.founder.servePromise,
		MethodIsAttemptValid:      jsonHandler(c.founder.serveIsAttemptValid),
		MethodInvite:              jsonHandler(c.founder.serveInvitation),
		MethodWriteRules:          c.sharedRules.serveWriteRules,
		MethodRemove:              jsonHandler(c.serveRemove),
		MethodFollow:              c.sharedRules.serveFollow,
		MethodProbePrimary:        c.sharedRules.serveProbe,
		MethodRemoveRegion:        c.sharedRules.serveRemoveRegion,
		MethodFollowNow:           jsonHandler(c.sharedRules.serveFollowNow),
		MethodWriteEntries:        c.sharedRules.serveWriteEntries,
		MethodRaise:               jsonHandler(c.reconciler.raise),
		authority.MethodAsk:       jsonHandler(c.tracker.serveAsk),
		authority.MethodCommitted: jsonHandler(c.serveCommitted),
	}
}

// Handle registers this package's handlers with p.
func (c *Cluster) Handle(p *peer.Peers) {
	for m, h := range c.handlers {
		p.Handle(m, peer.Near, func(call *peer.Call) { c.serveWith(call, h) })
	}
	for _, m := range crossRegionMethods {
		p.Handle(m, peer.Far, func(call *peer.Call) {
			// The call is forwarded to the leader, which sees this node as the caller. That is
			// safe because no method that other regions may call uses its caller's
			// identity.
			c.serveWith(call,
				func(ctx context.Context, r request) ([]byte, error) { return c.callLeader(ctx, m, r.body) })
		})
	}
}

// Start joins or founds the cluster: it opens gossip and Raft, and starts the
// loops. It may return before the cluster exists: see ReadyError.
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
		c.sharedRules.expireEntries,
	} {
		c.loops.Go(loop)
	}

	if empty {
		c.loops.Go(c.founder.foundCluster)
	}

	return nil
}

// Close stops everything that Start has started. The node does not leave the
// cluster: the other nodes see it fail. Close takes at most some seconds. If
// something hangs, the error names it.
//
// The order matters. First, this node stops asking for authority and granting
// it. Then Close waits for the outcome of pending entries: once Raft is shut
// down, it no longer answers for entries that are committed but not applied.
// Then Raft ends, its connections first, because Raft waits for their readers.
// Gossip ends last, so that the other nodes see this node as long as it votes.
// The caller closes Peers.
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
