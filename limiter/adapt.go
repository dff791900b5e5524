package limiter

import (
	"cmp"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules"
)

// FollowLoads makes the limiter learn the loads that lower limits from two
// functions. Call it before SetRules.
//
// steps returns the step in force for each rule of a set, by Rule.Index: −1 for
// none. A nil result changes no step. SetRules and UpdateSteps call steps, one
// call at a time, and only for sets with at least one adaptive rule.
//
// left, which may be nil, returns how much longer the load of a source is known
// if nobody reports another; 0 if the load is unknown or measured all the time.
// Checks call left concurrently.
func (l *Limiter) FollowLoads(steps func(*rules.Set) []int, left func(source string) time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loadSteps, l.loadLeft = steps, left
}

// UpdateSteps calls the steps of FollowLoads. Checks that begin afterwards use
// the new steps. A check in flight keeps the limits with which it began.
func (l *Limiter) UpdateSteps() {
	l.mu.Lock()
	defer l.mu.Unlock()
	active := l.active.Load()
	if active != nil && active.adapt(l.loadSteps) {
		l.markRatesChanging()
	}
}

// LimitFactor returns the factor that currently multiplies rule's limits: 1 if no step is in force.
func (l *Limiter) LimitFactor(rule *rules.Rule) float64 {
	active := l.active.Load()
	if active == nil || rule.Adaptive == nil || rule.Index >= len(active.steps) ||
		active.set.Rules[rule.Index].Adaptive != rule.Adaptive {
		return 1
	}
	step := int(active.steps[rule.Index].Load()) - 1
	if step < 0 {
		return 1
	}
	return rule.Adaptive.Steps[step].Factor
}

// adapt stores the steps in force, as loadSteps returns them, and reports
// whether any has changed. The caller must hold Limiter.mu.
func (active *activeRules) adapt(loadSteps func(*rules.Set) []int) (changed bool) {
	if loadSteps == nil || active.steps == nil {
		return false
	}
	for i, step := range loadSteps(active.set) {
		before := active.steps[i].Swap(int32(step + 1))
		changed = changed || before != int32(step+1)
	}
	return changed
}

// lowerLimits lowers the limits of match's hits by the steps in force.
func (active *activeRules) lowerLimits(match *rules.Match) {
	if active.steps == nil {
		return
	}
	for i := range match.Hits {
		h := &match.Hits[i]
		if h.Rule.Adaptive == nil {
			continue
		}
		if step := int(active.steps[h.Rule.Index].Load()) - 1; step >= 0 {
			h.Limits = h.Rule.Lowered(h.Limits, step)
		}
	}
}

// A counter refuses a cost above its capacity for ever. But the capacity may be
// lower than the rules say: a step of an adaptive rule lowers it, regions
// divide it, and a node that is cut off has only a share. A reduced capacity may
// grow again, and the same check may then be allowed.

const (
	// longestReduced bounds the RetryAfter of a check whose cost exceeds a reduced
	// capacity, if nobody knows when the capacity changes.
	longestReduced = time.Minute
	// retryWhileLowered is the RetryAfter if a step has lowered the capacity
	// and nobody knows when the step ends: its load is measured all the time,
	// or is unknown.
	retryWhileLowered = time.Second
)

// markReduced corrects refusals of the limits first to end−1. Where a refusal
// says "never" although the capacity is only reduced for now, it then says when
// the capacity may change.
func (a *Answer) markReduced(first, end int) {
	for i := first; i < end; i++ {
		op := &a.scratch.ops[i]
		decision := &op.Decision
		limit := a.Limits[i].Limit
		if a.Limits[i].ByHand {
			continue // it refuses because of a block, which may have no end
		}
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

// stepLeft returns for how much longer rule's step stays in force if no newer
// load is reported.
func (active *activeRules) stepLeft(rule *rules.Rule) time.Duration {
	if active.loadLeft == nil || rule.Adaptive == nil {
		return retryWhileLowered
	}
	return cmp.Or(active.loadLeft(rule.Adaptive.Source), retryWhileLowered)
}
