package algorithms

import "time"

// number is the window that wall time belongs to: floor(wall / Window), or for calendar windows the Unix second
// at which the window begins. Later windows have greater numbers.
func (l *Limit) number(wall int64) int64 {
	if l.Calendar != nil {
		start, _ := l.Calendar.Bounds(wall)
		return start
	}
	return floorDiv(wall, int64(l.Window))
}

// next is the number of the window after the one that wall time belongs to.
func (l *Limit) next(wall int64) int64 {
	if l.Calendar != nil {
		_, end := l.Calendar.Bounds(wall)
		return end
	}
	return floorDiv(wall, int64(l.Window)) + 1
}

// end is the wall time at which window number n is over.
func (l *Limit) end(n int64) int64 {
	if l.Calendar != nil {
		_, end := l.Calendar.Bounds(n * int64(time.Second))
		return end * int64(time.Second)
	}
	return (n + 1) * int64(l.Window)
}

// turnFixed brings a fixed window up to wall time. A window's number never goes back: a state one window ahead
// of the clock (a neighbour's clock was) waits for it. One further ahead was written under a clock that has
// been set right since; its count then stands in the present window, so that the step neither frees the subject
// nor blocks it for longer than a window.
func (l *Limit) turnFixed(s State, wall int64) State {
	n := l.number(wall)
	switch {
	case n > s.At:
		return State{At: n}
	case n < s.At && s.At > l.next(wall):
		s.At = n
	}
	return s
}

// turnTo moves a windowed state on to window n >= s.At.
func (l *Limit) turnTo(s State, n int64) State {
	switch {
	case n == s.At:
		return s
	case l.Kind == SlidingWindow && n == s.At+1:
		return State{Part: s.Count, At: n}
	default:
		return State{At: n}
	}
}

func (l *Limit) describeFixed(s State, now Now, cost int64, allowed bool) Decision {
	d := Decision{Allowed: allowed, Remaining: max(0, l.Amount-s.Count)}
	if s.Count == 0 && allowed {
		return d
	}
	left := time.Duration(max(0, l.end(s.At)-now.Wall))
	if s.Count > 0 {
		d.ResetAfter = left
	}
	switch {
	case !allowed && cost > l.Amount:
		d.RetryAfter = Never
	case !allowed:
		d.RetryAfter = left
	}
	return d
}
