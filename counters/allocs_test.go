package counters

import (
	"fmt"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

var allKinds = []algorithms.Kind{
	algorithms.SlidingWindow, algorithms.FixedWindow, algorithms.TokenBucket,
	algorithms.LeakyBucket, algorithms.SlidingLog,
	algorithms.FirstWindow, algorithms.CellBucket,
}

// mayQueue reports whether limits of kind may have a MaxDelay and keep their queue in a State.
func mayQueue(kind algorithms.Kind) bool {
	return kind != algorithms.SlidingLog && kind != algorithms.FirstWindow && kind != algorithms.CellBucket
}

// hotChecks returns checks of existing counters: one of each kind, one of
// several limits, one with a block.
func hotChecks() map[string][]Op {
	checks := map[string][]Op{}
	var all []Op
	for i, kind := range allKinds {
		op := Op{Key: key(uint64(i)), Limit: perMinute(kind, 1000), Cost: 1}
		name := kind.String()
		switch kind {
		case algorithms.FirstWindow:
			name = "first window"
		case algorithms.CellBucket:
			name = "cell bucket"
		}
		checks[name] = []Op{op}
		all = append(all, op)
		if mayQueue(kind) {
			checks[kind.String()+", after a delay"] = []Op{{Key: key(uint64(100 + i)), Cost: 1,
				Limit: &algorithms.Limit{
					Kind: kind, Amount: 1000, Burst: 1000, Window: time.Minute, MaxDelay: time.Millisecond,
				}}}
		}
	}
	checks["six limits"] = all
	checks["a shadow"] = []Op{{Key: key(200), Limit: perMinute(algorithms.TokenBucket, 10), Cost: 1, Shadow: true}}
	checks["a block"] = []Op{
		{Key: key(300), Limit: perMinute(algorithms.FixedWindow, 1000), Cost: 1},
		{Key: Key{Subject: key(300).Subject, Counter: 1}, Limit: perMinute(algorithms.TokenBucket, 1), Block: true},
	}
	return checks
}

func TestTakeAllocatesNothing(t *testing.T) {
	for name, ops := range hotChecks() {
		table := newTable(t, 100_000)
		now := epoch
		run := func() {
			// Time passes so that logs forget as much as they add: 3,000 hits a minute.
			now.Steady, now.Wall = now.Steady+int64(time.Second)/50, now.Wall+int64(time.Second)/50
			table.Take(now, ops)
		}
		table.Take(now, ops)
		expect.Equal(t, testing.AllocsPerRun(500, run), 0, "%s, allowed: allocations a Take", name)
		for i := 0; ops[0].Decision.Allowed && i < 3000; i++ {
			table.Take(now, ops)
		}
		if n := testing.AllocsPerRun(500, func() { table.Take(now, ops) }); n != 0 || ops[0].Decision.Allowed {
			t.Errorf("%s: have %v allocations a Take, want 0; refused: %v", name, n, !ops[0].Decision.Allowed)
		}
		if n := testing.AllocsPerRun(500,
			func() { table.Peek(now, ops); table.TakeUngated(now, ops); table.PeekUngated(now, ops) }); n != 0 {
			t.Errorf("%s: have %v allocations a Peek, TakeUngated and PeekUngated, want 0", name, n)
		}
	}
}

func TestChangesAllocateNothing(t *testing.T) {
	for _, kind := range allKinds {
		table, l, k := newTable(t, 100_000), perMinute(kind, 1000), key(1)
		ops := []Op{{Key: k, Limit: l, Cost: 1}}
		table.Take(epoch, ops)
		if n := testing.AllocsPerRun(500, func() {
			table.Take(epoch, ops)
			taken := ops[0].TakeRecord()
			if table.give(epoch, k, l, taken, 1) != nil ||
				table.force(epoch, k, l, taken, 1) != nil ||
				table.ForceCapped(epoch, k, l, taken, 1) != nil {
				t.Error("the change was lost")
			}
		}); n != 0 {
			t.Errorf("%s: have %v allocations for a Give, a force and a ForceCapped, want 0", kind, n)
		}
	}
}

// BenchmarkTakeOf measures a check of each kind, and of several limits.
func BenchmarkTakeOf(b *testing.B) {
	for name, ops := range hotChecks() {
		b.Run(name, func(b *testing.B) {
			table := newTable(b, 100_000)
			now := epoch
			b.ReportAllocs()
			for b.Loop() {
				now.Steady, now.Wall = now.Steady+int64(time.Second)/50, now.Wall+int64(time.Second)/50
				table.Take(now, ops)
			}
		})
	}
}

// BenchmarkTakeTogether measures several goroutines that share one counter, and
// several with one counter each.
func BenchmarkTakeTogether(b *testing.B) {
	for _, alike := range []bool{true, false} {
		b.Run(fmt.Sprint("same key=", alike), func(b *testing.B) {
			table, next := newTable(b, 100_000), make(chan uint64, 1)
			next <- 0
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				n := <-next
				next <- n + 1
				if alike {
					n = 0
				}
				ops := []Op{{Key: key(n), Limit: perMinute(algorithms.TokenBucket, 1<<40), Cost: 1}}
				for pb.Next() {
					table.Take(epoch, ops)
				}
			})
		})
	}
}
