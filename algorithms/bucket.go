package algorithms

import (
	"math/bits"
	"time"
)

// Token bucket and leaky bucket share one meter: the generic cell rate algorithm of ITU-T I.371, in its leaky-bucket form. A
// check adds its cost to the amount owed, which drains at Amount per Window. A check is allowed if the amount owed stays
// within Burst. A token bucket holds Burst minus the amount owed; a leaky bucket's queue is as long as the amount owed. The
// state stores units instead of an arrival time, so the amount owed keeps its value when Amount or Burst change. The time
// since the last change drains at the new rate.

// drain brings a bucket up to steady time t.
func (l *Limit) drain(s State, t int64) State {
	if s.Fresh() {
		return State{At: max(t, s.At)}
	}
	if t <= s.At {
		return s
	}
	if next, ok := l.drainQuickly(s, t); ok {
		return next
	}
	drainedHi, drainedLo := bits.Mul64(uint64(t)-uint64(s.At), uint64(l.Amount))
	owedHi, owedLo := mulAdd(s.Count, int64(l.Window), s.Part)
	if !less(drainedHi, drainedLo, owedHi, owedLo) {
		return State{At: t}
	}
	lo, borrow := bits.Sub64(owedLo, drainedLo, 0)
	hi := owedHi - drainedHi - borrow
	// The quotient fits: it is at most s.Count.
	count, part := bits.Div64(hi, lo, uint64(l.Window))
	return State{Count: int64(count), Part: int64(part), At: t}
}

// drainQuickly is drain for a bucket that is not fresh, at a t not before s.At, if less than one unit drains: the common case for
// a bucket in use. It needs no division.
func (l *Limit) drainQuickly(s State, t int64) (State, bool) {
	hi, drained := bits.Mul64(uint64(t)-uint64(s.At), uint64(l.Amount))
	return s.drainPart(int64(drained), int64(l.Window), t), hi == 0 && drained < uint64(l.Window) && s.Part < int64(l.Window)
}

// drainPart drains less than one unit, given as drained parts of 1/window unit.
func (s State) drainPart(drained, window, t int64) State {
	s.Part, s.At = s.Part-drained, t
	if s.Part < 0 {
		s.Part += window
		s.Count--
	}
	if s.Count < 0 {
		return State{At: t}
	}
	return s
}

// refilledSince reports whether even the fullest bucket drains completely between a Take and a later steady time, at the rate
// of the Take or the present one.
func (l *Limit) refilledSince(from TakeRecord, to int64) bool {
	return l.refillsBetween(l.Amount, l.Burst, from.Steady, to) ||
		from.Amount > 0 && l.refillsBetween(from.Amount, from.Burst, from.Steady, to)
}

func (l *Limit) refillsBetween(amount, burst, from, to int64) bool {
	if to <= from {
		return false
	}
	refilledHi, refilledLo := bits.Mul64(uint64(to)-uint64(from), uint64(amount))
	fullHi, fullLo := mul(burst, int64(l.Window))
	return !less(refilledHi, refilledLo, fullHi, fullLo)
}

func (l *Limit) describeBucket(d *Decision, s State, now Instant, cost int64) {
	d.Used = s.owed()
	d.Remaining = max(0, l.Burst-d.Used)
	if !s.Fresh() {
		d.ResetAfter = l.drainTime(s.Count, s.Part, max(0, s.At-now.Steady))
	}
	switch {
	case !d.Allowed && cost > l.Burst:
		d.RetryAfter = l.retryAboveCapacity(now)
	case !d.Allowed:
		d.RetryAfter = l.bucketRetry(s, now, cost)
	case cost > 0 && (l.Kind == LeakyBucket || l.MaxDelay > 0):
		d.Delay = l.bucketDelay(s, now, cost)
	}
}

// owed returns the amount that a bucket owes, in whole units, rounded up.
func (s State) owed() int64 {
	if s.Part > 0 {
		return s.Count + 1
	}
	return s.Count
}

// drainTime returns how long units + part/Window take to drain, rounded up, plus ahead. If nothing drains, it returns a
// window plus ahead: by then the region may have a share.
func (l *Limit) drainTime(units, part, ahead int64) time.Duration {
	if l.Amount == 0 {
		return time.Duration(addSat(int64(l.Window), ahead))
	}
	hi, lo := mulAdd(units, int64(l.Window), part)
	return time.Duration(addSat(ceilDiv128(hi, lo, uint64(l.Amount)), ahead))
}

// lower reduces the amount owed by n units.
func (s State) lower(n int64) State {
	if s.Count < n {
		return State{At: s.At}
	}
	s.Count -= n
	return s
}
