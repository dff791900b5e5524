package loads

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/rules/document"
)

const (
	// SettleTime is how long a load must stay at or only slightly below a step in
	// force before the step goes out of force.
	SettleTime = 10 * time.Second
	// TickInterval is how often Steps must be called while a rule is adaptive,
	// because reports expire and loads settle.
	TickInterval = 200 * time.Millisecond
)

// Margin is how far below a step the load must be for the step to go out of
// force at once: 0.05, or a twentieth of the step if that is more; half of the
// step if it is less than 0.1.
func Margin(above float64) float64 { return min(above/2, max(0.05, above/20)) }

// ruleSteps tracks the steps of a rule in force. If one is in force, all below it are.
type ruleSteps struct {
	source string
	steps  []document.AdaptiveStep
	on     []bool
	above  []time.Duration // per step: when the load was last above it
}

func newRuleSteps(a *document.Adaptive) *ruleSteps {
	return &ruleSteps{source: a.Source, steps: a.Steps, on: make([]bool, len(a.Steps)),
		above: make([]time.Duration, len(a.Steps))}
}

// follows reports whether r fits a: the same source and steps. The factors don't matter.
func (r *ruleSteps) follows(a *document.Adaptive) bool {
	return r.source == a.Source &&
		slices.EqualFunc(r.steps, a.Steps, func(x, y document.AdaptiveStep) bool { return x.Above == y.Above })
}

// step returns the highest step in force at a load that may be unknown; -1: none.
func (r *ruleSteps) step(now time.Duration, load float64, known bool) int {
	highest := -1
	for i := range r.steps {
		above := r.steps[i].Above
		switch {
		case !known:
			r.on[i] = false
		case load > above:
			r.on[i] = true
			r.above[i] = now
		case load <= above-Margin(above), now-r.above[i] >= SettleTime:
			r.on[i] = false
		}

		if r.on[i] {
			highest = i
		}
	}

	return highest
}
