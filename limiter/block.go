package limiter

import (
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// A block is one more counter of its rule and subject, so replication,
// hand-over, checkpoints and eviction need not know about blocks. A rule whose
// blocks become longer has one counter for each length. While a check is being
// decided, the ops of a rule's blocks follow the ops of its limits, and
// likewise in Answer.Limits. Answer.conclude folds the blocks into the limits.

// countHitOps returns how many ops a hit has: one for each limit, and one for
// each length of its block.
func countHitOps(h *rules.Hit) int { return len(h.Limits) + len(h.Rule.Blocks) }

// addBlocks appends a hit's blocks, after the hit's limits. The blocks have the
// mode of the limits, so that they do not make a count fail.
func (a *Answer) addBlocks(h *rules.Hit, mode counters.Mode) {
	a.scratch.hasBlocks = true
	for _, block := range h.Rule.Blocks {
		op := counters.Op{Key: counterKey(h, block), Limit: &block.Limit, Shadow: h.Rule.Shadow,
			Mode: mode, Block: true}
		a.scratch.ops = append(a.scratch.ops, op)
		a.Limits = append(a.Limits, LimitAnswer{Rule: h.Rule, Limit: block})
	}
}

// foldBlocks removes the blocks from the check. Where a block is on, all limits
// of its rule refuse until it ends.
func (a *Answer) foldBlocks() {
	sc := &a.scratch
	ops, limits := sc.ops[:0], a.Limits[:0] // overwrite only what was read before

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
	sc.hasBlocks = false
}

// whileBlocked returns what a limit decides, in place of decision, while a
// block of its subject lasts for the time left. For at least that long, the
// limit refuses and nothing remains. Used stays as it is.
func whileBlocked(decision algorithms.Decision, left time.Duration) algorithms.Decision {
	out := algorithms.Decision{
		Used: decision.Used, RetryAfter: left, ResetAfter: max(decision.ResetAfter, left), MoreAfter: left,
	}
	if decision.Remaining == 0 {
		out.MoreAfter = max(left, decision.MoreAfter)
	}
	if !decision.Allowed && (decision.RetryAfter == algorithms.Never || decision.RetryAfter > left) {
		out.RetryAfter, out.Reduced = decision.RetryAfter, decision.Reduced
	}
	return out
}

// mustWait reports whether subject i must wait until every subject without a
// block is decided. Otherwise another rule could refuse the check after i took
// its cost. Until that cost is given back it looks used, and a refusal
// meanwhile would trigger a block.
func (c *clusterCheck) mustWait(i int) bool {
	hits := c.answer.scratch.match.Hits
	if !c.answer.scratch.hasBlocks || hits[i].Rule.Blocks == nil {
		return false
	}
	for j := range hits {
		if c.subjects[j].state != stateDecided && hits[j].Rule.Blocks == nil {
			return true
		}
	}
	return false
}

// beginBlocksAlone begins in the fallback counters the blocks that a copy's
// refusal triggers, because the copy itself may be read-only.
func (c *clusterCheck) beginBlocksAlone(list []int) {
	if c.peek {
		return
	}

	for _, i := range list {
		s := &c.subjects[i]
		ops := c.ops(s)
		for j := range ops {
			op := &ops[j]
			// A block with its full length left has just begun.
			if op.Block && !op.Decision.Allowed &&
				op.Decision.RetryAfter == op.Limit.Window-op.Limit.MaxDelay &&
				c.aloneOps[s.firstAloneOp+j].Decision.Allowed {
				// If the table is full, the limits still refuse.
				_ = c.limiter.membership.Fallback.BeginBlock(c.now, op.Key, op.Limit)
			}
		}
	}
}
