package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// A bucket from which one cost at a time is refunded always owes at least as
// much as if only the real cost had been taken, to the part of a unit, but for
// what drains in a nanosecond; even if its rate changes meanwhile.
func TestRefundOfBuckets(t *testing.T) {
	for seed := range uint64(300) {
		chance := rand.New(rand.NewPCG(seed, 1))
		l := &Limit{Kind: TokenBucket, Amount: 1 + chance.Int64N(1000),
			Burst: 1 + chance.Int64N(2000), Window: time.Second}
		now := At(time.Unix(1_800_000_000, 0))
		var s, ideal State
		step := func() {
			d := int64(chance.ExpFloat64() * float64(50*time.Millisecond))
			now.Steady, now.Wall = now.Steady+d, now.Wall+d
		}
		other := func() {
			cost := chance.Int64N(l.Burst/4 + 1)
			var ok bool
			s, ok = l.Take(s, now, cost)
			if ok {
				ideal = l.Force(ideal, TakeRecord{}, now, cost)
			}
		}
		for range 30 {
			step()
			reserved := 1 + chance.Int64N(l.Burst)
			used := chance.Int64N(reserved + 1)
			var ok bool
			s, ok = l.Take(s, now, reserved)
			if !ok {
				other()
				continue
			}
			ideal = l.Force(ideal, TakeRecord{}, now, used)
			from := l.TakeRecord(s, now)
			from.MaxRate = l.Amount
			for range chance.IntN(4) {
				step()
				if seed%2 == 0 {
					s, ideal = l.Advance(s, now), l.Advance(ideal, now)
					l.Amount = 1 + chance.Int64N(1000)
					from.MaxRate = max(from.MaxRate, l.Amount)
				}
				other()
			}
			step()
			s = l.Give(s, from, now, reserved-used)
			ideal = l.Advance(ideal, now)
			have, want := l.Advance(s, next(now)), l.Advance(ideal, next(now))
			if have.Count < want.Count || have.Count == want.Count && have.Part < want.Part {
				t.Fatalf("seed %d: have %+v, want at least %+v", seed, have, want)
			}
		}
	}
}

// next returns the instant a nanosecond after now.
func next(now Instant) Instant { return Instant{Steady: now.Steady + 1, Wall: now.Wall + 1} }

// Refunding all of a cost leaves what it would have been without it, to the
// part of a unit. So the next cost fits at once.
func TestRefundOfBucketsKeepsParts(t *testing.T) {
	for seed := range uint64(1000) {
		chance := rand.New(rand.NewPCG(seed, 2))
		l := &Limit{Kind: LeakyBucket, Amount: 1 + chance.Int64N(50), Burst: 1 + chance.Int64N(20),
			Window: 24 * time.Hour}
		if seed%2 == 0 {
			l.Amount, l.Burst = MaxAmount-chance.Int64N(50), 1+chance.Int64N(100_000) // 104 units a nanosecond
		}
		now := At(time.Unix(1_800_000_000, 0))
		without := l.Force(State{}, TakeRecord{}, now, chance.Int64N(2*l.Burst))
		now.Steady += chance.Int64N(int64(l.Window)/l.Amount + 1)
		cost := 1 + chance.Int64N(l.Burst)
		s := l.Force(without, TakeRecord{}, now, cost)
		from := l.TakeRecord(s, now)
		now.Steady += chance.Int64N(int64(from.ResetAfter) + 1)
		s = l.Give(s, from, now, cost)
		if have, want := l.Advance(s, next(now)), l.Advance(without,
			next(now)); have.Count != want.Count || have.Part != want.Part {
			t.Fatalf("seed %d: have %+v, want %+v", seed, have, want)
		}
	}
	l := &Limit{Kind: TokenBucket, Amount: 1, Burst: 1, Window: 24 * time.Hour}
	now := At(time.Unix(1_800_000_000, 0))
	s, _ := l.Take(State{}, now, 1)
	from := l.TakeRecord(s, now)
	now.Steady += int64(time.Millisecond)
	s = l.Give(s, from, now, 1)
	if !s.Fresh() {
		t.Errorf("have %+v owed, want nothing", s)
	}
}

func TestRefundOfBucketsIsWhole(t *testing.T) {
	l := &Limit{Kind: TokenBucket, Amount: 60_000, Burst: 60_000, Window: time.Minute} // 1,000 a second
	now := At(time.Unix(1_800_000_000, 0))
	s, _ := l.Take(State{}, now, 30_000)
	s, _ = l.Take(s, now, 5_000)
	from := l.TakeRecord(s, now)
	now.Steady += int64(10 * time.Second)
	s = l.Give(s, from, now, 4_200)
	if want := int64(35_000 - 10_000 - 4_200); s.Count != want {
		t.Errorf("have %d owed, want %d", s.Count, want)
	}
}

// A refund to a log whose hit is not known by its time, as when another process
// took it, removes the oldest hits, so the log never forgets early.
func TestRefundOfLogs(t *testing.T) {
	l := &Limit{Kind: SlidingLog, Amount: 100, Window: time.Minute}
	var g Log
	at := func(seconds int) Instant { return At(time.Unix(1_800_000_000+int64(seconds), 0)) }
	g.Take(l, at(0), 10)
	g.Take(l, at(30), 10)
	g.Give(l, TakeRecord{Steady: at(29).Steady}, at(31), 12)
	expect.Equal(t, g.Used(), 8, "used")
	g.Give(l, TakeRecord{Steady: at(32).Steady - int64(time.Minute)}, at(32), 5)
	expect.Equal(t, g.Used(), 8, "out of the window: used")
	g.Advance(l, at(89))
	if have := g.Used(); have != 8 {
		t.Errorf("have %d used, want 8: what was taken last is kept longest", have)
	}
}
