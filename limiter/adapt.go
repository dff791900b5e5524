package limiter

import "github.com/rlnode/rlnode/rules"

// Follow has steps asked for which step of each adaptive rule of a set is in force, by Rule.Index: −1 is none, and nil none
// of any rule. It is asked by Use and by Adapt, about rules of which some are adaptive.
func (l *Limiter) Follow(steps func(*rules.Set) []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steps = steps
}

// Adapt asks which steps are in force now. Checks that begin afterwards are decided by limits lowered so; others, be they
// under way or at other nodes, by those that held where they began.
func (l *Limiter) Adapt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.inForce.Load(); b != nil {
		b.adapt(l.steps)
	}
}

// Factor is what the limits of a rule are multiplied by now: 1 where no step is in force.
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

// adapt asks for the steps in force. The caller holds Limiter.mu.
func (b *book) adapt(ask func(*rules.Set) []int) {
	if ask == nil || b.steps == nil {
		return
	}
	for i, step := range ask(b.set) {
		b.steps[i].Store(int32(step + 1))
	}
}

// lower makes the limits of m's hits those that are in force.
func (b *book) lower(m *rules.Match) {
	if b.steps == nil {
		return
	}
	for i := range m.Hits {
		h := &m.Hits[i]
		if step := int(b.steps[h.Rule.Index].Load()) - 1; step >= 0 {
			h.Limits = h.Rule.Lowered(h.Limits, step)
		}
	}
}
