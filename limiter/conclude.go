package limiter

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/partitions"
	"github.com/rlnode/rlnode/rules"
)

func isHeld(r *partitions.Route) bool { return r.Place == partitions.Held }

// frozen reports whether p is worth waiting for.
func (c *journey) frozen(p *part, r *partitions.Route) bool {
	m := c.limiter.member
	return !isHeld(r) && (r.Place == partitions.Frozen || r.Owner == m.Self) && !slices.Contains(p.tried, m.Self) &&
		time.Now().Before(c.thaw) && m.Authority()
}

// uncountedRetry is when to try again where `on_partition: deny` refuses: until then the owner may be back.
const uncountedRetry = time.Second

// alone decides parts by this node alone: those of `consistency: local` rules (ByOwner), and in fallback.
func (c *journey) alone(list []int, by DecidedBy) {
	m := c.limiter.member
	nodes, rank := m.place()
	start, refused := len(c.private), false
	for _, i := range list {
		p := &c.parts[i]
		rule := c.answer.Limits[p.first].Rule
		mode := rules.Share
		if by == ByFallback {
			mode = rule.OnPartition
			m.figures.fallback[mode].Add(1)
		}
		p.private = len(c.private) + 1
		ops := c.ops(p)
		for j := range ops {
			op := ops[j]
			counted := c.divide(&op, mode, nodes, rank)
			ops[j].Decision, ops[j].Full = op.Decision, false
			refused = refused || !counted && !op.Decision.Allowed && !op.Shadow
			if !counted {
				op.Cost, op.Shadow = 0, true // takes part without taking
			}
			c.private = append(c.private, op)
		}
	}
	taken := c.private[start:]
	admitted := !refused
	if c.peek || refused {
		admitted = m.Private.Peek(c.now, taken) && admitted
	} else {
		admitted = m.Private.Take(c.now, taken)
	}
	for _, i := range list {
		p := &c.parts[i]
		c.tell(p, by)
		p.settle(by, admitted)
		p.when = c.now
		p.withdrawn = !admitted && !refused
	}
	c.refused = c.refused || !admitted
}

// divide makes op's limit this node's part of it. It reports false where that takes no counting: op is decided then.
func (c *journey) divide(op *counters.Op, mode rules.OnPartition, nodes, rank int) bool {
	switch mode {
	case rules.Full:
		return true
	case rules.AllowUncounted:
		op.Decision = op.Limit.Peek(algorithms.State{}, c.now, 0)
		return false
	case rules.RefuseUncounted:
		op.Decision = algorithms.Decision{Allowed: op.Cost == 0}
		if op.Cost > 0 {
			op.Decision.RetryAfter = uncountedRetry
		}
		return false
	}
	share, ok := localcache.Scaled(op.Limit, nodes, rank)
	if !ok {
		op.Decision = localcache.Nothing(op.Limit, c.now, op.Cost)
		return false
	}
	op.Limit = &share
	return true
}

// tell takes over what the private counters said of p.
func (c *journey) tell(p *part, by DecidedBy) {
	ops := c.ops(p)
	for j := range ops {
		op, counted := &ops[j], &c.private[p.private-1+j]
		if counted.Shadow && !op.Shadow || counted.Cost == 0 && op.Cost != 0 {
			continue // decided by divide
		}
		op.Decision, op.Full = localcache.Told(counted.Decision, op.Limit, c.now, op.Cost), counted.Full
	}
}

// giveBack gives back all that was taken.
func (c *journey) giveBack() {
	if c.peek {
		return
	}
	l := c.limiter
	for i := range c.parts {
		p := &c.parts[i]
		if p.state != partDecided || !p.admitted {
			continue
		}
		switch {
		case p.here:
			c.giveHere(p)
		case p.private > 0:
			for j := range p.n {
				if op := &c.private[p.private-1+j]; took(op) {
					l.member.Private.Give(l.clock.Now(), op, takenAt(op, p.when))
				}
			}
		case p.ask != nil:
			l.giveBack(p.ask)
			p.ask.admitted = false // which other parts of it would give back again
		}
	}
}

// giveHere gives p's cost back to the counters here, if they are still those that it came from.
func (c *journey) giveHere(p *part) {
	l := c.limiter
	if l.member.Ownership.Lineage(partitionOf(p.hi)) != p.lineage {
		return
	}
	ops := c.ops(p)
	for j := range ops {
		if op := &ops[j]; took(op) {
			_ = l.table.Give(l.clock.Now(), op.Key, op.Limit, takenAt(op, p.when), op.Cost) // shut: lost
		}
	}
}

// refuse ends a check that one of its parts refuses. Those that were not looked at are left out of the answer.
func (c *journey) refuse() {
	c.giveBack()
	a := c.answer
	a.Allowed = false
	for i := range c.parts {
		p := &c.parts[i]
		if p.state != partDecided || p.withdrawn {
			continue
		}
		for j := range c.ops(p) {
			if op := &c.ops(p)[j]; took(op) {
				op.Decision.Remaining = min(op.Limit.Capacity(), op.Decision.Remaining+op.Cost)
				op.Decision.Delay = 0
			}
		}
	}
	s := &a.scratch
	hits, ops, limits := s.match.Hits[:0], s.ops[:0], a.Limits[:0]
	for i := range c.parts {
		p := &c.parts[i]
		if p.state != partDecided {
			continue
		}
		hits = append(hits, s.match.Hits[i])
		limits = append(limits, a.Limits[p.first:p.first+p.n]...)
		ops = append(ops, s.ops[p.first:p.first+p.n]...)
	}
	s.match.Hits, s.ops, a.Limits = hits, ops, limits
	c.conclude()
}

// conclude says how the check was decided: the weakest of its parts' ways.
func (c *journey) conclude() {
	a := c.answer
	a.DecidedBy = ByOwner
	for i := range c.parts {
		if p := &c.parts[i]; p.state == partDecided {
			a.DecidedBy = min(a.DecidedBy, p.by)
		}
	}
	a.conclude()
}
