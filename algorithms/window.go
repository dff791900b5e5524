package algorithms

import "time"

// windowNumber returns the number of the window that contains the wall time: floor(wall / Window), or for calendar windows
// the Unix second at which the window begins. Later windows have greater numbers.
func (l *Limit) windowNumber(wall int64) int64 {
	if l.Calendar != nil {
		start, _ := l.Calendar.Bounds(wall)
		return start
	}
	return floorDiv(wall, int64(l.Window))
}

// startOfWindow returns the wall time at which window n begins.
func (l *Limit) startOfWindow(n int64) int64 {
	if l.Calendar != nil {
		return n * int64(time.Second)
	}
	return n * int64(l.Window)
}

// WindowStart returns the wall time, in Unix nanoseconds, at which the window that contains wall begins. For limits without
// numbered windows it returns wall.
func (l *Limit) WindowStart(wall int64) int64 {
	if !l.Kind.Windowed() {
		return wall
	}
	return l.startOfWindow(l.windowNumber(wall))
}

// endOfWindow returns the wall time at which window n ends.
func (l *Limit) endOfWindow(n int64) int64 {
	if l.Calendar != nil {
		_, end := l.Calendar.Bounds(n * int64(time.Second))
		return end * int64(time.Second)
	}
	return (n + 1) * int64(l.Window)
}

// maxSkew is how far ahead of the clock, in nanoseconds, a window may begin for its state to be kept. It allows for late
// clock readings and for the clocks of other nodes.
const maxSkew = int64(time.Second)

// isWithinSkew reports whether window n > windowNumber(wall) begins so soon after wall that its state is kept until then. A
// window's number never goes back. But a state further ahead was written under a clock that has since been corrected. Its
// count then moves to the current window, so the clock step neither frees the subject nor blocks it for longer than a window.
func (l *Limit) isWithinSkew(n, wall int64) bool {
	if l.Calendar != nil {
		_, end := l.Calendar.Bounds(wall)
		return n == end && n*int64(time.Second)-wall <= maxSkew
	}
	return n == floorDiv(wall, int64(l.Window))+1 && n*int64(l.Window)-wall <= maxSkew
}

// advanceFixed brings a fixed window up to wall time.
func (l *Limit) advanceFixed(s State, wall int64) State {
	n, at := l.windowNumber(wall), s.Window()
	if n > at {
		return State{At: n}
	}
	return l.placeInWindow(s, n, wall)
}

// placeInWindow puts s, whose window is the current one, n, or a later one, into the right window: its own if it may be ahead
// of the clock, otherwise n.
func (l *Limit) placeInWindow(s State, n, wall int64) State {
	at := s.Window()
	switch {
	case n == at:
		s.At = n // the clock has caught up with a queue
	case s.isQueued() && l.isInQueueReach(at, wall):
	case s.isQueued() || !l.isWithinSkew(at, wall):
		s.At = n
		if l.Kind == FixedWindow {
			s.Part = 0 // the loan belongs to one window only
		}
	}
	return s
}

func (l *Limit) describeFixed(d *Decision, s State, now Instant, cost int64) {
	d.Used, d.Remaining = s.Count, max(0, l.Amount+s.Part-s.Count)
	if s.Fresh() && d.Allowed {
		return
	}
	if !s.Fresh() {
		d.ResetAfter = time.Duration(max(0, l.endOfWindow(s.Window())-now.Wall))
	}
	if s.isQueued() {
		d.Used, d.Remaining = l.usedQueued(s), 0
	}
	switch {
	case d.Allowed:
		d.Delay = l.windowDelay(s, now.Wall, cost)
	case cost > l.Amount+s.Part:
		d.RetryAfter = l.retryAboveCapacity(now)
	default:
		d.RetryAfter = l.windowRetry(s, now.Wall, cost)
	}
}

// WindowLeft returns how much is left of the window at now, by the wall clock. For limits without numbered windows it returns
// Window.
func (l *Limit) WindowLeft(now Instant) time.Duration {
	if !l.Kind.Windowed() {
		return l.Window
	}
	return time.Duration(max(0, l.endOfWindow(l.windowNumber(now.Wall))-now.Wall))
}

// Equal reports whether l and o are the same limit, so that a count under one may continue under the other.
func (l *Limit) Equal(o *Limit) bool {
	if l == o {
		return true
	}
	a, b := *l, *o
	a.Calendar, b.Calendar = nil, nil
	return a == b && (l.Calendar == o.Calendar || l.Calendar != nil && o.Calendar != nil && l.Calendar.String() == o.Calendar.String())
}
