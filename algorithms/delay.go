package algorithms

import (
	"math/bits"
	"time"
)

// A limit with MaxDelay makes of its checks a queue: what does not fit now is taken at the first later time at which it
// fits behind all that was taken before, and the check is told to wait until then. At the times at which they go on, the
// checks are such as the algorithm alone would admit.
//
//   - A bucket owes more than its burst holds; a check goes on when what is owed is no more than the burst again. So its
//     state needs nothing else. (A leaky bucket's checks go on when their turn comes, as without MaxDelay; its queue is then
//     as long as MaxDelay says.)
//   - A windowed state stands in the window of the last check in the queue, ahead of the clock, and has queueMark. The windows
//     before are full, as far as anyone may still ask about them.
//   - A log has entries at times to come.
//
// Whether a state is ahead of the clock does not depend on MaxDelay, so that a queue ends as it was told to when MaxDelay is
// lowered or taken away.

// queueMark is added to State.At of a windowed state that stands ahead of the clock because of a queue. One that does so
// without it was written under a clock that was ahead: see skewed. Numbers of windows are far smaller.
const queueMark = 1 << 61

// maxAhead is how far ahead of the clock a queue can be.
const maxAhead = int64(MaxMaxDelay) + maxSkew

// Window is the number of the window that the state of a windowed algorithm stands in.
func (s State) Window() int64 {
	if s.queued() {
		return s.At - queueMark
	}
	return s.At
}

// queued reports whether a windowed state stands ahead of the clock because of a queue.
func (s State) queued() bool { return s.At > queueMark/2 }

// near reports whether window n, which is ahead of wall, begins soon enough for a queue to be in it.
func (l *Limit) near(n, wall int64) bool {
	if l.Calendar != nil {
		return n <= floorDiv(wall+maxAhead, int64(time.Second))
	}
	return n <= floorDiv(wall+maxAhead, int64(l.Window))
}

// takeLater is Take with MaxDelay, for a cost above 0. s is up to date.
func (l *Limit) takeLater(s State, now Now, cost int64) (State, bool) {
	if cost > l.Capacity() {
		return s, false
	}
	next := s
	if l.Kind.Bucket() {
		if s.Count > maxOwed-cost {
			return s, false
		}
		next.Count += cost
		wait := l.bucketDelay(next, now, cost)
		if wait > l.MaxDelay {
			return s, false
		}
		if wait > 0 && l.Kind == TokenBucket {
			next = l.startEmpty(next, now, cost, wait)
		}
		return next, true
	}
	wait := l.windowWait(s, now.Wall, cost)
	if wait > int64(l.MaxDelay) {
		return s, false
	}
	next = l.Advance(s, Now{Steady: now.Steady + wait, Wall: now.Wall + wait})
	next.Count += cost
	if next.At > l.number(now.Wall) {
		next.At += queueMark
	}
	return next, true
}

// startEmpty is s, which owes cost for a check that goes on after wait, such that it owes no less than cost then: waits are
// rounded up, and a bucket that has nothing else to drain is idle for that fraction of a nanosecond.
func (l *Limit) startEmpty(s State, now Now, cost int64, wait time.Duration) State {
	owedHi, owedLo := mulAdd(s.Count, int64(l.Window), s.Part)
	hi, lo := mul(cost, int64(l.Window))
	drainHi, drainLo := mul(int64(wait)-max(0, s.At-now.Steady), l.Amount)
	lo, carry := bits.Add64(lo, drainLo, 0)
	hi += drainHi + carry
	if !less(owedHi, owedLo, hi, lo) {
		return s
	}
	// The quotient fits: it is what was owed, and less than a nanosecond's drain more.
	count, part := bits.Div64(hi, lo, uint64(l.Window))
	return State{Count: int64(count), Part: int64(part), At: s.At}
}

// bucketDelay is how long a check of cost, which s has in it, waits: until no more is owed than the burst; in a leaky
// bucket until its turn.
func (l *Limit) bucketDelay(s State, now Now, cost int64) time.Duration {
	over := s.Count - l.Burst
	if l.Kind == LeakyBucket {
		over = s.Count - cost
	}
	if over < 0 || over == 0 && s.Part == 0 {
		return 0
	}
	return l.drainTime(over, s.Part, max(0, s.At-now.Steady))
}

// bucketRetry is how long a check of cost (1…Burst) that a bucket refuses has to wait until it is allowed, with a delay if
// the limit has that.
func (l *Limit) bucketRetry(s State, now Now, cost int64) time.Duration {
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

// windowWait is how long after wall cost (at most Amount) fits into a window, behind all that s has in it. s is up to date.
func (l *Limit) windowWait(s State, wall, cost int64) int64 {
	n := s.Window()
	first := max(wall, l.start(n))
	switch {
	case l.Kind == FixedWindow && s.Count <= l.Amount-cost:
		return first - wall
	case l.Kind == FixedWindow:
		return l.end(n) - wall
	}
	bare := State{Count: s.Count, Part: s.Part, At: n}
	switch {
	case l.slidingAllows(bare, first, cost):
		return first - wall
	case s.Count <= l.Amount-cost:
		// Later in this window, when less of the previous one is in view; at its very end at the latest.
		return l.end(n) - l.viewFor(s.Part, l.Amount-s.Count-cost) - wall
	}
	// In the next window, where the present count is the previous one.
	return l.end(n) + int64(l.Window) - l.viewFor(s.Count, l.Amount-cost) - wall
}

// windowRetry is how long a check of cost (at most Amount) that a window refuses has to wait until it is allowed, with a
// delay if the limit has that.
func (l *Limit) windowRetry(s State, wall, cost int64) time.Duration {
	return time.Duration(max(0, l.windowWait(s, wall, cost)-int64(l.MaxDelay)))
}

// windowDelay is how long the check of cost that s has in it waits.
func (l *Limit) windowDelay(s State, wall, cost int64) time.Duration {
	if l.MaxDelay == 0 || cost == 0 {
		return 0
	}
	return time.Duration(l.windowWait(s, wall, 0))
}

// retreat moves the end of a queue with nothing left in its last window to the windows before, which are full as far as is
// known: or whoever comes next would go on later than who has left, and a state with nothing in it looks fresh.
func (l *Limit) retreat(s State, now Now) State {
	if l.Kind.Bucket() || !s.queued() || !s.Fresh() {
		return s
	}
	full := State{Count: l.Amount, At: l.before(s.Window()) + queueMark}
	if l.Kind == SlidingWindow {
		full.Part, full.At = l.Amount, l.before(full.Window())+queueMark // nor is there anything in the one before
	}
	return l.Advance(full, now)
}

// before is the number of the window before n.
func (l *Limit) before(n int64) int64 {
	if l.Calendar != nil {
		return l.number((n - 1) * int64(time.Second))
	}
	return n - 1
}

// shorten takes n units off the end of a fixed window's queue; all of it where windows differ in length.
func (l *Limit) shorten(s State, now Now, n int64) State {
	if n < s.Count {
		s.Count -= n
		return s
	}
	present := l.number(now.Wall)
	if l.Amount == 0 {
		return State{At: present}
	}
	windows, rest := (n-s.Count)/l.Amount+1, (n-s.Count)%l.Amount
	if l.Calendar != nil || windows > s.Window()-present {
		return State{At: present}
	}
	at := s.Window() - windows
	if at > present {
		at += queueMark
	}
	return State{Count: l.Amount - rest, At: at}
}
