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

// start is the wall time at which window number n begins.
func (l *Limit) start(n int64) int64 {
	if l.Calendar != nil {
		return n * int64(time.Second)
	}
	return n * int64(l.Window)
}

// WindowStart is the wall time, Unix nanoseconds, at which the window begins that wall belongs to. Limits without numbered
// windows have none: then it is wall.
func (l *Limit) WindowStart(wall int64) int64 {
	if !l.Kind.Windowed() {
		return wall
	}
	return l.start(l.number(wall))
}

// end is the wall time at which window number n is over.
func (l *Limit) end(n int64) int64 {
	if l.Calendar != nil {
		_, end := l.Calendar.Bounds(n * int64(time.Second))
		return end * int64(time.Second)
	}
	return (n + 1) * int64(l.Window)
}

// maxSkew is how far ahead of the clock a window may begin for a state in it to be waited for: readings that come
// late, neighbours' clocks.
const maxSkew = int64(time.Second)

// skewed reports whether window n > number(wall) begins so soon after wall that its state waits for it. A window's
// number never goes back; but a state further ahead was written under a clock that has been set right since. Its
// count then stands in the present window, so that the step neither frees the subject nor blocks it for longer than
// a window.
func (l *Limit) skewed(n, wall int64) bool {
	if l.Calendar != nil {
		_, end := l.Calendar.Bounds(wall)
		return n == end && n*int64(time.Second)-wall <= maxSkew
	}
	return n == floorDiv(wall, int64(l.Window))+1 && n*int64(l.Window)-wall <= maxSkew
}

// turnFixed brings a fixed window up to wall time.
func (l *Limit) turnFixed(s State, wall int64) State {
	n, at := l.number(wall), s.Window()
	if n > at {
		return State{At: n}
	}
	return l.stand(s, n, wall)
}

// stand is s, whose window is not before n, the present one, where it stands: in its own window if it may be ahead of the
// clock, else in the present one.
func (l *Limit) stand(s State, n, wall int64) State {
	at := s.Window()
	switch {
	case n == at:
		s.At = n // a queue has been caught up with
	case s.queued() && l.near(at, wall):
	case s.queued() || !l.skewed(at, wall):
		s.At = n
		if l.Kind == FixedWindow {
			s.Part = 0 // room is of one window
		}
	}
	return s
}

func (l *Limit) describeFixed(d *Decision, s State, now Now, cost int64) {
	d.Remaining = max(0, l.Amount+s.Part-s.Count)
	if s.Fresh() && d.Allowed {
		return
	}
	if !s.Fresh() {
		d.ResetAfter = time.Duration(max(0, l.end(s.Window())-now.Wall))
	}
	if s.queued() {
		d.Remaining = 0
	}
	switch {
	case d.Allowed:
		d.Delay = l.windowDelay(s, now.Wall, cost)
	case cost > l.Amount+s.Part:
		d.RetryAfter = l.beyond(now)
	default:
		d.RetryAfter = l.windowRetry(s, now.Wall, cost)
	}
}

// WindowLeft is how long the window at now still lasts by the wall clock. Limits without numbered windows have none:
// then it is Window.
func (l *Limit) WindowLeft(now Now) time.Duration {
	if !l.Kind.Windowed() {
		return l.Window
	}
	return time.Duration(max(0, l.end(l.number(now.Wall))-now.Wall))
}

// Equal reports whether l and o are one limit: what is counted under one may be counted on under the other.
func (l *Limit) Equal(o *Limit) bool {
	if l == o {
		return true
	}
	a, b := *l, *o
	a.Calendar, b.Calendar = nil, nil
	return a == b && (l.Calendar == o.Calendar || l.Calendar != nil && o.Calendar != nil && l.Calendar.String() == o.Calendar.String())
}
