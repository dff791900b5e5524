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
	// TickInterval is how often Steps must be called while some rule is adaptive.
	// Reports expire and loads settle without any report that would say so.
	TickInterval = 200 * time.Millisecond
)

// Margin is how far below a step the load must be for the step to go out of
// force at once: 0.05, or a twentieth of the step if that is more; half of the
// step if it is less than 0.1.
func Margin(above float64) float64 { return min(above/2, max(0.05, above/20)) }

// ruleSteps tracks a rule's steps. If one is in force, so are all below it.
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

// follows reports whether a has r's source and steps. Factors don't matter.
func (r *ruleSteps) follows(a *document.Adaptive) bool {
	return r.source == a.Source &&
		slices.EqualFunc(r.steps, a.Steps, func(x, y document.AdaptiveStep) bool { return x.Above == y.Above })
}

// step updates which steps are in force, and returns the highest, or −1.
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
