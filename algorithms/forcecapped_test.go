package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A debt raises a counter's usage as close to the capacity as possible but
// never beyond it, and never lowers it.
func TestForceCapped(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, kind := range []Kind{TokenBucket, LeakyBucket, SlidingWindow, FixedWindow, FirstWindow} {
		for range 50_000 {
			l := &Limit{Kind: kind, Amount: 1 + rng.Int64N(200), Burst: 1 + rng.Int64N(200), Window: time.Second}
			now := At(time.Unix(1000, rng.Int64N(1e9)))
			s, _ := l.Take(State{}, At(time.Unix(999, rng.Int64N(1e9))), 1+rng.Int64N(100))
			s, _ = l.Take(s, now, 1+rng.Int64N(100))
			from := TakeRecord{Steady: now.Steady - rng.Int64N(2e9), Window: 1000 - rng.Int64N(3)}
			cost := rng.Int64N(300)
			before := l.Used(l.Advance(s, now), now)
			forced := l.Used(l.Force(s, from, now, cost), now)
			have := l.Used(l.ForceCapped(s, from, now, cost), now)
			want := forced
			if kind != FixedWindow && kind != FirstWindow {
				want = min(forced, max(before, l.Capacity()))
			}
			// A unit of the previous window weighs less than one, so the last one that fits
			// may leave room.
			if have > want || have < before || have < want-1 {
				t.Fatalf("%v, %v of %d at %d: have %d used after %d, want %d", l, from, cost,
					now.Wall, have, before, want)
			}
		}
	}
}
