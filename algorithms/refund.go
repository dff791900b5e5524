package algorithms

import "time"

// Refund puts back part of a cost that was taken a while ago, once the real cost is known. from says in which window it was
// taken. For a bucket, rest is the time that its content right after the Take would still take to drain, had nothing been
// added since: the Decision's ResetAfter minus the time since. It may be negative. For a FirstWindow, rest is what remains of
// the window.
//
// A bucket puts back no more than can still be undrained: had the real cost been taken instead, it would hold no more than
// that. (Refund knows nothing of other refunds to the same bucket. Several overlapping refunds may put back cost that has
// drained, but in total no more than they refund.) For numbered windows, Refund is Give.
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
	hi, lo := mul(int64(rest), l.Amount)
	return s.lower(min(cost, floorDiv128(hi, lo, uint64(l.Window))))
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
