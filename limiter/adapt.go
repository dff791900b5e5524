package limiter

import (
	"time"

	"github.com/rlnode/rlnode/rules"
)

// FollowLoads sets two functions. steps returns the step in force for each rule
// of a set, by Rule.Index: −1 for none. A nil result changes no step. SetRules
// and UpdateSteps call steps only for sets with at least one adaptive rule.
// left, which may be nil, returns how much longer the load of a source is
// known; 0 if the load is unknown or measured all the time.
func (l *Limiter) FollowLoads(steps func(*rules.Set) []int, left func(source string) time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loadSteps, l.loadLeft = steps, left
}

// UpdateSteps updates the steps in force. Checks that begin afterwards use the
// new steps. A check already in flight keeps the limits in force when it began,
// on the node where it began.
func (l *Limiter) UpdateSteps() {
	l.mu.Lock()
	defer l.mu.Unlock()
	active := l.inForce.Load()
	if active != nil && active.adapt(l.loadSteps) {
		l.noteOtherRates()
	}
}

// LimitFactor returns the factor that currently multiplies rule's limits: 1 if no step is in force.
func (l *Limiter) LimitFactor(rule *rules.Rule) float64 {
	active := l.inForce.Load()
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
