package counters

import (
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/ring"
)

// every is each kind of limit, of 10 per minute.
func every() map[string]*algorithms.Limit {
	list := map[string]*algorithms.Limit{}
	for kind := range algorithms.Kind(7) {
		name := kind.String()
		switch kind {
		case algorithms.FirstWindow:
			name = "first-window"
		case algorithms.CellBucket:
			name = "cell-bucket"
		}
		list[name] = &algorithms.Limit{Kind: kind, Amount: 10, Burst: 10, Window: time.Minute}
	}
	return list
}

// startOfMinute is a moment at which a window of a minute begins.
func startOfMinute() algorithms.Instant {
	return algorithms.At(time.Unix(0, epoch.Wall).Truncate(time.Minute).Add(time.Minute))
}

// shifted returns now, later by d.
func shifted(now algorithms.Instant, d time.Duration) algorithms.Instant {
	return algorithms.Instant{Steady: now.Steady + int64(d), Wall: now.Wall + int64(d)}
}

// A caller that read the clock before a window's end, and comes to the counter
// after it, frees nothing and fills nothing of the window before.
func TestLateReadings(t *testing.T) {
	for name, l := range every() {
		t.Run(name, func(t *testing.T) {
			table := newTable(t, 1000)
			begin := startOfMinute()
			late := shifted(begin, -1100*time.Millisecond)

			admitted := 0
			for i := range 100 {
				now := shifted(begin, 100*time.Millisecond+time.Duration(i))
				if take(table, now, key(1), l, 1).Allowed {
					admitted++
				}
				if i%11 != 10 {
					continue
				}
				if take(table, late, key(1), l, 1).Allowed {
					admitted++
				}
			}
			expect.Equal(t, admitted, 10, "admitted in one window")
		})
	}
}

// A late reading is late for every op of a check, also where no counter tells:
// a check of two subjects takes place when the later of their shards says.
func TestLateReadingOfTwoSubjects(t *testing.T) {
	table := newTable(t, 1_000_000)
	l := perMinute(algorithms.FixedWindow, 10)
	begin := startOfMinute()
	other := Key{Subject: 1 << 63, Counter: 1}
	take(table, begin, key(1), l, 1)

	ops := []Op{{Key: key(1), Limit: l, Cost: 1}, {Key: other, Limit: l, Cost: 1}}
	if verdict := table.Take(shifted(begin, -time.Second), ops); verdict != Admitted {
		t.Fatalf("the check was %v", verdict)
	}
	for i := range ops {
		expect.Equal(t, ops[i].At, begin, "op %d was decided as", i)
	}
	if d := take(table, begin, other, l, 10); d.Allowed {
		t.Errorf("what the late check took was not counted in this window: %+v", d)
	}
}

// What was given back late was taken in the window that it is given back to.
func TestLateReadingOfWhatIsGivenBack(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
		table := newTable(t, 1000)
		l := perMinute(kind, 10)
		begin := startOfMinute()
		late := shifted(begin, -time.Second)
		take(table, late, key(1), l, 4)
		take(table, begin, key(1), l, 5)

		ops := []Op{{Key: key(1), Limit: l, Cost: 1}}
		table.Take(late, ops)
		expect.NoError(t, table.give(late, key(1), l, ops[0].TakeRecord(), 1))
		state := table.shardOf(key(1)).find(key(1)).state()
		want := algorithms.State{Count: 5, At: begin.Wall / int64(time.Minute)}
		if kind == algorithms.SlidingWindow {
			want.Part = 4
		}
		expect.Equal(t, state, want, "%v: the counter holds", kind)
	}
}

// A step of the wall clock while callers wait for the lock: those with readings
// from before it don't turn the window back.
func TestStepWhileWaiting(t *testing.T) {
	l := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 100, Window: time.Hour}
	table := newTable(t, 1000)
	before := startOfMinute()
	stepped := algorithms.Instant{Steady: before.Steady + 1, Wall: before.Wall + int64(2*time.Hour)}

	var mu sync.Mutex
	admitted := map[int64]int{} // by window
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for j := range 1000 {
				now := before
				if j > 100*i {
					now = stepped
				}
				ops := []Op{{Key: key(1), Limit: l, Cost: 1}}
				if table.Take(now, ops) == Admitted {
					mu.Lock()
					admitted[ops[0].TakeRecord().Window]++
					mu.Unlock()
				}
			}
		})
	}
	callers.Wait()

	for window, n := range admitted {
		if n > 100 {
			t.Errorf("%d were admitted in window %d, want at most 100", n, window)
		}
	}
}

// A partition whose counters come from a node with a clock that is ahead goes
// on counting its windows by that clock, and comes back to this node's own at a
// 64th of the time that passes. Other partitions never leave it.
func TestFollow(t *testing.T) {
	const ahead = 10 * time.Minute
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
		table := newTable(t, 1000)
		l := perMinute(kind, 10)
		now := startOfMinute()
		there := now.Wall + int64(ahead)
		p := key(1).Partition()
		table.FollowClock(now, p, there)
		table.Put(now, Record{
			Key: key(1), Kind: kind, Fullness: 255, ExpiresAt: now.Steady/1e9 + 120,
			State: algorithms.State{Count: 10, At: there / int64(time.Minute)},
		})

		d := take(table, now, key(1), l, 1)
		if d.Allowed || d.RetryAfter > 2*time.Minute {
			t.Errorf("%v: the full counter that came answers %+v", kind, d)
		}
		now = shifted(now, d.RetryAfter*64/63+1)
		if d := take(table, now, key(1), l, 1); !d.Allowed {
			t.Errorf("%v: and when its window is over %+v", kind, d)
		}

		other := Key{Subject: uint64(ring.Partitions-1) << (64 - ring.PartitionBits), Counter: 9}
		if got := table.WallIn(now, other.Partition()); got != now.Wall {
			t.Errorf("%v: another partition is %v ahead", kind, time.Duration(got-now.Wall))
		}

		half := shifted(now, 32*ahead)
		left := time.Duration(table.MaxClockLead(half))
		if left < ahead/2-ahead/10 || left > ahead/2+ahead/10 {
			t.Errorf("%v: after 32 times as long it is %v ahead, want half of %v", kind, left, ahead)
		}
		if left := table.MaxClockLead(shifted(now, 65*ahead)); left != 0 {
			t.Errorf("%v: after 65 times as long it is still %v ahead", kind, time.Duration(left))
		}
	}
}

// A clock that is behind is not followed, and a partition that is dropped follows none.
func TestFollowNeverGoesBack(t *testing.T) {
	table := newTable(t, 1000)
	now := startOfMinute()
	table.FollowClock(now, 7, now.Wall-int64(time.Hour))
	if got := table.WallIn(now, 7); got != now.Wall {
		t.Errorf("the clock went back by %v", time.Duration(now.Wall-got))
	}

	table.FollowClock(now, 7, now.Wall+int64(time.Hour))
	table.FollowClock(now, 7, now.Wall+int64(time.Minute))
	if got := table.MaxClockLead(now); got != int64(time.Hour) {
		t.Errorf("it is %v ahead, want an hour", time.Duration(got))
	}

	table.Drop(7)
	if got := table.MaxClockLead(now); got != 0 {
		t.Errorf("after the drop it is %v ahead", time.Duration(got))
	}
}

// Of two copies by clocks that differ, neither is known to be newer: the later
// window stays, with the higher count.
func TestMergeByOtherClocks(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
		for _, sameClock := range []bool{true, false} {
			table := newTable(t, 1000)
			l := perMinute(kind, 100)
			now := startOfMinute()
			window := now.Wall / int64(time.Minute)
			take(table, now, key(1), l, 100)
			table.Merge(now, Record{
				Key: key(1), Kind: kind, ExpiresAt: now.Steady/1e9 + 600,
				State: algorithms.State{Count: 5, At: window + 5},
			}, sameClock)

			got := table.shardOf(key(1)).find(key(1)).state()
			want := algorithms.State{Count: 100, At: window + 5}
			if sameClock {
				want.Count = 5
			}
			expect.Equal(t, got, want, "%v, same clock %t: merged", kind, sameClock)
		}
	}
}
