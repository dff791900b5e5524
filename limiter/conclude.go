package limiter

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// conclude copies the counters' decisions into the answer and finds the
// tightest limit. If a limit refuses a count, the answer is not allowed although
// the cost was taken.
func (a *Answer) conclude(l *Limiter) {
	if a.scratch.hasBlockOps {
		a.foldBlocks()
	}
	if a.scratch.countsHandBlocked {
		a.foldHandBlocks()
	}

	limits, ops := a.Limits, a.scratch.ops[:len(a.Limits)]

	// The usual case. What follows is for refusals, shadow rules and several
	// limits.
	if a.scratch.soleCounts != nil && a.Allowed {
		limits[0].set(&ops[0])
		a.TightestIndex = 0
		return
	}

	a.markReduced(0, len(limits))

	for i := range limits {
		la, op := &limits[i], &ops[i]
		la.concludeZero(op)
		la.set(op)
		if !la.Allowed {
			a.concludeRefusal(l, la, op)
		}
		if a.isTightestSoFar(la) {
			a.TightestIndex = i
		}
	}
}

// isTightestSoFar reports whether la, rather than the limit of TightestIndex,
// describes the check.
func (a *Answer) isTightestSoFar(la *LimitAnswer) bool {
	return !la.Rule.Shadow && (a.TightestIndex < 0 || la.comesBefore(&a.Limits[a.TightestIndex]))
}

// concludeRefusal completes the answer of a limit that refuses.
func (a *Answer) concludeRefusal(l *Limiter, la *LimitAnswer, op *counters.Op) {
	l.boundShareRefusal(a, la, op)
	if a.Allowed && op.Mode == counters.CountMode && !la.Rule.Shadow {
		a.Allowed, a.Counted = false, true
	}
}

// concludeZero refuses a cost for a limit of 0. listOps has asked the counters
// for a cost of 0 instead: otherwise a count would make a counter, and a refusal
// would begin a block.
func (la *LimitAnswer) concludeZero(op *counters.Op) {
	if la.Cost > op.Cost && la.Limit.RefusesAll() {
		op.Decision.Allowed, op.Decision.RetryAfter = false, algorithms.Never
	}
}

// foldBlocks removes the blocks from the check. Where a block is on, all limits
// of its rule refuse until it ends.
func (a *Answer) foldBlocks() {
	sc := &a.scratch
	ops, limits := sc.ops[:0], a.Limits[:0] // these overwrite only what the loop has read

	first := 0
	for i := range sc.match.Hits {
		h := &sc.match.Hits[i]
		n := len(h.Limits)
		subjectOps, blocks := sc.ops[first:first+n], sc.ops[first+n:first+countHitOps(h)]

		blocked := false
		for j := range blocks {
			if blocks[j].Decision.Allowed {
				continue
			}

			blocked = true
			a.markReduced(first, first+n)
			for k := range subjectOps {
				subjectOps[k].Decision = whileBlocked(subjectOps[k].Decision, blocks[j].BlockLeft())
			}
		}

		for j := range subjectOps {
			la := a.Limits[first+j]
			la.Blocked = blocked
			ops, limits = append(ops, subjectOps[j]), append(limits, la)
		}
		first += n + len(blocks)
	}
	sc.ops = ops
	a.Limits = limits
	sc.hasBlockOps = false
}

// foldHandBlocks makes all limits of a rule refuse a count if the subject is
// blocked by hand in the rule. What was counted stays counted.
func (a *Answer) foldHandBlocks() {
	match := &a.scratch.match
	first := 0
	for i := range match.Hits {
		h := &match.Hits[i]
		end := first + len(h.Limits)
		until := a.Set.BlockedUntil(match, h)
		if until == 0 || h.Rule.Shadow {
			first = end
			continue
		}

		for ; first < end; first++ {
			op := &a.scratch.ops[first]
			op.Decision = untilBlockEnds(match, op.Decision, until)
			a.Limits[first].Blocked = true
			a.Limits[first].ByHand = true
		}
	}
}
