package limiter

import (
	"cmp"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules"
)

// A counter refuses a cost above its capacity for ever. But the capacity may be
// lower than the rules say: a step of an adaptive rule lowers it, regions
// divide it, and a node that is cut off has only a share. A reduced capacity
// changes again, so the check may be allowed later.

const (
	// longestReduced bounds the RetryAfter of a check whose cost exceeds a reduced
	// capacity, if nobody knows when the capacity changes.
	longestReduced = time.Minute
	// shortestStep is the RetryAfter if a step has lowered the capacity and its
	// load is measured all the time, or its end is unknown.
	shortestStep = time.Second
)

// markReduced corrects those refusals of the limits first to end−1 that say
// "never" although the capacity is only reduced for now. They then say when the
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

// timeToChange returns how long it takes until the capacity of a reduced limit
// changes, or may change.
func (a *Answer) timeToChange(rule *rules.Rule, limit *rules.Limit) time.Duration {
	switch {
	case limit.IsLowered():
		return a.scratch.active.stepLeft(rule)
	case limit.Kind == algorithms.FixedWindow:
		return max(1, limit.WindowLeft(a.Now)) // shares change with the windows
	}
	return min(limit.Limit.Window, longestReduced)
}

// stepLeft returns for how much longer the load behind rule's step counts, if
// no newer load is reported.
func (active *activeRules) stepLeft(rule *rules.Rule) time.Duration {
	if active.loadLeft == nil || rule.Adaptive == nil {
		return shortestStep
	}
	return cmp.Or(active.loadLeft(rule.Adaptive.Source), shortestStep)
}
