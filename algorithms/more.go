package algorithms

import "time"

// moreAfter returns how long it takes until a counter that is left alone has
// more than remaining, which is what it has now. For a counter in debt, that is
// the time until it has one unit. It returns zero if the counter never has
// more. s must be up to date. For logs, see [Log.Describe].
func (l *Limit) moreAfter(s State, now Instant, remaining int64) time.Duration {
	if remaining >= l.Capacity() || l.Amount == 0 {
		return 0 // a fixed window that loans have widened has no more when it ends
	}

	switch {
	case l.Kind == CellBucket:
		return l.moreInCell(s, now)
	case l.Kind.IsBucket():
		return l.moreInBucket(s, now)
	case l.Kind == Concurrency:
		return time.Duration(s.Part)
	case l.Kind == FirstWindow:
		return time.Duration(s.At - now.Steady + l.windowLengthOf(s))
	}
	return time.Duration(max(0, l.windowWait(s, now.Wall, remaining+1)))
}

// AddRemaining changes d as if n units (below 0: that many fewer) were put back
// at once into a counter of l. MoreAfter becomes 0 if it is not known when more
// will remain.
func (d *Decision) AddRemaining(l *Limit, n int64) {
	d.Remaining += n
	// In the other algorithms, the time until one more unit is back does not depend
	// on how many there are.
	if d.Remaining >= l.Capacity() || l.Kind == SlidingWindow || l.Kind == SlidingLog {
		d.MoreAfter = 0
	}
}
