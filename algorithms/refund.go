package algorithms

import "time"

// Refund puts back part of a cost that was taken a while ago, once the real cost is known. from says in which window it was
// taken. For a bucket, rest is how much longer its content at that time would take to drain, had nothing been added since:
// the Decision's ResetAfter minus the time since. It may be negative. For a FirstWindow, that is what is left of the window.
//
// A bucket gives back no more than can't have drained yet: with the real cost in place of the one taken, it would hold no
// more than that. (Other refunds of the same bucket meanwhile are not known here. Several overlapping refunds may give back
// cost that has drained, but together no more than they refund.) For numbered windows, Refund is Give.
func (l *Limit) Refund(s State, from Taken, rest time.Duration, now Now, cost int64) State {
	if !l.Kind.OnSteadyClock() {
		return l.Give(s, from, now, cost)
	}
	s = l.Advance(s, now)
	if rest <= 0 {
		return s
	}
	if l.Kind == FirstWindow {
		return s.lower(cost) // the window that has not ended is this one
	}
	hi, lo := mul(int64(rest), l.Amount)
	return s.lower(min(cost, floorDiv128(hi, lo, uint64(l.Window))))
}

// Refund puts back part of a cost that is still in the log. It removes the oldest hits first. They leave the window before
// those taken with the cost, so the log never forgets early.
func (log *Log) Refund(l *Limit, rest time.Duration, now Now, cost int64) {
	log.Advance(l, now)
	if rest <= 0 {
		return
	}
	for cost > 0 && log.Len() > 0 {
		cost -= log.lower(log.head, cost)
	}
}
