package algorithms

import "time"

// The sliding-window counter weights the previous window's count by the part of
// that window still in view. With x the time into the current window of length
// W, a check is allowed if
//
//	prev × (W − x) + (cur + cost) × W <= limit × W
//
// The comparison uses 128 bits and no division.

// advanceSliding brings a sliding-window counter up to wall time.
func (l *Limit) advanceSliding(s State, wall int64) State {
	n := l.windowNumber(wall)
	at := s.Window()
	switch {
	case n == at+1:
		return State{Part: s.Count, At: n}
	case n > at:
		return State{At: n}
	}
	return l.clearReachedQueue(s, wall)
}

// inView returns W − x: how much of the previous window is still in view, in nanoseconds.
func (l *Limit) inView(s State, wall int64) int64 {
	return min(int64(l.Window), l.endOfWindow(s.Window())-wall)
}

func (l *Limit) slidingAllows(s State, wall, cost int64) bool {
	room := l.Amount - s.Count - cost
	if room < 0 {
		return false
	}
	prevHi, prevLo := mul(s.Part, l.inView(s, wall))
	roomHi, roomLo := mul(room, int64(l.Window))
	return !less(roomHi, roomLo, prevHi, prevLo)
}

// usedSliding returns the usage, rounded up, of a state that no queue has put ahead of the clock.
func (l *Limit) usedSliding(s State, wall int64) int64 {
	hi, lo := mul(s.Part, l.inView(s, wall))
	return s.Count + ceilDiv128(hi, lo, uint64(l.Window))
}

func (l *Limit) describeSliding(d *Decision, s State, now Instant, cost int64) {
	w := int64(l.Window)

	if s.isQueued() {
		d.Used, d.Remaining = l.usedQueued(s), 0
	} else {
		d.Used = l.usedSliding(s, now.Wall)
		d.Remaining = max(0, l.Amount-d.Used)
	}

	left := max(0, l.endOfWindow(s.Window())-now.Wall)
	switch {
	case s.Count > 0:
		d.ResetAfter = time.Duration(left + w)
	case s.Part > 0:
		d.ResetAfter = time.Duration(left)
	}

	switch {
	case d.Allowed:
		d.Delay = l.windowDelay(s, now.Wall, cost)
	case cost > l.Amount:
		d.RetryAfter = Never
	default:
		d.RetryAfter = l.windowRetry(s, now.Wall, cost)
	}
}

// longestView returns the longest view, at most a window, at which a previous
// count of prev weighs no more than room.
func (l *Limit) longestView(prev, room int64) int64 {
	if prev <= room {
		return int64(l.Window)
	}
	hi, lo := mul(room, int64(l.Window))
	return floorDiv128(hi, lo, uint64(prev))
}

// maxPreviousCount returns the greatest previous count that fits beside the current one.
func (l *Limit) maxPreviousCount(s State, wall int64) int64 {
	view := l.inView(s, wall)
	if view <= 0 {
		return maxOwed
	}
	hi, lo := mul(max(0, l.Amount-s.Count), int64(l.Window))
	return floorDiv128(hi, lo, uint64(view))
}
