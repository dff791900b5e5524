package algorithms

import (
	"errors"
	"time"
)

// A CellBucket is a token bucket for keys whose limit comes with each call and may differ from call to call. It counts as redis-cell
// does: by the generic cell rate algorithm, in whole nanoseconds. As long as it is in use, its state keeps the window of the call that
// began it, and how long the last call that asked for some wanted a unit to take. So the state also says, without any limit, when the
// bucket will be full again.
//
// A call with another window is judged by its own amounts in the one that is kept. What is owed then keeps its number of units, and
// drains at the rate of that call from now on, whether or not it was allowed: a caller that is refused must see its own rate.

// MaxOwedTime bounds, in nanoseconds, how far ahead a CellBucket can be: some 36 years.
const MaxOwedTime = 1 << 60

// CheckCell reports why l, which is legal otherwise, can't be the limit of a CellBucket.
func (l *Limit) CheckCell() error {
	if l.Amount > int64(l.Window) {
		return errors.New("at most one per nanosecond is possible")
	}
	if hi, lo := mul(l.Burst, l.cellUnit(State{})); less(0, MaxOwedTime, hi, lo) {
		return errors.New("a burst must not take more than 36 years to come back")
	}
	return nil
}

// windowOf returns the window of a counter: the one that its state keeps, if its kind does and it is in use, or l's.
func (l *Limit) windowOf(s State) int64 {
	switch {
	case l.Kind == CellBucket && s.Count > 0:
		return s.Count
	case l.Kind == FirstWindow && s.Part > 0:
		return s.Part
	}
	return int64(l.Window)
}

// ownUnit returns how many nanoseconds l wants a unit of s to take, rounded down. With an Amount of 0 that is as long as before, or a
// window.
func (l *Limit) ownUnit(s State) int64 {
	switch {
	case l.Amount > 0:
		return max(1, l.windowOf(s)/l.Amount)
	case s.Part > 0:
		return s.Part
	}
	return int64(l.Window)
}

// cellUnit returns how many nanoseconds a unit of s takes to drain: in a fresh one, as l wants it.
func (l *Limit) cellUnit(s State) int64 {
	if s.Part > 0 {
		return s.Part
	}
	return l.ownUnit(s)
}

// AtOtherRate reports whether a refused Take, which made next of s, changed the rate at which s drains, so that next must be kept.
func (l *Limit) AtOtherRate(s, next State) bool {
	return l.Kind == CellBucket && next.Part > 0 && next.Part != s.Part
}

// owedTime returns how long all that a CellBucket owes takes to drain. It does not depend on any limit.
func (s State) owedTime(now Instant) int64 {
	if s.Count == 0 {
		return 0
	}
	return max(0, s.At-now.Steady)
}

// advanceCell brings s up to steady time t.
func advanceCell(s State, t int64) State {
	if s.Count == 0 || s.At <= t {
		return State{At: t}
	}
	return s
}

// askCell brings an up-to-date state to the rate of l, by which a cost is asked for.
func (l *Limit) askCell(s State, now Instant) State {
	unit := l.ownUnit(s)
	if s.Fresh() || unit == s.Part {
		return s
	}
	hi, lo := mul(s.owedTime(now), unit)
	s.At = now.Steady + min(ceilDiv128(hi, lo, uint64(s.Part)), MaxOwedTime)
	s.Part = unit
	return s
}

// cellAllows is allows for an up-to-date state.
func (l *Limit) cellAllows(s State, now Instant, cost int64) bool {
	if l.Amount == 0 {
		return false
	}
	unit := l.cellUnit(s)
	needHi, needLo := mulAdd(cost, unit, s.owedTime(now))
	roomHi, roomLo := mul(l.Burst, unit)
	return !less(roomHi, roomLo, needHi, needLo) && !less(0, MaxOwedTime, needHi, needLo)
}

// addToCell adds cost to what an up-to-date state owes.
func (l *Limit) addToCell(s State, now Instant, cost int64) State {
	if cost == 0 {
		return s
	}
	unit := l.cellUnit(s)
	hi, lo := mulAdd(cost, unit, s.owedTime(now))
	owed := min(ceilDiv128(hi, lo, 1), MaxOwedTime)
	return State{Count: l.windowOf(s), Part: unit, At: now.Steady + owed}
}

// giveCell is giveBucket for a CellBucket. In between, the rate must not have been higher than when the cost was taken.
func (l *Limit) giveCell(s State, from TakeRecord, now Instant, cost int64) State {
	if s.Fresh() || from.Amount == 0 || from.Fastest > from.Amount {
		return s
	}
	taken := max(1, l.windowOf(s)/from.Amount) // how long a unit took then
	hi, lo := mul(from.Returned, taken)
	held := int64(from.Reset) - max(0, now.Steady-from.Steady)
	if held <= 0 || s.Part < taken || !less(hi, lo, 0, uint64(held)) {
		return s
	}

	hi, lo = mul(held-int64(lo), s.Part)
	held = floorDiv128(hi, lo, uint64(taken))
	hi, lo = mul(cost, s.Part)
	return s.shortenCell(now, min(ceilDiv128(hi, lo, 1), held))
}

// shortenCell takes d nanoseconds off what s owes.
func (s State) shortenCell(now Instant, d int64) State {
	if d >= s.owedTime(now) {
		return State{At: now.Steady}
	}
	s.At -= d
	return s
}

// rewardCell takes n units off what an up-to-date state owes.
func (l *Limit) rewardCell(s State, now Instant, n int64) State {
	hi, lo := mul(n, l.cellUnit(s))
	return s.shortenCell(now, ceilDiv128(hi, lo, 1))
}

// usedInCell returns how many units an up-to-date state owes, rounded up.
func (l *Limit) usedInCell(s State, now Instant) int64 {
	unit, owed := l.cellUnit(s), s.owedTime(now)
	return owed/unit + min(owed%unit, 1)
}

func (l *Limit) describeCell(d *Decision, s State, now Instant, cost int64) {
	unit, owed := l.cellUnit(s), s.owedTime(now)
	d.Used = l.usedInCell(s, now)
	d.Remaining = max(0, l.Burst-d.Used)
	d.ResetAfter = time.Duration(owed)
	switch {
	case d.Allowed:
	case cost > l.Burst:
		d.RetryAfter = Never
	case l.Amount == 0:
		d.RetryAfter = time.Duration(owed) + l.Window // by then the region may have a share
	default:
		hi, lo := mul(l.Burst-cost, unit)
		d.RetryAfter = time.Duration(max(1, owed-ceilDiv128(hi, lo, 1)))
	}
}

// moreInCell is moreInBucket for a CellBucket.
func (l *Limit) moreInCell(s State, now Instant) time.Duration {
	unit := l.cellUnit(s)
	target := min(l.usedInCell(s, now), l.Burst) - 1
	hi, lo := mul(max(0, target), unit)
	return time.Duration(max(1, s.owedTime(now)-ceilDiv128(hi, lo, 1)))
}
