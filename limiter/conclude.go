package limiter

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/partitions"
)

func isHeld(r *partitions.Route) bool { return r.Place == partitions.Held }

// frozen reports whether p is worth waiting for.
func (c *journey) frozen(p *part, r *partitions.Route) bool {
	m := c.limiter.member
	return !isHeld(r) && (r.Place == partitions.Frozen || r.Owner == m.Self) && !slices.Contains(p.tried, m.Self) &&
		time.Now().Before(c.thaw) && m.Authority()
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
			c.giveAlone(p)
		case p.by == ByLease && p.ask == nil:
			l.member.leases.Unspend(p.receipt, c.ops(p))
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
				if op.Limit.MaxDelay == 0 || op.Decision.Delay == 0 {
					op.Decision.Remaining = min(max(op.Limit.Capacity(), op.Decision.Remaining), op.Decision.Remaining+op.Cost)
				}
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
