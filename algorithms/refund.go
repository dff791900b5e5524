package algorithms

import (
	"math/bits"
	"time"
)

// Refund puts back part of a cost that was taken a while ago, once the real cost is known. from says in which window it was
// taken. For a bucket, rest is the time that its content right after the Take would still take to drain, had nothing been
// added since: the Decision's ResetAfter minus the time since. It may be negative. For a FirstWindow, rest is what remains of
// the window.
//
// A bucket puts back only what can't have drained by itself: had the real cost been taken instead, it would owe at most what it
// owes now, but for what drains in a nanosecond. (Refund knows nothing of other refunds to the same bucket. Several overlapping
// refunds may put back cost that has drained, but in total no more than they refund.) For numbered windows, Refund is Give.
func (l *Limit) Refund(s State, from TakeRecord, rest time.Duration, now Instant, cost int64) State {
	if !l.Kind.OnSteadyClock() {
		return l.Give(s, from, now, cost)
	}
	s = l.Advance(s, now)
	if rest <= 0 {
		return s
	}
	if l.Kind == FirstWindow {
		return s.lower(cost) // rest is above 0, so the window of the Take is the current one
	}
	return l.refundBucket(s, rest, cost)
}

// refundBucket puts cost back into a bucket, or as much of it as can't have drained, to the part of a unit. rest is above 0.
func (l *Limit) refundBucket(s State, rest time.Duration, cost int64) State {
	if l.Amount == 0 {
		return s // nothing drains, so rest does not say how much is left
	}
	// rest was rounded up to a whole nanosecond, so only one part of what drains in the last one has not drained for sure.
	restHi, restLo := mulAdd(int64(rest)-1, l.Amount, 1)
	if costHi, costLo := mul(cost, int64(l.Window)); !less(restHi, restLo, costHi, costLo) {
		return s.lower(cost)
	}
	units, part := bits.Div64(restHi, restLo, uint64(l.Window)) // the quotient fits: it is at most cost
	s = s.lower(int64(units)).drainPart(int64(part), int64(l.Window), s.At)
	if s.Count == 0 && s.Part < l.Amount {
		return State{At: s.At} // it would be empty a nanosecond later anyway
	}
	return s
}

// Refund puts back part of a cost that is still in the log. It removes the oldest hits first. They leave the window before
// those taken with the cost, so the log never forgets early.
func (log *Log) Refund(l *Limit, rest time.Duration, now Instant, cost int64) {
	log.Advance(l, now)
	if rest <= 0 {
		return
	}
	for cost > 0 && log.Len() > 0 {
		cost -= log.lower(log.head, cost)
	}
}
