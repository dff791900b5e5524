package counters

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// tryTakePlain takes what a Take takes, describes it as a Describe does, and
// stores the same; or it does nothing.
func TestTakePlain(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	quick, slow, refused := 0, 0, 0
	for range 300_000 {
		l := &algorithms.Limit{
			Kind:   algorithms.TokenBucket,
			Amount: 1 + r.Int64N(1<<(1+r.IntN(52))), Burst: r.Int64N(1 << (1 + r.IntN(52))),
			Window: algorithms.MinWindow + time.Duration(r.Int64N(1<<(1+r.IntN(54)))),
		}
		now := after(time.Duration(r.Int64N(1 << 50)))
		s := algorithms.State{
			Count: r.Int64N(1 << (1 + r.IntN(59))), Part: r.Int64N(1<<(1+r.IntN(54))) % int64(l.Window),
			At: now.Steady - r.Int64N(1<<(1+r.IntN(50))) + r.Int64N(100),
		}
		if r.IntN(4) > 0 {
			s.Count %= l.Burst + 1
		}
		op := Op{Limit: l, Cost: 1 + r.Int64N(1<<(1+r.IntN(30))),
			Decision: algorithms.Decision{RetryAfter: 1, Delay: 2}, NoRoom: true}
		slot := r.IntN(groupSize)
		var g group
		g.entries[slot].state = s
		g.expiresAt[slot] = uint32(now.Steady/1e9) + uint32(r.IntN(3))
		before, opBefore := g, op
		want, allowed := l.Take(s, now, op.Cost)
		taken := g.tryTakePlain(slot, now, &op)
		if !taken {
			if g != before || op != opBefore {
				t.Fatalf("seed %d, %+v, %+v, cost %d: not taken, but changed", seed, l, s, op.Cost)
			}
			if allowed {
				slow++
			} else {
				refused++
			}
			continue
		}
		quick++
		d := l.Describe(want, now, op.Cost, allowed)
		before.set(slot, l.Kind, want, fullnessAfterCheck(l, &d), expiryAfter(now, l, d.ResetAfter))
		if !allowed || op.state != want || op.Decision != d || op.NoRoom || g != before {
			t.Fatalf("seed %d, %+v, %+v, cost %d: have %+v, %+v, want %t, %+v, %+v", seed, l, s,
				op.Cost, op.state, op.Decision, allowed, want, d)
		}
	}
	if quick < 50_000 || slow < 1_000 || refused < 50_000 {
		t.Errorf("seed %d: %d taken, %d left to Take, %d refused", seed, quick, slow, refused)
	}
}
