package algorithms

import (
	"math"
	"math/bits"
	"time"
)

// Token bucket and leaky bucket share one meter: the generic cell rate
// algorithm of ITU-T I.371, in its leaky-bucket form. A check adds its cost to
// the amount owed, which drains at Amount per Window. A check is allowed if the
// amount owed stays within Burst. A token bucket holds Burst minus the amount
// owed; a leaky bucket's queue is as long as the amount owed. The state stores
// units instead of an arrival time, so the amount owed keeps its value when
// Amount or Burst change. All the time since the last change then drains at the
// new rate.

// drain brings a bucket up to steady time t.
func (l *Limit) drain(s State, t int64) State {
	if s.Fresh() {
		return State{At: max(t, s.At)}
	}
	if t <= s.At {
		return s
	}

	drainedHi, drainedLo := bits.Mul64(uint64(t)-uint64(s.At), uint64(l.Amount))
	if drainedHi == 0 && drainedLo < uint64(l.Window) && s.Part < int64(l.Window) {
		return s.drainPart(int64(drainedLo), int64(l.Window), t)
	}

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

// In the usual case, a token bucket is in use, and less than one unit has
// drained since its last change. IsPlain, DrainQuickly, Owed, ResetQuickly and
// MoreQuickly are the parts of a Take and Describe for this case. They are
// small enough for the compiler to put them into their caller.

// IsPlain reports whether l is a token bucket that refills and has no queue.
func (l *Limit) IsPlain() bool { return l.Kind == TokenBucket && l.MaxDelay == 0 && l.Amount > 0 }

// DrainQuickly brings a bucket up to steady time t. It returns false if t is
// before s.At, or if one unit or more has drained. l must be plain.
func (l *Limit) DrainQuickly(s State, t int64) (State, bool) {
	hi, drained := bits.Mul64(uint64(t)-uint64(s.At), uint64(l.Amount))
	return s.drainPart(int64(drained), int64(l.Window), t), hi == 0 && drained < uint64(l.Window) &&
		s.Part < int64(l.Window)
}

// ResetQuickly returns how long all that s owes takes to drain. It returns
// false if that needs 128 bits to compute. l must be plain.
func (l *Limit) ResetQuickly(s State) (time.Duration, bool) {
	hi, parts := mulAdd(s.Count, int64(l.Window), s.Part)
	return time.Duration((parts + uint64(l.Amount) - 1) / uint64(l.Amount)), hi == 0 && parts <= math.MaxInt64
}

// MoreQuickly is MoreAfter of a bucket in use that owes no more than its burst. l must be plain.
func (l *Limit) MoreQuickly(s State) time.Duration {
	part := uint64(s.Part)
	if part == 0 {
		part = uint64(l.Window)
	}
	return time.Duration((part + uint64(l.Amount) - 1) / uint64(l.Amount))
}

// drainPart is drain for less than one unit, given as drained parts of 1/window
// unit. This is the common case for a bucket in use, and needs no division.
func (s State) drainPart(drained, window, t int64) State {
	s.Part = s.Part - drained
	s.At = t
	if s.Part < 0 {
		s.Part += window
		s.Count--
	}
	if s.Count < 0 {
		return State{At: t}
	}
	return s
}

// giveBucket puts back cost, or as much of it as is certainly still in the
// bucket, exact to a fraction of a unit.
//
// Let C be what the bucket owed right after the Take, D what has drained since,
// and R what else was put back since. Had a part of the cost not been taken,
// the bucket would now owe that much less, unless it had been empty in between.
// In that case it would owe E, which is at most A, what was taken since. The
// bucket now owes at least C + A − D − R. So after a part of at most C − D − R
// is put back, it owes at least A, and thus no less than E.
func (l *Limit) giveBucket(s State, from TakeRecord, now Instant, cost int64) State {
	if from.Amount == 0 || from.ResetAfter <= 0 {
		return s // without a rate, from.Reset does not say how much was owed
	}

	// owed is what the bucket owed after the Take, in 1/Window units. Reset was
	// rounded up to a whole nanosecond. Of what drains in the last one, only
	// 1/Window unit was owed for sure.
	owed := wideProduct(int64(from.ResetAfter)-1, from.Amount).plus(uint128{0, 1})
	age := max(0, now.Steady-from.Steady)
	gone := wideProduct(age, max(from.Amount, from.MaxRate)).plus(wideProduct(from.Returned, int64(l.Window)))

	if !gone.less(owed) {
		return s
	}
	left := owed.minus(gone)
	if !left.less(wideProduct(cost, int64(l.Window))) {
		return s.lower(cost)
	}

	units, part := bits.Div64(left.hi, left.lo, uint64(l.Window)) // the quotient fits: it is less than cost
	s = s.lower(int64(units)).drainPart(int64(part), int64(l.Window), s.At)
	if s.Count == 0 && s.Part < l.Amount {
		return State{At: s.At} // the bucket would be empty within a nanosecond
	}
	return s
}

func (l *Limit) describeBucket(d *Decision, s State, now Instant, cost int64) {
	d.Used = s.Owed()
	d.Remaining = max(0, l.Burst-d.Used)

	if !s.Fresh() {
		d.ResetAfter = l.drainTime(s.Count, s.Part, max(0, s.At-now.Steady))
	}

	switch {
	case !d.Allowed && cost > l.Burst:
		d.RetryAfter = Never
	case !d.Allowed:
		d.RetryAfter = l.bucketRetry(s, now, cost)
	case cost > 0 && (l.Kind == LeakyBucket || l.MaxDelay > 0):
		d.Delay = l.bucketDelay(s, now, cost)
	}
}

// moreInBucket returns how long it takes until a bucket that owes something has
// one unit more than now. For a bucket that owes more than its burst, it is the
// time until one unit is there.
func (l *Limit) moreInBucket(s State, now Instant) time.Duration {
	target := min(s.Owed(), l.Burst) - 1
	return l.drainTime(s.Count-target, s.Part, max(0, s.At-now.Steady))
}

// Owed returns the amount that a bucket owes, in whole units, rounded up.
func (s State) Owed() int64 {
	if s.Part > 0 {
		return s.Count + 1
	}
	return s.Count
}

// drainTime returns how long units + part/Window units take to drain, rounded
// up, plus ahead, which is how far the state is ahead of the clock. If nothing
// drains, it returns a window plus ahead: by then the region may have a share.
func (l *Limit) drainTime(units, part, ahead int64) time.Duration {
	if l.Amount == 0 {
		return time.Duration(addSat(int64(l.Window), ahead))
	}
	hi, lo := mulAdd(units, int64(l.Window), part)
	return time.Duration(addSat(ceilDiv128(hi, lo, uint64(l.Amount)), ahead))
}

// Returned returns by how many units a change at now lowered what a bucket
// owes, rounded up. It is 0 or below if the bucket does not owe less.
func (l *Limit) Returned(before, after State, now Instant) int64 {
	if l.Kind == CellBucket {
		return l.returnedToCell(before, after, now)
	}
	returned := before.Count - after.Count
	if before.Part > after.Part {
		returned++
	}
	return returned
}

// lower reduces the amount owed by n units.
func (s State) lower(n int64) State {
	if s.Count < n {
		return State{At: s.At}
	}
	s.Count -= n
	return s
}
