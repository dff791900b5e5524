package limiter

import (
	"sync"
	"time"
)

const (
	// recentStep is the length of a step, by which recent refusals and uses are
	// counted. The wall clock numbers the steps, starting in 1970.
	recentStep = 30 * time.Second
	// recentSteps is how many steps are kept: an hour.
	recentSteps = 120
)

// steps knows the current step.
type steps struct {
	mu      sync.Mutex // guards current
	current int64      // 0 before the first reading
}

// step returns the number of the current step, by the wall clock.
func (l *Limiter) step() int64 { return l.clock.Now().Wall / int64(recentStep) }

// PassSecond ends a step of what was refused and used recently, if one is over.
// Call it every second.
func (l *Limiter) PassSecond() {
	l.exactLeft.Store(exactSamples)
	active := l.inForce.Load()
	now := l.step()
	if active == nil || !l.steps.end(now) {
		return
	}
	for _, t := range l.tops {
		t.endStep()
	}
	active.endUseStep(now)
}

// end ends the steps before now, and reports whether there were any.
func (s *steps) end(now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := s.current != 0
	ended := began && now > s.current
	if ended || !began {
		s.current = now
	}
	return ended
}
