package algorithms

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// nameOf returns a unique name for k.
func nameOf(k Kind) string {
	switch k {
	case FirstWindow:
		return k.String() + ", from its first hit"
	case CellBucket:
		return k.String() + " that keeps its limit"
	}
	return k.String()
}

// hotLimits returns limits of all kinds, by name.
func hotLimits(tb testing.TB) map[string]*Limit {
	limits := map[string]*Limit{
		"calendar": {Kind: FixedWindow, Amount: 1000, Window: 24 * time.Hour,
			Calendar: NewCalendar(Day, zone(tb, "Europe/Berlin"))},
		"queue": {Kind: TokenBucket, Amount: 1000, Burst: 1000, Window: time.Minute, MaxDelay: time.Second},
	}
	for k := range kinds {
		limits[nameOf(Kind(k))] = &Limit{Kind: Kind(k), Amount: 1000, Burst: 1000, Window: time.Minute}
	}
	return limits
}

// allocatesNothing fails if f allocates. f is run once before. Rare allocations
// (less than one per run) are tolerated.
func allocatesNothing(t *testing.T, what string, f func()) {
	t.Helper()
	expect.Equal(t, testing.AllocsPerRun(200, f), 0, "%s: allocations a run", what)
}

func TestStatesAllocateNothing(t *testing.T) {
	for name, l := range hotLimits(t) {
		if l.Kind == SlidingLog {
			continue
		}
		for what, used := range map[string]int64{"allowed": 0, "refused": 1000} {
			now := At(time.Unix(1_800_000_000, 0))
			s := l.Force(State{}, l.TakeRecord(l.Advance(State{}, now), now), now, used)
			allocatesNothing(t, name+", "+what, func() {
				now.Steady, now.Wall = now.Steady+1, now.Wall+1
				next, ok := l.Take(s, now, 1)
				from := l.TakeRecord(next, now)
				d := l.Describe(next, now, 1, ok)
				if peeked := l.Peek(s, now, 1); peeked.Allowed != ok || d.Allowed != ok {
					t.Errorf("have %v and %v, want %v", peeked, d, ok)
				}
				next = l.Give(next, from, now, 1)
				next = l.ForceCapped(l.Force(next, from, now, 1), from, now, 1)
				next = l.Reward(next, now, 2)
				if l.Used(next, now) > used+1 {
					t.Errorf("have %+v of %d", next, used)
				}
			})
		}
	}
}

// A log keeps its hits, so it allocates once in many hits. A refusal allocates nothing.
func TestLogsAllocateNothing(t *testing.T) {
	l := &Limit{Kind: SlidingLog, Amount: 1000, Window: time.Minute}
	now := At(time.Unix(1_800_000_000, 0))
	var g Log
	pass := func() { now.Steady, now.Wall = now.Steady+int64(time.Second)/50, now.Wall+int64(time.Second)/50 }
	for range 5000 { // 3,000 per window
		pass()
		g.Take(l, now, 1)
	}
	allocatesNothing(t, "allowed, or refused", func() {
		pass()
		g.Describe(l, now, 1, g.Take(l, now, 1))
	})
	for g.Take(l, now, 1) {
	}
	allocatesNothing(t, "refused", func() {
		if d := g.Describe(l, now, 1, g.Take(l, now, 1)); d.Allowed || g.Peek(l, now, 1).Allowed {
			t.Errorf("have %+v", d)
		}
	})
	allocatesNothing(t, "given back", func() {
		g.Give(l, g.TakeRecord(), now, 1)
		g.Force(l, g.TakeRecord(), now, 1)
	})
}

// BenchmarkTake measures a check: a Take and its Describe. Time passes as for 50 checks a second.
func BenchmarkTake(b *testing.B) {
	for name, l := range hotLimits(b) {
		b.Run(name, func(b *testing.B) {
			now := At(time.Unix(1_800_000_000, 0))
			var s State
			var g Log
			b.ReportAllocs()
			for b.Loop() {
				now.Steady, now.Wall = now.Steady+int64(time.Second)/50, now.Wall+int64(time.Second)/50
				if l.Kind == SlidingLog {
					g.Describe(l, now, 1, g.Take(l, now, 1))
					continue
				}
				var ok bool
				s, ok = l.Take(s, now, 1)
				l.Describe(s, now, 1, ok)
			}
		})
	}
}
