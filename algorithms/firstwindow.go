package algorithms

import "time"

// A FirstWindow begins with its first hit and lasts for the Window of that
// hit's limit, on the steady clock. A call with another Window is judged in it
// all the same. The first hit after its end begins another one. A counter
// without hits has no window, whether none was taken or all were put back.

// advanceFirst brings s up to steady time t. In a fresh state, At is t: the
// window begins if a cost is taken.
func (l *Limit) advanceFirst(s State, t int64) State {
	if s.Count == 0 || l.windowPassed(s, s.At, t) {
		return State{At: t}
	}
	return s
}

// windowPassed reports whether at least the window of s lies between two steady times.
func (l *Limit) windowPassed(s State, from, to int64) bool {
	return to > from && uint64(to)-uint64(from) >= uint64(l.windowLengthOf(s))
}

// lowerFirst reduces what was used by n units.
func (s State) lowerFirst(n int64) State {
	if s.Count <= n {
		return State{At: s.At}
	}
	s.Count -= n
	return s
}

// forceFirst is Force for an up-to-date state of a FirstWindow. A cost counts
// unless a whole window has passed since it arose, even if it arose before the
// window began: it may be from an earlier window, or from this one as another
// node saw it begin, and the counter can't tell.
//
// If there is no window, one begins now, not when the cost arose. The cost may
// have arisen in an earlier window, and what was taken in that one must not
// come back to the new one: see Give.
func (l *Limit) forceFirst(s State, from TakeRecord, now Instant, cost int64) State {
	if cost == 0 || l.windowPassed(s, from.Steady, now.Steady) {
		return s
	}
	return l.add(s, now, cost)
}

func (l *Limit) describeFirst(d *Decision, s State, now Instant, cost int64) {
	d.Used, d.Remaining = s.Count, max(0, l.Amount-s.Count)
	if !s.Fresh() {
		d.ResetAfter = time.Duration(s.At - now.Steady + l.windowLengthOf(s))
	}
	switch {
	case d.Allowed:
	case cost > l.Amount:
		d.RetryAfter = Never
	default:
		d.RetryAfter = d.ResetAfter
	}
}
