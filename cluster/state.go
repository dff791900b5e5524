package cluster

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

// State returns the newest agreed state that this node has applied. It is never
// nil. It may be older than StateInUse.
func (c *core) State() *agreement.State { return c.machine.state.Load() }

// StateInUse returns the newest state that this node uses: normally the applied
// one. A node that relies on its memory uses the remembered state until the
// applied one has caught up. The remembered state does not tell which node owns
// what now.
func (c *core) StateInUse() *agreement.State {
	s := c.State()
	remembered := c.memory.state.Load()
	if remembered != nil && c.memory.inUse.Load() && s.Index < remembered.Index {
		return remembered
	}
	return s
}

// memory is the state that an earlier process of this node had applied.
type memory struct {
	state         atomic.Pointer[agreement.State] // nil if there is none, or the applied state has caught up with it
	inUse         atomic.Bool                     // this process has begun to rely on it
	noMajority    chan struct{}                   // capacity 1: no majority can be reached
	recordedIndex uint64                          // the recorded index; used by one goroutine at a time
}

// reliesOnMemory reports whether this node is ready because of its memory: no
// majority could be reached when it started, and it has had no authority since.
func (c *core) reliesOnMemory() bool {
	return c.memory.inUse.Load() && !c.holder.EverValid()
}

// isBehindMemory reports whether s is older than the remembered state in force.
func (c *core) isBehindMemory(s *agreement.State) bool {
	m := c.memory.state.Load()
	return m != nil && c.memory.inUse.Load() && s.Index < m.Index
}

// dropMemoryInUse drops the remembered state if it is in force: from now on,
// StateInUse returns the applied state.
func (c *core) dropMemoryInUse() {
	if c.memory.inUse.Load() {
		c.memory.state.Store(nil)
	}
}

// stateFeed passes applied states on to the rest of the node, in order, from
// one goroutine. Raft's goroutine never waits for it. If states pile up, it
// passes only the newest one on.
type stateFeed struct {
	// mu guards published and waiter.
	mu        sync.Mutex
	published *agreement.State // the last state passed on; its rules are in force, unless remembered ones are newer
	waiter    chan struct{}    // closed the next time published changes; nil without waiters

	// What was passed on last; only the loop uses it.
	publishedRules   *rules.Set
	publishedEntries *entries.State
}

// awaitState waits until the last state passed on satisfies ok, or ctx ends.
func (c *core) awaitState(ctx context.Context, ok func(*agreement.State) bool) error {
	for {
		c.feed.mu.Lock()
		if c.feed.published != nil && ok(c.feed.published) {
			c.feed.mu.Unlock()
			return nil
		}

		if c.feed.waiter == nil {
			c.feed.waiter = make(chan struct{})
		}

		waiter := c.feed.waiter
		c.feed.mu.Unlock()

		select {
		case <-waiter:
		case <-c.machine.stopped:
			return c.StuckError()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.ctx.Done():
			return ErrClosed
		}
	}
}

// AwaitRevision waits until this node uses at least the given revision of the
// state and version of the rules. It returns false if ctx ends first or this
// node stops applying entries.
func (c *core) AwaitRevision(ctx context.Context, revision, version int64) bool {
	return c.awaitState(ctx, func(s *agreement.State) bool {
		return int64(s.Revision) >= revision && rulesVersion(s) >= version
	}) == nil
}

// StuckError returns why this node no longer applies entries, or nil if it still does.
func (c *core) StuckError() error {
	if s := c.machine.stuck.Load(); s != nil {
		return s
	}
	return nil
}

// rulesVersion returns the version of the rules in force in a state, or 0 if there is none.
func rulesVersion(s *agreement.State) int64 {
	_, v := s.History.Current()
	return v.Number
}

// ringChanged reports whether the ring, the nodes' processes or the members
// differ, and not just the rules or the index.
func ringChanged(before, after *agreement.State) bool {
	return before.Revision != after.Revision || !maps.Equal(before.Members, after.Members)
}
