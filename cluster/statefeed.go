package cluster

import (
	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/wake"
)

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

// publish passes a new state on. Only the loop calls it.
func (c *Cluster) publish(before, after *agreement.State) {
	if after.Cluster != before.Cluster {
		c.founder.recordCluster(after.Cluster)
	}

	// The ring is passed on first: other nodes may already use it, and this node
	// can't answer them before it knows the ring. Rules may come into force at
	// slightly different times on different nodes.
	if c.config.OnState != nil && ringChanged(before, after) {
		c.config.OnState(after)
	}

	// Until this node has applied all that it remembers, no rules are passed on:
	// rules must never go back.
	if !c.isBehindMemory(after) {
		c.dropMemoryInUse()
		c.publishRules(after)
		c.publishEntries(after)
	}

	c.feed.mu.Lock()
	c.feed.published = after
	waiter := c.feed.waiter
	c.feed.waiter = nil
	c.feed.mu.Unlock()

	if waiter != nil {
		close(waiter)
	}

	if after.History != before.History || after.Regions != before.Regions {
		wake.Signal(c.sharedRules.wake)
		c.holder.AskNow() // the leader waits until a majority has reported the new rules
	}

	if !ringChanged(before, after) {
		return
	}

	self := c.config.Self.ID
	if after.Generation(self) != before.Generation(self) {
		// This comes after published is set: the next request must have the new
		// generation. It comes before the log, which may block.
		c.holder.Revoke()
		c.config.Logger.Info("other nodes have taken over what this node owned", "generation", after.Generation(self))
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

// publishEntries passes a state's entries on if they are new. Only the feed's loop calls it.
func (c *Cluster) publishEntries(s *agreement.State) {
	if c.config.OnEntries == nil || s.Entries == c.feed.publishedEntries {
		return
	}
	c.feed.publishedEntries = s.Entries
	c.config.OnEntries(s.Entries)
}

// relyOnMemory puts the remembered rules in force. Only the state feed's loop calls it.
func (c *Cluster) relyOnMemory() {
	m := c.memory.state.Load()
	if m == nil {
		return // this node is in sync already
	}

	// Contact may have come back since the signal.
	if c.ReadyError() == nil {
		c.memory.state.Store(nil)
		return
	}

	c.config.Logger.Warn("can't reach a majority: this node decides alone, by the rules that it remembers",
		"rules_version", rulesVersion(m), "epoch", m.Epoch, "members", len(m.To.Members()))

	// The applied state is not older if a snapshot contained all of the memory.
	if c.State().Index < m.Index {
		c.publishRules(m)
		c.publishEntries(m)
	}

	// This comes last, because it makes this node ready.
	c.memory.inUse.Store(true)
}
