package limiter

import "github.com/rlnode/rlnode/rules"

// FollowLoads sets the function that says which step of each adaptive rule in a set is in force, by Rule.Index (−1 for none; a nil
// result means none for any rule). Use and Adapt call it for sets with at least one adaptive rule.
func (l *Limiter) FollowLoads(steps func(*rules.Set) []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steps = steps
}

// Adapt updates the steps in force. Checks that begin afterwards use the lowered limits. Checks already under way, or begun on
// other nodes, use the limits in force where and when they began.
func (l *Limiter) Adapt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.inForce.Load(); b != nil {
		b.adapt(l.steps)
	}
}

// Factor returns what the limits of r are multiplied by now: 1 if no step is in force.
func (l *Limiter) Factor(r *rules.Rule) float64 {
	b := l.inForce.Load()
	if b == nil || r.Adaptive == nil || r.Index >= len(b.steps) || b.set.Rules[r.Index] != r {
		return 1
	}
	step := int(b.steps[r.Index].Load()) - 1
	if step < 0 {
		return 1
	}
	return r.Adaptive.Steps[step].Factor
}

// adapt calls ask for the steps in force. The caller holds Limiter.mu.
func (a *activeRules) adapt(ask func(*rules.Set) []int) {
	if ask == nil || a.steps == nil {
		return
	}
	for i, step := range ask(a.set) {
		a.steps[i].Store(int32(step + 1))
	}
}

// lowerLimits lowers the limits of m's hits by the steps in force.
func (a *activeRules) lowerLimits(m *rules.Match) {
	if a.steps == nil {
		return
	}
	for i := range m.Hits {
		h := &m.Hits[i]
		if h.Rule.Adaptive == nil {
			continue
		}
		if step := int(a.steps[h.Rule.Index].Load()) - 1; step >= 0 {
			h.Limits = h.Rule.Lowered(h.Limits, step)
		}
	}
}
