package limiter

import (
	"cmp"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules"
)

// A counter refuses a cost above its capacity for ever. But the capacity may be
// lower than the rules say: a step of an adaptive rule lowers it, regions
// divide it, and a node that is cut off has a share. It then changes again, so
// the check may be allowed later.

const (
	// longestReduced is the RetryAfter of a check whose cost exceeds a reduced
	// capacity, if nobody knows when that changes.
	longestReduced = time.Minute
	// shortestStep is the same for a step that follows a load which is measured all the time.
	shortestStep = time.Second
)

// markReduced corrects the refusals of the limits first to end−1 that say
// "never" although the capacity is only reduced for now: it says when the
// capacity may change.
func (a *Answer) markReduced(first, end int) {
	for i := first; i < end; i++ {
		op := &a.scratch.ops[i]
		decision := &op.Decision
		limit := a.Limits[i].Limit
		if decision.Allowed || decision.RetryAfter != algorithms.Never || op.Cost > limit.Configured().Capacity() {
			continue
		}
		decision.Reduced = true
		decision.RetryAfter = a.timeToChange(a.Limits[i].Rule, limit)
	}
}

// timeToChange returns when the capacity of a reduced limit changes next, or may.
func (a *Answer) timeToChange(rule *rules.Rule, limit *rules.Limit) time.Duration {
	switch {
	case limit.IsLowered():
		return a.scratch.active.stepLeft(rule)
	case limit.Kind == algorithms.FixedWindow:
		return max(1, limit.WindowLeft(a.Now)) // shares change with the windows
	}
	return min(limit.Limit.Window, longestReduced)
}

// stepLeft returns for how much longer the load behind rule's step counts, if no
// newer one is reported.
func (active *activeRules) stepLeft(rule *rules.Rule) time.Duration {
	if active.loadLeft == nil || rule.Adaptive == nil {
		return shortestStep
	}
	return cmp.Or(active.loadLeft(rule.Adaptive.Source), shortestStep)
}
