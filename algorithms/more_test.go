package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// usedCounter is a counter of any algorithm, for tests that treat all of them alike.
type usedCounter struct {
	limit *Limit
	state State
	log   Log
}

func (c *usedCounter) peek(now Instant, cost int64) Decision {
	if c.limit.Kind == SlidingLog {
		return c.log.Clone().Peek(c.limit, now, cost)
	}
	return c.limit.Peek(c.state, now, cost)
}

func (c *usedCounter) take(now Instant, cost int64) {
	if c.limit.Kind == SlidingLog {
		c.log.Take(c.limit, now, cost)
	} else {
		c.state, _ = c.limit.Take(c.state, now, cost)
	}
}

func (c *usedCounter) force(now Instant, cost int64) {
	if c.limit.Kind == SlidingLog {
		c.log.Force(c.limit, TakeRecord{Steady: now.Steady}, now, cost)
		return
	}
	c.state = c.limit.Advance(c.state, now)
	c.state = c.limit.Force(c.state, c.limit.TakeRecord(c.state, now), now, cost)
}

// randomCounter returns a counter that was used for a while, perhaps beyond its
// limit, and the time.
func randomCounter(r *rand.Rand, kind Kind) (*usedCounter, Instant) {
	l := &Limit{Kind: kind, Amount: 1 + r.Int64N(20), Window: time.Duration(10+r.Int64N(1000)) * time.Millisecond}
	if kind.IsBucket() {
		l.Burst = 1 + r.Int64N(20)
	}
	if kind != FirstWindow && kind != CellBucket && r.IntN(4) == 0 {
		l.MaxDelay = time.Duration(r.Int64N(int64(5 * time.Second)))
	}

	c, now := &usedCounter{limit: l}, At(time.Unix(1_800_000_000, r.Int64N(1e10)))
	for range r.IntN(40) {
		step := r.Int64N(int64(l.Window) / 4)
		now.Steady, now.Wall = now.Steady+step, now.Wall+step
		if cost := r.Int64N(4); r.IntN(20) == 0 {
			c.force(now, cost)
		} else {
			c.take(now, cost)
		}
	}
	return c, now
}

// TestMoreAfterIsExact: after that time more remains than the decision says,
// and a nanosecond earlier it does not. That holds for checks of any cost,
// whether they are allowed, refused or only peek.
func TestMoreAfterIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for kind := range Concurrency { // slots end by themselves, and no state of theirs is kept
		known := 0
		for range 20_000 {
			c, now := randomCounter(r, kind)
			cost := r.Int64N(c.limit.Capacity() + 2)
			d := c.peek(now, cost)
			if r.IntN(2) == 0 && d.Delay == 0 {
				c.take(now, cost)
				d = c.peek(now, 0)
			} else if d.Allowed {
				c.take(now, cost)
			}

			if full := d.Remaining >= c.limit.Capacity(); full != (d.MoreAfter == 0) {
				t.Fatalf("%v %+v: MoreAfter is %v in %+v", kind, c.limit, d.MoreAfter, d)
			}
			if d.MoreAfter == 0 {
				continue
			}
			known++
			remaining := func(after time.Duration) int64 {
				return c.peek(Instant{Steady: now.Steady + int64(after), Wall: now.Wall + int64(after)}, 0).Remaining
			}
			if then, before := remaining(d.MoreAfter), remaining(d.MoreAfter-1); then <= d.Remaining || before > d.Remaining {
				t.Fatalf("%v %+v: %+v, after MoreAfter %d remain, and a nanosecond earlier %d",
					kind, c.limit, d, then, before)
			}
		}
		if known < 10_000 {
			t.Errorf("%v: only %d counters have something used", kind, known)
		}
	}
}

// TestMoreAfterDoesNotDependOnTheCost has the example of a bucket of 10 in 10
// s, of which 7 are used.
func TestMoreAfterDoesNotDependOnTheCost(t *testing.T) {
	l := &Limit{Kind: TokenBucket, Amount: 10, Burst: 10, Window: 10 * time.Second}
	now := At(time.Unix(1_800_000_000, 0))
	s, _ := l.Take(State{}, now, 7)
	for cost, retry := range map[int64]time.Duration{0: 0, 4: time.Second, 10: 7 * time.Second, 11: Never} {
		if d := l.Peek(s, now, cost); d.RetryAfter != retry || d.MoreAfter != time.Second || d.Remaining != 3 {
			t.Errorf("cost %d: got %+v, want RetryAfter %v, MoreAfter 1s and 3 remaining", cost, d, retry)
		}
	}
}
