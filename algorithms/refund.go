package algorithms

import "time"

// Refund puts back part of a cost that was taken a while ago, once it is known what was really used. from says in which
// window it was taken. rest is by how much what was then in the counter outlives now, had nothing come after it: of a
// bucket, its Decision's ResetAfter less the time since. It may be below zero.
//
// A bucket gives back no more than cannot have drained yet: with the cost that was really used in place of the one
// taken, it would hold as little. (What other refunds of the same bucket took out meanwhile is not known here: several
// that overlap may give back what has drained, together no more than what they refund.) For windows this is Give.
func (l *Limit) Refund(s State, from Taken, rest time.Duration, now Now, cost int64) State {
	if !l.Kind.Bucket() {
		return l.Give(s, from, now, cost)
	}
	s = l.Advance(s, now)
	if rest <= 0 {
		return s
	}
	hi, lo := mul(int64(rest), l.Amount)
	return s.lower(min(cost, floorDiv128(hi, lo, uint64(l.Window))))
}

// Refund puts back part of a cost that is still in the log: the oldest hits go first. They leave the window before those
// that were taken with it, so that the log never forgets early.
func (g *Log) Refund(l *Limit, rest time.Duration, now Now, cost int64) {
	g.Advance(l, now)
	if rest <= 0 {
		return
	}
	for cost > 0 && g.Len() > 0 {
		cost -= g.lower(g.head, cost)
	}
}
