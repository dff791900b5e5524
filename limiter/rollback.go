package limiter

import (
	"github.com/rlnode/rlnode/counters"
)

// tryConclude combines the subjects into one answer once all are decided, or
// one is refused, and reports whether the check is decided. The answer's
// DecidedBy is the weakest of the subjects'.
func (c *clusterCheck) tryConclude() bool {
	a := c.answer

	switch {
	case c.refusedOrFailed:
		// The order matters: dropUndecided moves the ops that rollBack reads.
		c.rollBack()
		c.dropUndecided()
	case c.decided < len(c.subjects):
		return false
	}

	a.Allowed = !c.refusedOrFailed
	a.DecidedBy = c.weakest
	a.Now = c.now

	hadBlocks := a.scratch.hasBlockOps
	a.conclude(c.limiter)
	if hadBlocks && !c.refusedOrFailed {
		c.renumberOps()
	}
	return true
}

// renumberOps finds the subjects' ops again after conclude has removed the
// blocks. A caller may still have to roll back, or to confirm, what was taken.
func (c *clusterCheck) renumberOps() {
	first := 0
	for i := range c.subjects {
		s := &c.subjects[i]
		s.firstOp = first
		s.numOps = len(c.answer.scratch.match.Hits[i].Limits)
		first += s.numOps
	}
}

// dropUndecided removes the undecided subjects from the answer to a refused
// check. The others are rolled back, so it reports their costs as never taken.
func (c *clusterCheck) dropUndecided() {
	a := c.answer
	sc := &a.scratch

	// These slices overwrite only what the loop has read.
	hits := sc.match.Hits[:0]
	ops := sc.ops[:0]
	limits := a.Limits[:0]

	for i := range c.subjects {
		s := &c.subjects[i]
		if s.state != stateDecided {
			continue
		}

		subjectOps := c.ops(s)
		for j := range subjectOps {
			if !s.reportsUntaken {
				c.reportUntaken(&subjectOps[j])
			}
		}

		hits = append(hits, sc.match.Hits[i])
		limits = append(limits, a.Limits[s.firstOp:s.firstOp+s.numOps]...)
		ops = append(ops, subjectOps...)
	}

	sc.match.Hits = hits
	sc.ops = ops
	a.Limits = limits
}

// reportUntaken makes op's decision report its cost as never taken.
func (c *clusterCheck) reportUntaken(op *counters.Op) {
	// An allowed look took nothing, but reports what remains as if it had.
	looked := op.Mode == counters.PeekMode && op.Decision.Allowed && c.peeksAreLooks
	if !op.Took() && !looked {
		return
	}

	// If the check was delayed, there was room for a part of the cost at most, and
	// nobody knows for how much. So Remaining stays as it is.
	isDelayed := op.Limit.MaxDelay > 0 && op.Decision.Delay > 0
	op.Decision.Delay = 0
	if isDelayed {
		return
	}

	// Remaining grows by the cost, up to the capacity.
	capacity := op.Limit.Capacity() + op.Decision.NetBorrowed
	back := min(op.Cost, max(0, capacity-op.Decision.Remaining))
	op.Decision.AddRemaining(op.Limit, back)
}

// rollBack gives back what the check took. What standbys admitted stays a debt.
func (c *clusterCheck) rollBack() {
	l := c.limiter
	for i := range c.subjects {
		s := &c.subjects[i]
		if c.peek || s.state != stateDecided || !s.admitted {
			continue
		}

		switch s.undo {
		case undoHere:
			c.rollBackHere(s)
		case undoFallback:
			c.rollBackFallback(s)
		case undoLease:
			l.cluster.leases.held.Unspend(s.receipt, c.ops(s))
		case undoAsked:
			s.answeredBy.rollBack(l)
			s.answeredBy.admitted = false // so that the other subjects of the question don't roll it back again
		}
	}
}

// rollBackHere gives s's cost back to this node's counters. If they are being
// handed over, the refund waits, or follows them.
func (c *clusterCheck) rollBackHere(s *subject) {
	c.limiter.sendRefunds([]refund{c.refundHere(s)})
}
