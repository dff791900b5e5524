package cluster

import (
	"context"
	"maps"
	"sync"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules"
)

// stateFeed passes applied states on to the rest of the node, in order, from one goroutine. Raft's goroutine never waits for
// it: if states pile up, only the newest is passed on.
type stateFeed struct {
	// mu guards told and waiter.
	mu     sync.Mutex
	told   *agreement.State // the last one passed on; its rules are in force
	waiter chan struct{}    // closed and replaced each time told changes; nil without waiters

	rules *rules.Set // last ones passed on; only the loop uses it
}

// tell handles a new state. Only the loop calls it.
func (c *Cluster) tell(before, now *agreement.State) {
	if now.Cluster != before.Cluster {
		c.founder.adopt(now.Cluster)
	}
	// The ring first: rules may come into force slightly earlier on another node, but this node can't answer for a ring
	// that it doesn't know.
	if c.cfg.OnState != nil && ringChanged(before, now) {
		c.cfg.OnState(now)
	}
	if !c.older(now) {
		c.tellRules(now)
	}
	c.feed.mu.Lock()
	c.feed.told = now
	waiter := c.feed.waiter
	c.feed.waiter = nil
	c.feed.mu.Unlock()
	if waiter != nil {
		close(waiter)
	}
	if now.History != before.History || now.Regions != before.Regions {
		poke(c.governor.wake)
		c.holder.Poke() // the leader waits until a majority uses them
	}
	if !ringChanged(before, now) {
		return
	}
	self := c.cfg.Self.ID
	if now.Generation(self) != before.Generation(self) {
		c.cfg.Logger.Warn("this node's authority was ended", "generation", now.Generation(self))
		c.holder.Revoke()
	}
	c.holder.Poke()
	poke(c.reconcile)
}

// tellRules passes new rules on. Only the loop calls it.
func (c *Cluster) tellRules(s *agreement.State) {
	if set := s.SetFor(c.cfg.Self.Region); c.cfg.OnRules != nil && set != nil && set != c.feed.rules {
		c.feed.rules = set
		c.cfg.OnRules(set)
	}
}

// ringChanged reports whether more has changed than rules and empty entries.
func ringChanged(before, now *agreement.State) bool {
	return before.Revision != now.Revision || !maps.Equal(before.Members, now.Members)
}

// feedStates is the state feed's loop.
func (c *Cluster) feedStates() {
	before := agreement.New()
	for {
		if now := c.machine.state.Load(); now != before {
			c.tell(before, now)
			before = now
			continue
		}
		select {
		case <-c.applied:
		case <-c.memory.missing:
			c.relyOnMemory()
		case <-c.ctx.Done():
			return
		}
	}
}

// wait waits until the state that was passed on satisfies ok, or ctx ends.
func (c *core) wait(ctx context.Context, ok func(*agreement.State) bool) error {
	for {
		c.feed.mu.Lock()
		if c.feed.told != nil && ok(c.feed.told) {
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
			return c.Stuck()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.ctx.Done():
			return ErrClosed
		}
	}
}

// rulesVersion returns the version in force in a state, 0 if there is none.
func rulesVersion(s *agreement.State) int64 {
	_, v := s.History.Current()
	return v.Number
}

// Await waits until this node has applied a revision and a version of the rules, and reports whether it has.
func (c *core) Await(ctx context.Context, revision, version int64) bool {
	return c.wait(ctx, func(s *agreement.State) bool {
		return int64(s.Revision) >= revision && rulesVersion(s) >= version
	}) == nil
}

// poke signals a channel of capacity 1 without blocking.
func poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
