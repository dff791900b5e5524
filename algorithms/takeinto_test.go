package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TakeInto is Take and DescribeInto, whichever way it takes.
func TestTakeInto(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	allowed, refused := 0, 0
	for range 200_000 {
		l := &Limit{
			Kind:   []Kind{TokenBucket, TokenBucket, TokenBucket, LeakyBucket, FixedWindow, SlidingWindow, FirstWindow}[r.IntN(7)],
			Amount: r.Int64N(1 << r.IntN(50)), Burst: r.Int64N(1 << r.IntN(50)), Window: MinWindow + time.Duration(r.Int64N(1<<r.IntN(50))),
		}
		if r.IntN(8) == 0 && l.Kind != FirstWindow {
			l.MaxDelay = time.Duration(r.Int64N(int64(time.Minute)))
		}
		now := Instant{Steady: 1<<60 + r.Int64N(1<<40), Wall: 1<<60 + r.Int64N(1<<40)}
		s := State{Count: r.Int64N(1 << r.IntN(52)), Part: r.Int64N(1 << r.IntN(20)), At: now.Steady - r.Int64N(1<<r.IntN(50)) + r.Int64N(1000)}
		if l.Kind.Windowed() {
			s.At = l.Advance(State{}, now).At - r.Int64N(3)
		} else if l.Kind.Bucket() {
			s.Part %= int64(l.Window)
		}
		cost := r.Int64N(1 << r.IntN(40))
		want, wantAllowed := l.Take(s, now, cost)
		wantDecision := l.Describe(want, now, cost, wantAllowed)
		d := Decision{Allowed: true, Remaining: 1, Used: 2, RetryAfter: 3, ResetAfter: 4, Delay: 5} // of an earlier check
		if have, ok := l.TakeInto(&d, s, now, cost); have != want || ok != wantAllowed || d != wantDecision {
			t.Fatalf("%+v, %+v, cost %d: have %+v, %t, %+v, want %+v, %t, %+v", l, s, cost, have, ok, d, want, wantAllowed, wantDecision)
		}
		if wantAllowed {
			allowed++
		} else {
			refused++
		}
	}
	if allowed < 10_000 || refused < 10_000 {
		t.Errorf("%d allowed, %d refused", allowed, refused)
	}
}
