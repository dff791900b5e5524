package algorithms

import "time"

// windowNumber returns the number of the window that contains the wall time:
// floor(wall / Window), or for calendar windows the Unix second at which the
// window begins. Later windows have greater numbers.
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

// WindowStart returns the wall time, in Unix nanoseconds, at which the window
// that contains wall begins. For limits without numbered windows it returns
// wall.
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

// advanceFixed brings a fixed window up to wall time.
func (l *Limit) advanceFixed(s State, wall int64) State {
	if n := l.windowNumber(wall); n > s.Window() {
		return State{At: n}
	}
	return l.clearReachedQueue(s, wall)
}

// clearReachedQueue takes the mark off a state whose queue the clock has caught
// up with. s must not be in an earlier window than wall.
//
// Only a queue puts a state ahead of the clock: counters.Table counts the
// windows of a partition by a clock that has reached all of them. A state
// without a queue that is ahead nevertheless stays in its window until the
// clock reaches it, because a window's number never goes back.
func (l *Limit) clearReachedQueue(s State, wall int64) State {
	if s.isQueued() && s.Window() == l.windowNumber(wall) {
		s.At = s.Window()
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
	case l.isExpired(now):
		d.RetryAfter = 1 // the next check looks up another limit
	case cost > l.Amount+s.Part:
		d.RetryAfter = Never
	default:
		d.RetryAfter = l.windowRetry(s, now.Wall, cost)
	}
}

// WindowLeft returns how much is left of the window at now, by the wall clock.
// For limits without numbered windows it returns Window.
func (l *Limit) WindowLeft(now Instant) time.Duration {
	if !l.Kind.Windowed() {
		return l.Window
	}
	return time.Duration(max(0, l.endOfWindow(l.windowNumber(now.Wall))-now.Wall))
}

// WindowLength returns the length of the window at now: Window, or for calendar
// windows the true length of the current one (a day of 23 hours, a month of 29
// days).
func (l *Limit) WindowLength(now Instant) time.Duration {
	if l.Calendar == nil {
		return l.Window
	}
	start, end := l.Calendar.Bounds(now.Wall)
	return time.Duration(end-start) * time.Second
}

// windowLengthOf returns the window of a counter: the one that its state keeps
// or, if it keeps none, that of l.
func (l *Limit) windowLengthOf(s State) int64 {
	switch {
	case l.Kind == CellBucket && s.Count > 0:
		return s.Count
	case l.Kind == FirstWindow && s.Part > 0:
		return s.Part
	}
	return int64(l.Window)
}
