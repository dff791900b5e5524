package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/raftio"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// maxAppendEntries bounds the entries of one Raft message. An entry may have up to 15 MiB.
const maxAppendEntries = 16

// enqueueTimeout bounds how long an entry waits for Raft to accept it. It is
// longer than a disk may hang. After a timeout, the entry was certainly not
// proposed.
const enqueueTimeout = 3 * time.Second

func raftConfig(config *Config) *raft.Config {
	r := raft.DefaultConfig()
	r.LocalID = raftio.ServerID(config.Self.ID)
	r.HeartbeatTimeout = config.Timings.HeartbeatTimeout
	r.ElectionTimeout = config.Timings.ElectionTimeout
	r.LeaderLeaseTimeout = config.Timings.LeaderLeaseTimeout
	r.CommitTimeout = config.Timings.Commit
	r.MaxAppendEntries = maxAppendEntries
	r.SnapshotInterval = config.Timings.Snapshot
	r.SnapshotThreshold = config.SnapshotEntries
	r.TrailingLogs = config.TrailingEntries

	// A removed leader continues as a follower without contact. The node shuts Raft
	// down when it closes.
	r.ShutdownOnRemove = false
	r.NoLegacyTelemetry = true
	r.Logger = raftio.NewLogger(config.Logger)

	return r
}

// startRaft opens Raft on the store.
func (c *core) startRaft() error {
	s := c.config.Store
	c.logs = raftio.NewLogStore(s.Logs(), s.Probe)
	c.transport = raftio.NewTransport(raftio.Config{
		Peers: c.config.Peers, Addresses: addressProvider{c}, Logger: c.config.Logger,
		HeartbeatTimeout: c.config.Timings.HeartbeatTimeout, RPC: c.config.Timings.RPC,
		StillReplicatesTo: c.stillReplicatesTo, WrittenAfter: c.logs.WrittenAfter,
	})
	r, err := raft.NewRaft(raftConfig(&c.config), c.machine, c.logs, s.Stable(), s.Snapshots(), c.transport)
	if err != nil {
		return errors.Join(fmt.Errorf("start Raft: %w", err), c.transport.Close())
	}
	c.raft.Store(r)
	return nil
}

// stopRaft shuts Raft down, waiting at most bound. It closes the connections
// before it waits, since Raft waits for their readers.
func (c *core) stopRaft(bound time.Duration) error {
	r := c.raft.Load()
	if r == nil {
		return nil
	}

	shutdown := r.Shutdown()
	closeErr := c.transport.Close()

	ended := make(chan struct{})
	var shutdownErr error
	c.loops.Go(func() {
		shutdownErr = shutdown.Error()
		close(ended)
	})
	if !waitAtMost(bound, ended) {
		return errors.Join(closeErr, errors.New("stop Raft: it still waits for its store"))
	}

	return errors.Join(closeErr, shutdownErr)
}

// isRaftEmpty reports whether Raft has no data yet. A term left by an
// unfinished founding counts as data; see clearHalfFounded.
func (c *core) isRaftEmpty() (bool, error) {
	s := c.config.Store
	has, err := raft.HasExistingState(s.Logs(), s.Stable(), s.Snapshots())
	if err != nil {
		return false, fmt.Errorf("check whether Raft's store is empty: %w", err)
	}
	return !has, nil
}

// stillReplicatesTo reports whether this node must send entries to the other
// node: this node leads in the term, and its configuration has the other node.
// See raftio.Transport.
func (c *core) stillReplicatesTo(to raft.ServerID, term uint64) bool {
	r := c.raft.Load()
	if r == nil || r.State() != raft.Leader || r.CurrentTerm() != term {
		return false
	}
	_, ok := findServer(r.GetConfiguration().Configuration(), to)
	return ok
}

// voterIDs returns the voters in Raft's newest configuration.
func (c *core) voterIDs() (ids []ring.NodeID) {
	conf, _ := c.configuration()
	for _, s := range conf.Servers {
		if s.Suffrage == raft.Voter {
			ids = append(ids, raftio.NodeID(s.ID))
		}
	}
	return ids
}

// isVoter reports whether this node is a voter.
func (c *core) isVoter() bool { return slices.Contains(c.voterIDs(), c.config.Self.ID) }

// EntryNodes returns the other reachable voters of this region, through which
// other regions can be called.
func (c *core) EntryNodes() []ring.NodeID {
	return slices.DeleteFunc(c.voterIDs(),
		func(id ring.NodeID) bool { return id == c.config.Self.ID || !c.config.Peers.Reachable(id) })
}

func findServer(conf raft.Configuration, id raft.ServerID) (raft.Server, bool) {
	for _, s := range conf.Servers {
		if s.ID == id {
			return s, true
		}
	}
	return raft.Server{}, false
}

// configuration returns Raft's newest configuration, committed or not, and its index.
func (c *core) configuration() (raft.Configuration, uint64) {
	r := c.raft.Load()
	if r == nil {
		return raft.Configuration{}, 0
	}
	f := r.GetConfiguration()
	return f.Configuration(), f.Index()
}

// addressProvider resolves node IDs for Raft to the addresses that gossip
// reported last, or else to those in Raft's configuration.
type addressProvider struct{ c *core }

// ServerAddr implements raft.ServerAddressProvider.
func (a addressProvider) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	n := raftio.NodeID(id)
	address := a.c.config.Self.PeerAddress()
	if n != a.c.config.Self.ID {
		address = (*a.c.nodeAddresses.Load())[n]
		if address == "" {
			return "", fmt.Errorf("look up the address of node %s: %w", n, ErrNotFound)
		}
	}
	return raft.ServerAddress(peer.RaftAddress(n, address)), nil
}

// Leader returns the leader that this node knows, or zero if it knows none.
func (c *core) Leader() ring.NodeID {
	r := c.raft.Load()
	if r == nil {
		return ring.NodeID{}
	}
	_, id := r.LeaderWithID()
	return raftio.NodeID(id)
}

// leads reports whether this node considers itself the leader. A stuck node
// doesn't, even while it leads Raft: it hands over the lead as soon as another
// node can take it.
func (c *core) leads() bool {
	r := c.raft.Load()
	return r != nil && r.State() == raft.Leader && c.machine.stuck.Load() == nil
}

// propose makes the cluster agree on an entry, if this node leads. The error
// wraps [ErrLeaderUnavailable] if the entry was certainly not proposed,
// [ErrRefused] if this build or another one could not read the entry, and
// [ErrOutcomeUnknown] if it may have been proposed. Result.Err says why an
// entry was rejected. propose never proposes a change of rules or regions that
// this build refuses, because another build might accept it.
func (c *core) propose(ctx context.Context, e agreement.Entry) (agreement.Result, error) {
	for {
		b, prepared, err := c.config.Build.Prepare(c.State(), e)
		if err != nil {
			return agreement.Result{}, fmt.Errorf("%w: encode an entry: %w", ErrRefused, err)
		}

		if prepared != nil && prepared.Refusal() != nil {
			// Agreeing on an empty entry proves that this node leads and has applied the
			// newest state.
			if r, err := c.propose(ctx, agreement.Empty{}); err != nil {
				return r, err
			}
			if prepared.IsCurrent(c.State()) {
				return agreement.Result{Err: prepared.Refusal()}, nil
			}
			continue
		}

		if prepared != nil {
			c.machine.lastPrepared.Store(prepared)
		}

		r, err := c.proposeBytes(ctx, b)
		if err != nil || !errors.Is(r.Err, agreement.ErrBase) {
			return r, err
		}
		// Another entry was agreed on first. This node has applied it by now, so it
		// tries again.
	}
}

// confirmLead returns nil if, at some moment after the call began, this node was
// certainly still the leader that wrote the reign's mark. The replies to Raft's
// regular heartbeats prove that.
func (c *core) confirmLead(ctx context.Context, reign uint64) error {
	mark := c.machine.reignMark.Load()
	if mark == nil || mark.reign != reign || !c.leadsIn(mark.term) {
		return fmt.Errorf("%w: this node does not lead in the term of that reign", ErrLeaderUnavailable)
	}

	if err := c.transport.Confirmations.Await(ctx, c.config.Self.ID, mark.term, c.voterIDs); err != nil {
		return fmt.Errorf("%w: no majority has confirmed it: %w", ErrLeaderUnavailable, err)
	}
	// Await counts this node as a vote for itself, which holds only if it still
	// leads now.
	if !c.leadsIn(mark.term) {
		return fmt.Errorf("%w: this node no longer leads", ErrLeaderUnavailable)
	}

	return nil
}

// leadsIn reports whether this node leads, as far as it knows, in a term of Raft.
func (c *core) leadsIn(term uint64) bool {
	r := c.raft.Load()
	return r.State() == raft.Leader && r.CurrentTerm() == term
}

// proposeBytes proposes an encoded entry; see propose for the errors.
func (c *core) proposeBytes(ctx context.Context, entry []byte) (agreement.Result, error) {
	if err := ctx.Err(); err != nil {
		return agreement.Result{}, fmt.Errorf("%w: %w", ErrLeaderUnavailable, err)
	}
	if !c.leads() {
		return agreement.Result{}, fmt.Errorf("%w: this node does not lead", ErrLeaderUnavailable)
	}
	if err := c.config.Build.CheckProposable(c.State(), entry); err != nil {
		return agreement.Result{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}

	type outcome struct {
		result agreement.Result
		err    error
	}
	o, err := runTask(ctx, c, func() (o outcome) {
		f := c.raft.Load().Apply(entry, enqueueTimeout)
		if err := f.Error(); err != nil {
			o.err = proposeError(err)
		} else {
			o.result, o.err = entryResult(f.Response())
		}
		return o
	})

	switch {
	case errors.Is(err, ErrClosed):
		return o.result, fmt.Errorf("%w: %w", ErrLeaderUnavailable, err)
	case err != nil:
		return o.result, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}

	return o.result, o.err
}

// runTask runs a task that Close waits for, and waits for its result until ctx
// ends. It exists because Raft's futures don't support contexts.
func runTask[T any](ctx context.Context, c *core, task func() T) (result T, err error) {
	done := make(chan T, 1)
	if !c.background.Go(func() { done <- task() }) {
		return result, ErrClosed
	}
	select {
	case result = <-done:
		return result, nil
	case <-ctx.Done():
		return result, ctx.Err()
	}
}

// awaitRaft waits until a Raft operation has finished.
func (c *core) awaitRaft(ctx context.Context, f raft.Future) error {
	result, err := runTask(ctx, c, f.Error)
	return cmp.Or(err, result)
}

// entryResult converts the machine's response to an entry.
func entryResult(response any) (agreement.Result, error) {
	switch r := response.(type) {
	case agreement.Result:
		return r, nil
	case error:
		return agreement.Result{}, fmt.Errorf("%w: %w", ErrOutcomeUnknown, r)
	}
	return agreement.Result{}, fmt.Errorf("%w: Raft returned no result", ErrOutcomeUnknown)
}

// proposeError classifies Raft's errors by whether the entry may have been proposed.
func proposeError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress),
		errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", ErrLeaderUnavailable, err)
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err) // leadership lost, shutdown, a failed disk
}

// followLeadership is the loop that passes changes of leadership on to the
// granter, in order. Raft keeps only the last notification that was not
// received in time, so a short leadership may be missed, or two may look like
// one.
func (c *Cluster) followLeadership() {
	for {
		select {
		case leads := <-c.raft.Load().LeaderCh():
			c.leaderChanges.Add(1)

			if leads {
				c.granter.StartLeading()
				wake.Signal(c.leadChanged)
				wake.Signal(c.reconcileNeeded)
			} else {
				c.granter.StopLeading()
			}

			wake.Signal(c.sharedRules.wake)
			c.config.Logger.Debug("leadership changed", "leads", leads)
			c.holder.AskNow()
		case <-c.ctx.Done():
			return
		}
	}
}

// snapshotBySize is the loop that takes a snapshot once the entries since the
// last one reach SnapshotBytes. Raft itself counts only their number.
func (c *Cluster) snapshotBySize() {
	c.loop(c.config.Timings.Snapshot/4, nil, func() (last bool) {
		if c.machine.entryBytes.Load() >= c.config.SnapshotBytes {
			if err := c.raft.Load().Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
				c.config.Logger.Warn("can't take a snapshot", "error", err)
			}
		}
		return false
	})
}
