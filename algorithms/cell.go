package algorithms

import (
	"cmp"
	"errors"
	"time"
)

// A CellBucket is a token bucket for keys whose limit comes with each call and
// may differ from call to call. It counts as redis-cell does: by the generic
// cell rate algorithm, in whole nanoseconds. As long as it is in use, its state
// keeps the window of the call that began it, and the time per unit of the last
// call with a cost above 0. So the state alone, without a limit, says when the
// bucket will be full again.
//
// In the words of that algorithm, the time per unit is the emission interval.
// What the bucket owes is the theoretical arrival time minus now.
//
// A call with another window is judged by its own amounts, but in the window
// that the state keeps. What is owed keeps its number of units, and drains at
// the rate of that call from then on, even if the call is refused: its caller
// must see its own rate.
//
// Most states count time in ticks of a nanosecond. What takes more than 36
// years to drain does not fit, so a tick then has 2 nanoseconds, or 4, and so
// on. Part has the interval in its lower bits and the number of doublings above
// them.

const (
	// doublingsShift is where the number of doublings is in Part. The bits below
	// hold the interval, which is at most MaxWindow.
	doublingsShift = 56
	intervalMask   = 1<<doublingsShift - 1
	maxDoublings   = 48 // enough for the largest burst of the longest interval

	tickBits = 60
	maxTicks = 1<<tickBits - 1 // that a bucket can be ahead
)

// CheckCell reports why l, which is legal otherwise, can't be the limit of a CellBucket.
func (l *Limit) CheckCell() error {
	if l.Amount > int64(l.Window) {
		return errors.New("at most one per nanosecond is possible")
	}
	return nil
}

// cell is the state of a CellBucket at some moment, in parts.
type cell struct {
	window   int64
	interval int64   // nanoseconds in which one unit drains
	owed     uint128 // nanoseconds until nothing is owed
}

// cellOf returns the parts of an up-to-date state. A fresh one takes window and
// interval from l.
func (l *Limit) cellOf(s State, now Instant) cell {
	if s.Count == 0 {
		return cell{window: int64(l.Window), interval: l.intervalIn(int64(l.Window), 0)}
	}
	owed := uint128{0, uint64(s.Ahead(now))}.double(s.doublings())
	return cell{window: s.Count, interval: s.Part & intervalMask, owed: owed}
}

// state puts the parts together.
func (c cell) state(now Instant) State {
	if c.owed == (uint128{}) {
		return State{At: now.Steady}
	}

	doublings := uint(max(0, c.owed.bitLen()-tickBits))
	ticks := c.owed.halve(doublings)
	if ticks > maxTicks { // it was rounded up
		doublings++
		ticks = c.owed.halve(doublings)
	}

	if doublings > maxDoublings {
		doublings = maxDoublings
		ticks = maxTicks
	}

	s := State{Count: c.window, Part: c.interval | int64(doublings)<<doublingsShift}
	s.SetAhead(now, int64(ticks))
	return s
}

func (s State) doublings() uint { return uint(s.Part >> doublingsShift) }

// Ahead returns how far a CellBucket is ahead of the clock, in its ticks. 0
// means that nothing is owed.
func (s State) Ahead(now Instant) int64 {
	if s.Count == 0 {
		return 0
	}
	return max(0, s.At-(now.Steady>>s.doublings()))
}

// SetAhead sets what Ahead returns: 0…1<<60 − 1.
func (s *State) SetAhead(now Instant, ticks int64) { s.At = (now.Steady >> s.doublings()) + ticks }

// CompareCells compares how long two states of CellBuckets that are in use take
// to drain, as cmp.Compare does.
func CompareCells(a, b State) int {
	return cmp.Or(cmp.Compare(a.doublings(), b.doublings()), cmp.Compare(a.At, b.At))
}

// legalCell reports whether s can be the state of a CellBucket.
func (s State) legalCell() bool {
	interval := s.Part & intervalMask
	return s.Fresh() ||
		interval > 0 && interval <= s.Count && s.Count <= int64(MaxWindow) && s.doublings() <= maxDoublings
}

// intervalIn returns the interval of l in a window, rounded down. With an
// Amount of 0, it is as before or, in a fresh bucket, the whole window.
func (l *Limit) intervalIn(window, before int64) int64 {
	switch {
	case l.Amount > 0:
		return max(1, window/l.Amount)
	case before > 0:
		return before
	}
	return window
}

// advanceCell brings s up to steady time.
func advanceCell(s State, now Instant) State {
	if s.Ahead(now) == 0 {
		return State{At: now.Steady}
	}
	return s
}

// takeCell is Take for a CellBucket and a cost above 0. Even if the cost is
// refused, the bucket may drain at another rate from now on.
func (l *Limit) takeCell(s State, now Instant, cost int64) (State, bool) {
	c := l.cellOf(s, now)
	if interval := l.intervalIn(c.window, c.interval); interval != c.interval {
		c.owed = c.owed.times(interval, c.interval)
		c.interval = interval
	}

	total := c.owed.plus(wideProduct(cost, c.interval))
	allowed := l.Amount > 0 && !wideProduct(l.Burst, c.interval).less(total)
	if allowed {
		c.owed = total
	}
	return c.state(now), allowed
}

// ChangesRate reports whether a refused Take, which turned s into next, changed
// the rate at which the bucket drains. next must then be kept.
func (l *Limit) ChangesRate(s, next State) bool {
	return l.Kind == CellBucket && next.Part > 0 && next.Part&intervalMask != s.Part&intervalMask
}

// addToCell adds cost to what an up-to-date state owes.
func (l *Limit) addToCell(s State, now Instant, cost int64) State {
	c := l.cellOf(s, now)
	c.owed = c.owed.plus(wideProduct(cost, c.interval))
	return c.state(now)
}

// giveCell is giveBucket for a CellBucket. It gives nothing back if the rate
// was higher at any time since the Take.
func (l *Limit) giveCell(s State, from TakeRecord, now Instant, cost int64) State {
	if s.Fresh() || from.Amount == 0 || from.MaxRate > from.Amount {
		return s
	}
	c := l.cellOf(s, now)

	// Both are in terms of the interval at the Take.
	intervalThen := max(1, c.window/from.Amount)
	owedThen := int64(from.ResetAfter) - max(0, now.Steady-from.Steady)
	returned := wideProduct(from.Returned, intervalThen)

	// If the interval is shorter now than at the Take, the bucket has drained
	// faster, and nobody knows how much of the cost is left.
	if owedThen <= 0 || c.interval < intervalThen || !returned.less(uint128{0, uint64(owedThen)}) {
		return s
	}

	owedThen -= int64(returned.lo)
	hi, lo := mul(owedThen, c.interval)
	held := floorDiv128(hi, lo, uint64(intervalThen))
	return c.shorten(now, wideProduct(cost, c.interval).min(uint128{0, uint64(held)}))
}

// shorten returns the state without d nanoseconds of what it owes.
func (c cell) shorten(now Instant, d uint128) State {
	if !d.less(c.owed) {
		return State{At: now.Steady}
	}
	c.owed = c.owed.minus(d)
	return c.state(now)
}

// rewardCell takes n units off what an up-to-date state owes.
func (l *Limit) rewardCell(s State, now Instant, n int64) State {
	c := l.cellOf(s, now)
	return c.shorten(now, wideProduct(n, c.interval))
}

// returnedToCell is Returned for a CellBucket.
func (l *Limit) returnedToCell(before, after State, now Instant) int64 {
	c := l.cellOf(before, now)
	left := l.cellOf(after, now).owed
	if !left.less(c.owed) {
		return 0
	}
	d := c.owed.minus(left)
	return ceilDiv128(d.hi, d.lo, uint64(c.interval))
}

// used returns how many units are owed, rounded up.
func (c cell) used() int64 { return min(ceilDiv128(c.owed.hi, c.owed.lo, uint64(c.interval)), maxOwed) }

func (l *Limit) describeCell(d *Decision, s State, now Instant, cost int64) {
	c := l.cellOf(s, now)
	d.Used = c.used()
	d.Remaining = max(0, l.Burst-d.Used)

	d.ResetAfter = c.owed.duration()
	switch {
	case d.Allowed:
	case cost > l.Burst:
		d.RetryAfter = Never
	case l.Amount == 0:
		// The limit is the share of a node that decides alone, which has a part of the
		// burst but none of the amount. It may have one by then.
		d.RetryAfter = time.Duration(addSat(int64(d.ResetAfter), int64(l.Window)))
	default:
		d.RetryAfter = max(1, c.owed.minus(wideProduct(l.Burst-cost, c.interval)).duration())
	}
}

// moreInCell is moreInBucket for a CellBucket.
func (l *Limit) moreInCell(s State, now Instant) time.Duration {
	c := l.cellOf(s, now)
	target := max(0, min(c.used(), l.Burst)-1)
	return max(1, c.owed.minus(wideProduct(target, c.interval)).duration())
}
