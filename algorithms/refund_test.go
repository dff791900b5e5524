package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A bucket from which one cost at a time is refunded always holds at least as much as if only the real cost had been taken.
func TestRefundOfBuckets(t *testing.T) {
	for seed := range uint64(300) {
		chance := rand.New(rand.NewPCG(seed, 1))
		l := &Limit{Kind: TokenBucket, Amount: 1 + chance.Int64N(1000), Burst: 1 + chance.Int64N(2000), Window: time.Second}
		now := At(time.Unix(1_800_000_000, 0))
		var s, ideal State
		step := func() {
			d := int64(chance.ExpFloat64() * float64(50*time.Millisecond))
			now.Steady, now.Wall = now.Steady+d, now.Wall+d
		}
		other := func() {
			cost := chance.Int64N(l.Burst/4 + 1)
			var ok bool
			if s, ok = l.Take(s, now, cost); ok {
				ideal = l.Force(ideal, TakeRecord{}, now, cost)
			}
		}
		for range 30 {
			step()
			reserved := 1 + chance.Int64N(l.Burst)
			used := chance.Int64N(reserved + 1)
			var ok bool
			if s, ok = l.Take(s, now, reserved); !ok {
				other()
				continue
			}
			ideal = l.Force(ideal, TakeRecord{}, now, used)
			fresh, taken := l.Describe(s, now, reserved, true).ResetAfter, now.Steady
			for range chance.IntN(4) {
				step()
				other()
			}
			step()
			s = l.Refund(s, TakeRecord{}, fresh-time.Duration(now.Steady-taken), now, reserved-used)
			ideal = l.Advance(ideal, now)
			if s.Count < ideal.Count-1 {
				t.Fatalf("seed %d: have %d owed, want at least %d", seed, s.Count, ideal.Count)
			}
		}
	}
}

func TestRefundOfBucketsIsWhole(t *testing.T) {
	l := &Limit{Kind: TokenBucket, Amount: 60_000, Burst: 60_000, Window: time.Minute} // 1,000 a second
	now := At(time.Unix(1_800_000_000, 0))
	s, _ := l.Take(State{}, now, 30_000)
	s, _ = l.Take(s, now, 5_000)
	fresh := l.Describe(s, now, 5_000, true).ResetAfter
	now.Steady += int64(10 * time.Second)
	s = l.Refund(s, TakeRecord{}, fresh-10*time.Second, now, 4_200)
	if want := int64(35_000 - 10_000 - 4_200); s.Count != want {
		t.Errorf("have %d owed, want %d", s.Count, want)
	}
}

// A refund to a log removes its oldest hits, so the log never forgets early.
func TestRefundOfLogs(t *testing.T) {
	l := &Limit{Kind: SlidingLog, Amount: 100, Window: time.Minute}
	var g Log
	at := func(seconds int) Instant { return At(time.Unix(1_800_000_000+int64(seconds), 0)) }
	g.Take(l, at(0), 10)
	g.Take(l, at(30), 10)
	g.Refund(l, time.Second, at(31), 12)
	if have := g.Used(); have != 8 {
		t.Errorf("have %d used, want 8", have)
	}
	g.Refund(l, 0, at(32), 5)
	if have := g.Used(); have != 8 {
		t.Errorf("out of the window: have %d used, want 8", have)
	}
	g.Advance(l, at(89))
	if have := g.Used(); have != 8 {
		t.Errorf("have %d used, want 8: what was taken last is kept longest", have)
	}
}
