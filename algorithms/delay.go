package algorithms

import (
	"math/bits"
	"time"
)

// A limit with MaxDelay turns its checks into a queue. A cost that does not fit
// now is taken at the first later time at which it fits behind everything taken
// before, and the answer tells the caller to wait until then. When the checks
// proceed, the algorithm without a queue would admit them as well.
//
//   - A bucket may owe more than its burst. A check proceeds once no more than
//     the burst is owed, so the state needs nothing else. (The checks of a leaky
//     bucket proceed in turn, as they do without MaxDelay, but MaxDelay bounds
//     the queue.)
//   - A windowed state is in the window of the last check in the queue, ahead of
//     the clock, and has queueMark. The windows before it are full, at least
//     those that can still matter.
//   - A log has entries in the future.
//
// A state stays ahead of the clock whatever MaxDelay is now. So the checks of a
// queue proceed as promised even if MaxDelay is lowered or removed.

// queueMark is added to State.At of a windowed state that a queue has put ahead
// of the clock. Window numbers are far smaller.
const queueMark = 1 << 61

// Window returns the number of the window that a windowed state is in.
func (s State) Window() int64 {
	if s.isQueued() {
		return s.At - queueMark
	}
	return s.At
}

// isQueued reports whether a queue has put a windowed state ahead of the clock.
func (s State) isQueued() bool { return s.At > queueMark/2 }

// usedQueued returns the usage of a window while its queue is ahead of the clock: all of it.
func (l *Limit) usedQueued(s State) int64 { return max(l.Amount, s.Count) }

// takeLater is Take with MaxDelay, for a cost above 0. s must be up to date.
func (l *Limit) takeLater(s State, now Instant, cost int64) (State, bool) {
	if cost > l.Capacity() {
		return s, false
	}

	next := s
	if l.Kind.IsBucket() {
		if s.Count > maxOwed-cost {
			return s, false
		}

		next.Count += cost
		wait := l.bucketDelay(next, now, cost)
		if wait > l.MaxDelay {
			return s, false
		}

		if wait > 0 && l.Kind == TokenBucket {
			next = l.raiseOwed(next, now, cost, wait)
		}

		return next, true
	}

	wait := l.windowWait(s, now.Wall, cost)
	if wait > int64(l.MaxDelay) {
		return s, false
	}

	next = l.Advance(s, Instant{Steady: now.Steady + wait, Wall: now.Wall + wait})
	next.Count += cost

	if next.At > l.windowNumber(now.Wall) {
		next.At += queueMark
	}

	return next, true
}

// raiseOwed returns s, raised so that it owes at least cost when the check
// proceeds, after wait. wait was rounded up to a nanosecond. Without raiseOwed,
// a bucket with nothing else to drain would idle for the fraction that was
// added.
func (l *Limit) raiseOwed(s State, now Instant, cost int64, wait time.Duration) State {
	owedHi, owedLo := mulAdd(s.Count, int64(l.Window), s.Part)
	hi, lo := mul(cost, int64(l.Window))
	drainHi, drainLo := mul(int64(wait)-max(0, s.At-now.Steady), l.Amount)
	lo, carry := bits.Add64(lo, drainLo, 0)
	hi += drainHi + carry
	if !less(owedHi, owedLo, hi, lo) {
		return s
	}
	// The quotient fits: it is what was owed plus less than a nanosecond's drain.
	count, part := bits.Div64(hi, lo, uint64(l.Window))
	return State{Count: int64(count), Part: int64(part), At: s.At}
}

// bucketDelay returns how long a check waits if its cost is already in s: until
// no more than the burst is owed, or, in a leaky bucket, until its turn.
func (l *Limit) bucketDelay(s State, now Instant, cost int64) time.Duration {
	over := s.Count - l.Burst
	if l.Kind == LeakyBucket {
		over = s.Count - cost
	}
	if over < 0 || over == 0 && s.Part == 0 {
		return 0
	}
	return l.drainTime(over, s.Part, max(0, s.At-now.Steady))
}

// bucketRetry returns how long until a refused check of cost (1…Burst) would be
// allowed; with MaxDelay, that includes being allowed after a delay.
func (l *Limit) bucketRetry(s State, now Instant, cost int64) time.Duration {
	ahead := max(0, s.At-now.Steady)
	if l.MaxDelay == 0 {
		return l.drainTime(s.Count+cost-l.Burst, s.Part, ahead)
	}
	later := s
	later.Count += cost
	retry := l.bucketDelay(later, now, cost) - l.MaxDelay
	if later.Count > maxOwed {
		retry = max(retry, l.drainTime(later.Count-maxOwed, s.Part, ahead))
	}
	return max(1, retry)
}

// windowWait returns how many nanoseconds after wall a window has room for cost
// (at most Amount), behind everything in s. s must be up to date.
func (l *Limit) windowWait(s State, wall, cost int64) int64 {
	n := s.Window()
	first := max(wall, l.startOfWindow(n))
	switch {
	case l.Kind == FixedWindow && s.Count <= l.Amount-cost:
		return first - wall
	case l.Kind == FixedWindow:
		return l.endOfWindow(n) - wall
	}

	unmarked := State{Count: s.Count, Part: s.Part, At: n}
	switch {
	case l.slidingAllows(unmarked, first, cost):
		return first - wall
	case s.Count <= l.Amount-cost:
		// The cost fits later in this window, once less of the previous one is in
		// view; at the latest, at its very end.
		return l.endOfWindow(n) - l.longestView(s.Part, l.Amount-s.Count-cost) - wall
	}

	// The cost fits in the next window, where the current count becomes the
	// previous one.
	return l.endOfWindow(n) + int64(l.Window) - l.longestView(s.Count, l.Amount-cost) - wall
}

// windowRetry returns how long until a refused check of cost (at most Amount)
// would be allowed; with MaxDelay, that includes being allowed after a delay.
func (l *Limit) windowRetry(s State, wall, cost int64) time.Duration {
	return time.Duration(max(0, l.windowWait(s, wall, cost)-int64(l.MaxDelay)))
}

// windowDelay returns how long a check waits if its cost is already in s.
func (l *Limit) windowDelay(s State, wall, cost int64) time.Duration {
	if l.MaxDelay == 0 || cost == 0 {
		return 0
	}
	return time.Duration(l.windowWait(s, wall, 0))
}

// retreatQueue moves the end of a queue whose last window is empty, as after a
// Give, back to an earlier window, which it takes to be full. Otherwise the
// next check would proceed later than the one whose cost was put back, and the
// state would look fresh.
func (l *Limit) retreatQueue(s State, now Instant) State {
	if l.Kind.OnSteadyClock() || !s.isQueued() || !s.Fresh() {
		return s
	}
	full := State{Count: l.Amount, At: l.previousWindow(s.Window()) + queueMark}
	if l.Kind == SlidingWindow {
		// Part is 0, so the window before is empty as well
		full.Part, full.At = l.Amount, l.previousWindow(full.Window())+queueMark
	}
	return l.Advance(full, now)
}

// previousWindow returns the number of the window before n.
func (l *Limit) previousWindow(n int64) int64 {
	if l.Calendar != nil {
		return l.windowNumber((n - 1) * int64(time.Second))
	}
	return n - 1
}

// shortenQueue takes n units off the end of a fixed window's queue. Calendar
// windows differ in length, so it drops their whole queue unless n fits into
// the last window.
func (l *Limit) shortenQueue(s State, now Instant, n int64) State {
	if n < s.Count {
		s.Count -= n
		return s
	}

	current := l.windowNumber(now.Wall)
	if l.Amount == 0 {
		return State{At: current}
	}

	windows, rest := (n-s.Count)/l.Amount+1, (n-s.Count)%l.Amount
	if l.Calendar != nil || windows > s.Window()-current {
		return State{At: current}
	}

	at := s.Window() - windows
	if at > current {
		at += queueMark
	}

	return State{Count: l.Amount - rest, At: at}
}
