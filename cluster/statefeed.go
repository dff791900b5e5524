package cluster

import (
	"context"
	"maps"
	"sync"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/entries"
)

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

// publish passes a new state on. Only the loop calls it.
func (c *Cluster) publish(before, now *agreement.State) {
	if now.Cluster != before.Cluster {
		c.founder.recordCluster(now.Cluster)
	}

	// The ring is passed on first: other nodes may already use it, and this node
	// can't answer them before it knows the ring. Rules may come into force at
	// slightly different times on different nodes.
	if c.config.OnState != nil && ringChanged(before, now) {
		c.config.OnState(now)
	}

	if !c.olderThanMemory(now) {
		c.publishRules(now)
		c.publishEntries(now)
	}

	c.feed.mu.Lock()
	c.feed.published = now
	waiter := c.feed.waiter
	c.feed.waiter = nil
	c.feed.mu.Unlock()

	if waiter != nil {
		close(waiter)
	}

	if now.History != before.History || now.Regions != before.Regions {
		wake.Signal(c.sharedRules.wake)
		c.holder.AskNow() // the leader waits until a majority has reported the new rules
	}

	if !ringChanged(before, now) {
		return
	}

	self := c.config.Self.ID
	if now.Generation(self) != before.Generation(self) {
		c.config.Logger.Info("other nodes have taken over what this node owned", "generation", now.Generation(self))
		// This comes after published is set: the next request must have the new
		// generation.
		c.holder.Revoke()
	}

	c.holder.AskNow()
	wake.Signal(c.reconcileNeeded)
}

// publishRules passes the state's rules on if they are new. Only the loop calls it.
func (c *Cluster) publishRules(s *agreement.State) {
	set := s.SetFor(c.config.Self.Region)
	if c.config.OnRules != nil && set != nil && set != c.feed.publishedRules {
		c.feed.publishedRules = set
		c.config.OnRules(set)
	}
}

// ringChanged reports whether the ring, the nodes' processes or the members
// differ, and not just the rules or the index.
func ringChanged(before, now *agreement.State) bool {
	return before.Revision != now.Revision || !maps.Equal(before.Members, now.Members)
}

// feedStates is the state feed's loop.
func (c *Cluster) feedStates() {
	before := agreement.New()
	for {
		now := c.machine.state.Load()
		if now != before {
			c.publish(before, now)
			before = now
			continue
		}

		select {
		case <-c.stateApplied:
		case <-c.memory.noMajority:
			c.relyOnMemory()
		case <-c.ctx.Done():
			return
		}
	}
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

// rulesVersion returns the version of the rules in force in a state, or 0 if there is none.
func rulesVersion(s *agreement.State) int64 {
	_, v := s.History.Current()
	return v.Number
}

// AwaitRevision waits until this node uses at least the given revision of the
// state and version of the rules. It returns false if ctx ends first or this
// node stops applying entries.
func (c *core) AwaitRevision(ctx context.Context, revision, version int64) bool {
	return c.awaitState(ctx, func(s *agreement.State) bool {
		return int64(s.Revision) >= revision && rulesVersion(s) >= version
	}) == nil
}
