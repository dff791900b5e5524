package algorithms

import (
	"math/rand/v2"
	"testing"
	"time"
)

// minAdmissionTime returns the first time at which a cost fits, found by trying every time.
func minAdmissionTime(g *Log, l *Limit, cost int64) int64 {
	for at := g.advancedTo; ; at++ {
		used := int64(0)
		for _, e := range g.entries[g.head:] {
			if e.At > at-int64(l.Window) {
				used += e.N
			}
		}
		if used <= l.Amount-cost {
			return at
		}
	}
}

// From either end, a log finds when a cost fits, even in debt and with a queue of future hits.
func TestAdmissionTime(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 8))
	for range 3000 {
		l := &Limit{Kind: SlidingLog, Amount: 1 + random.Int64N(30), Window: 50}
		g := &Log{advancedTo: 1000}
		for range random.IntN(12) {
			g.add(960+random.Int64N(60), 1+random.Int64N(6))
		}
		cost := 1 + random.Int64N(l.Amount)
		if g.total <= l.Amount-cost {
			continue
		}
		if have, want := g.admissionTime(l, cost), minAdmissionTime(g, l, cost); have != want {
			t.Fatalf("%v of %d, cost %d: have %d, want %d", g.entries, l.Amount, cost, have, want)
		}
	}
}

// A refusal visits few entries of a log, however many it has: those that must
// leave, or those that may stay.
func BenchmarkLogRefuses(b *testing.B) {
	const n = MaxLogEntries
	for name, bb := range map[string]struct{ entries, cost int64 }{
		"100": {100, 1}, "65536": {n, 1}, "65536, half of it": {n, n / 2}, "65536, all of it": {n, n},
	} {
		b.Run(name, func(b *testing.B) {
			l := &Limit{Kind: SlidingLog, Amount: bb.entries, Window: time.Hour}
			now := At(time.Unix(1_800_000_000, 0))
			var g Log
			for range bb.entries {
				now.Steady, now.Wall = now.Steady+1000, now.Wall+1000
				g.Take(l, now, 1)
			}
			b.ReportAllocs()
			for b.Loop() {
				if d := g.Peek(l, now, bb.cost); d.Allowed {
					b.Fatal(d)
				}
			}
		})
	}
}
