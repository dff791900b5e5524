package loads

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/rules"
)

const (
	// Settle is how long a load has to have been at or below a step that was in force, for it to go out of force though the
	// load is not clearly below.
	Settle = 10 * time.Second
	// Tick is how often Steps is to be asked: reports expire, and loads settle.
	Tick = 200 * time.Millisecond
)

// Margin is how far below a step a load must be for the step to go out of force at once: 0.05, or a twentieth of it where
// that is more; half of it where it is less than 0.1.
func Margin(above float64) float64 { return min(above/2, max(0.05, above/20)) }

// held is which steps of a rule are in force. If one is, all below it are.
type held struct {
	source string
	steps  []rules.AdaptiveStep
	on     []bool
	above  []time.Duration // by step: when the load was above it last
}

func newHeld(a *rules.Adaptive) *held {
	return &held{source: a.Source, steps: a.Steps, on: make([]bool, len(a.Steps)), above: make([]time.Duration, len(a.Steps))}
}

// follows reports whether h is about a; other factors make no difference.
func (h *held) follows(a *rules.Adaptive) bool {
	return h.source == a.Source && slices.EqualFunc(h.steps, a.Steps, func(x, y rules.AdaptiveStep) bool { return x.Above == y.Above })
}

// step is the highest step in force, at a load that is known or not; -1: none.
func (h *held) step(now time.Duration, load float64, known bool) int {
	highest := -1
	for i := range h.steps {
		switch above := h.steps[i].Above; {
		case !known:
			h.on[i] = false
		case load > above:
			h.on[i], h.above[i] = true, now
		case load <= above-Margin(above), now-h.above[i] >= Settle:
			h.on[i] = false
		}
		if h.on[i] {
			highest = i
		}
	}
	return highest
}
