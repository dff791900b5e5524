package algorithms

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A limit of 0, as in a region without a share, refuses everything. The
// limiter, which knows the whole limit, knows whether that is for good.
func TestAmountOfZero(t *testing.T) {
	now := At(time.Unix(1_000_050, 0))
	month := NewCalendar(Month, time.UTC)
	for _, l := range []Limit{
		{Kind: FixedWindow, Window: time.Minute},
		{Kind: FixedWindow, Window: 30 * 24 * time.Hour, Calendar: month},
		{Kind: FixedWindow, Window: time.Minute, MaxDelay: time.Hour},
		{Kind: SlidingWindow, Window: time.Minute},
		{Kind: SlidingWindow, Window: time.Minute, MaxDelay: time.Hour},
		{Kind: TokenBucket, Window: time.Minute},
		{Kind: TokenBucket, Window: time.Minute, MaxDelay: time.Hour},
		{Kind: LeakyBucket, Window: time.Minute},
		{Kind: FirstWindow, Window: time.Minute},
	} {
		d := l.Peek(State{}, now, 1)
		if d.Allowed || d.RetryAfter != Never || d.MoreAfter != 0 || d.Remaining != 0 {
			t.Errorf("%s: have %+v, want a refusal for good", l.Kind, d)
		}
		if s, ok := l.Take(State{}, now, 1); ok || !s.Fresh() {
			t.Errorf("%s: a cost was taken", l.Kind)
		}
		if _, ok := l.Take(State{}, now, 0); !ok {
			t.Errorf("%s: a cost of 0 is refused", l.Kind)
		}
		if Fullness(d.Remaining, l.Capacity()) != 255 {
			t.Errorf("%s: the counter is not full", l.Kind)
		}
	}
	l, g := &Limit{Kind: SlidingLog, Window: time.Minute}, &Log{}
	if d := g.Peek(l, now, 1); d.Allowed || d.RetryAfter != Never || g.Take(l, now, 1) {
		t.Errorf("log: have %+v", d)
	}
	// The bucket was full when its share was taken away.
	bucket := Limit{Kind: TokenBucket, Window: time.Minute}
	if d := bucket.Peek(State{Count: 7, Part: 5, At: now.Steady}, now, 1); d.Allowed ||
		d.RetryAfter != Never || d.ResetAfter != time.Minute {
		t.Errorf("full bucket: have %+v", d)
	}
}

// Whatever operations a counter saw while its limit had an amount, and whatever
// it sees after the amount becomes 0, nothing is admitted, and every answer is
// plausible.
func TestAmountBecomesZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{
			Kind:   rapid.SampledFrom(append(allKinds, FirstWindow)).Draw(t, "kind"),
			Amount: rapid.Int64Range(0, 20).Draw(t, "amount"), Burst: rapid.Int64Range(0, 20).Draw(t, "burst"),
			Window: time.Duration(rapid.Int64Range(int64(MinWindow), int64(time.Minute)).Draw(t, "window")),
		}
		if rapid.Bool().Draw(t, "delay") && l.Kind != FirstWindow {
			l.MaxDelay = 2 * time.Minute
		}
		none := l
		none.Amount, none.Burst = 0, 0
		s, g := State{}, &Log{}
		now := At(time.Unix(1_000_000, 0))
		var from TakeRecord
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			step := rapid.Int64Range(0, int64(l.Window)).Draw(t, "time")
			now.Steady, now.Wall = now.Steady+step, now.Wall+step
			limit := &l
			if rapid.Bool().Draw(t, "none") {
				limit = &none
			}
			cost := rapid.Int64Range(0, 25).Draw(t, "cost")
			ok := false
			if l.Kind == SlidingLog {
				ok = onLog(t, g, limit, &from, now, cost)
			} else {
				s, ok = onState(t, s, limit, &from, now, cost)
			}
			if ok && cost > 0 && limit == &none {
				t.Fatalf("%d is admitted", cost)
			}
		}
	})
}

func checkSane(t *rapid.T, l *Limit, d Decision) {
	if d.Remaining < 0 || d.Remaining > l.Capacity() || d.ResetAfter < 0 || d.RetryAfter < Never ||
		d.Delay < 0 || d.RetryAfter > 1<<50 || d.ResetAfter > 1<<50 {
		t.Fatalf("%+v of %+v", d, *l)
	}
	if !d.Allowed && d.RetryAfter == 0 || !d.Allowed && l.Capacity() == 0 &&
		d.RetryAfter != Never && d.RetryAfter != 1 {
		t.Fatalf("%+v of %+v", d, *l)
	}
}

func onState(t *rapid.T, s State, l *Limit, from *TakeRecord, now Instant, cost int64) (State, bool) {
	switch rapid.IntRange(0, 5).Draw(t, "what") {
	case 0:
		return l.Give(s, *from, now, cost), false
	case 1:
		return l.Force(s, l.TakeRecord(l.Advance(s, now), now), now, cost), false
	case 2:
		return l.ForceCapped(s, *from, now, cost), false
	case 3:
		return l.Reward(s, now, cost), false
	case 4:
		late := *from
		late.MaxRate = MaxAmount
		return l.Give(s, late, now, cost), false
	}
	checkSane(t, l, l.Peek(s, now, cost))
	if l.Used(l.Advance(s, now), now) < 0 {
		t.Fatalf("usage is negative")
	}
	s, ok := l.Take(s, now, cost)
	checkSane(t, l, l.Describe(s, now, cost, ok))
	if ok {
		*from = l.TakeRecord(s, now)
	}
	return s, ok
}

func onLog(t *rapid.T, g *Log, l *Limit, from *TakeRecord, now Instant, cost int64) bool {
	switch rapid.IntRange(0, 4).Draw(t, "what") {
	case 0:
		g.Give(l, *from, now, cost)
		return false
	case 1:
		g.Force(l, TakeRecord{Steady: now.Steady}, now, cost)
		return false
	case 2:
		g.Reward(l, now, cost)
		return false
	case 3:
		g.Give(l, TakeRecord{Steady: from.Steady - 1}, now, cost)
		return false
	}
	checkSane(t, l, g.Peek(l, now, cost))
	ok := g.Take(l, now, cost)
	checkSane(t, l, g.Describe(l, now, cost, ok))
	if ok {
		*from = g.TakeRecord()
	}
	return ok
}
