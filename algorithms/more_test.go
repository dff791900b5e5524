package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestMoreAfterOfLogs: after that time more remains than after the check; a nanosecond earlier it does not.
func TestMoreAfterOfLogs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	known := 0
	for range 20_000 {
		l := &Limit{Kind: SlidingLog, Amount: 1 + r.Int64N(20), Window: time.Duration(10+r.Int64N(1000)) * time.Millisecond}
		if r.IntN(4) == 0 {
			l.MaxDelay = time.Minute
		}
		now, log := At(time.Unix(1_800_000_000, 0)), &Log{}
		for range r.IntN(40) {
			now.Steady += r.Int64N(int64(l.Window) / 4)
			if cost := r.Int64N(4); r.IntN(20) == 0 {
				log.Force(l, TakeRecord{Steady: now.Steady}, now, cost)
			} else {
				log.Take(l, now, cost)
			}
		}
		cost := r.Int64N(3)
		d := log.Peek(l, now, cost)
		more := log.MoreAfter(l, now, &d)
		if (more == 0) != (!d.Allowed || d.Used == 0 || d.Used > l.Amount) {
			t.Fatalf("%+v: have %v for %+v", l, more, d)
		}
		if more == 0 {
			continue
		}
		log.Take(l, now, cost)
		remaining := func(after time.Duration) int64 {
			return log.Clone().Peek(l, Instant{Steady: now.Steady + int64(after)}, 0).Remaining
		}
		if known++; remaining(more) <= d.Remaining || remaining(more-1) > d.Remaining {
			t.Fatalf("%+v: %+v, after %v %d, and a nanosecond earlier %d", l, d, more, remaining(more), remaining(more-1))
		}
	}
	if known < 10_000 {
		t.Errorf("only %d logs have something used", known)
	}
}

// TestMoreAfter: after that time more remains than before; a nanosecond earlier it does not.
func TestMoreAfter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	known := 0
	for range 20_000 {
		l := &Limit{Kind: SlidingWindow, Amount: 1 + r.Int64N(20), Window: time.Duration(10+r.Int64N(1000)) * time.Millisecond}
		now, s := Instant{Wall: 1_700_000_000_000_000_000 + r.Int64N(1e10)}, State{}
		for range r.IntN(40) {
			now.Wall += r.Int64N(int64(l.Window) / 4)
			s, _ = l.Take(s, now, r.Int64N(4))
		}
		s = l.Advance(s, now)
		remaining := func(after time.Duration) int64 {
			return l.Peek(s, Instant{Wall: now.Wall + int64(after)}, 0).Remaining
		}
		before := remaining(0)
		more := l.MoreAfter(s, now, before)
		if (more == 0) != (before == l.Amount) {
			t.Fatalf("%+v %+v: have %v, and %d of %d remain", l, s, more, before, l.Amount)
		}
		if more == 0 {
			continue
		}
		if known++; remaining(more) <= before || remaining(more-1) > before {
			t.Fatalf("%+v %+v: %d remain, after %v %d, and a nanosecond earlier %d", l, s, before, more, remaining(more), remaining(more-1))
		}
	}
	if known < 10_000 {
		t.Errorf("only %d states have something used", known)
	}
}
