package counters

import (
	"errors"
	"flag"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

var epoch = algorithms.At(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

func after(d time.Duration) algorithms.Instant {
	return algorithms.Instant{Steady: epoch.Steady + int64(d), Wall: epoch.Wall + int64(d)}
}

func perMinute(kind algorithms.Kind, n int64) *algorithms.Limit {
	return &algorithms.Limit{Kind: kind, Amount: n, Burst: n, Window: time.Minute}
}

// key spreads n over the table as a hash would.
func key(n uint64) Key {
	r := rand.NewPCG(n, 0x9e3779b97f4a7c15)
	return Key{Subject: r.Uint64(), Counter: r.Uint64()}
}

func take(t *Table, now algorithms.Instant, k Key, l *algorithms.Limit, cost int64) algorithms.Decision {
	ops := []Op{{Key: k, Limit: l, Cost: cost}}
	t.Take(now, ops)
	return ops[0].Decision
}

func newTable(tb testing.TB, max int64) *Table {
	t := New(max)
	tb.Cleanup(t.Close)
	return t
}

func TestG1_ExactUnderContention(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.SlidingWindow, algorithms.FixedWindow, algorithms.TokenBucket,
		algorithms.LeakyBucket, algorithms.SlidingLog} {
		t.Run(kind.String(), func(t *testing.T) {
			table := newTable(t, 1000)
			l := perMinute(kind, 1000)
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 500 {
						if take(table, epoch, key(1), l, 1).Allowed {
							admitted.Add(1)
						}
					}
				})
			}
			wg.Wait()
			expect.Equal(t, admitted.Load(), 1000, "admitted")
		})
	}
}

// Checks over the same two subjects in either order neither deadlock nor admit
// more than the smaller limit.
func TestG1_AllOrNothingUnderContention(t *testing.T) {
	table := newTable(t, 100_000)
	a, b := perMinute(algorithms.FixedWindow, 500), perMinute(algorithms.TokenBucket, 300)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 200 {
				ops := []Op{{Key: key(1), Limit: a, Cost: 1}, {Key: key(2), Limit: b, Cost: 1}}
				if i%2 == 0 {
					slices.Reverse(ops)
				}
				if table.Take(epoch, ops) == Admitted {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	used, _ := table.Usage(epoch, key(1), a)
	if admitted.Load() != 300 || used != 300 {
		t.Errorf("have %d admitted and %d used, want 300", admitted.Load(), used)
	}
}

func TestAllOrNothing(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingLog} {
		table := newTable(t, 1000)
		a, b := perMinute(kind, 5), perMinute(kind, 3)
		ops := []Op{{Key: key(1), Limit: a, Cost: 1}, {Key: key(2), Limit: b, Cost: 1}}
		for i := range 3 {
			if table.Take(epoch, ops) != Admitted {
				t.Fatalf("%s: check %d refused", kind, i+1)
			}
		}
		for _, ask := range []func(algorithms.Instant, []Op) Verdict{table.Take, table.Peek} {
			if ask(epoch, ops) != Refused || !ops[0].Decision.Allowed ||
				ops[0].Decision.Remaining != 2 || ops[1].Decision.Allowed {
				t.Errorf("%s: the fourth: have %+v", kind, ops)
			}
		}
		if used, _ := table.Usage(epoch, key(1), a); used != 3 {
			t.Errorf("%s: have %d used of A, want 3", kind, used)
		}
		ops[1].Shadow = true
		if table.Take(epoch, ops) != Admitted || ops[1].Decision.Allowed {
			t.Errorf("%s: a shadow limit refused the check or reported nothing: %+v", kind, ops)
		}
	}
}

func TestPeekTakesNothing(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.LeakyBucket, algorithms.SlidingLog} {
		table := newTable(t, 1000)
		l := perMinute(kind, 5)
		ops := []Op{{Key: key(1), Limit: l, Cost: 2}}
		for range 3 {
			if table.Peek(epoch, ops) != Admitted || ops[0].Decision.Remaining != 3 {
				t.Errorf("%s: have %+v", kind, ops[0].Decision)
			}
		}
		expect.Equal(t, table.Stats().Counters, 0, "%s: peeking left counters", kind)
	}
}

// The table behaves like a plain map over random histories, including growth, expiry and sweeping.
func TestAgainstMap(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	table := newTable(t, 1_000_000)
	want := map[Key]algorithms.State{}
	l := perMinute(algorithms.TokenBucket, 10)
	now := epoch
	for i := range 300_000 {
		k := key(rng.Uint64N(20_000))
		switch op := rng.IntN(100); {
		case op == 0:
			table.makeFresh(now, k, l)
			delete(want, k)
		case op == 1:
			table.penalize(now, k, l, 5)
			want[k] = l.Force(want[k], algorithms.TakeRecord{Steady: now.Steady}, now, 5)
		case op == 2:
			table.reward(now, k, l, 3)
			want[k] = l.Reward(want[k], now, 3)
		case op == 3:
			taken := algorithms.TakeRecord{Steady: now.Steady - rng.Int64N(int64(time.Minute))}
			table.give(now, k, l, taken, 2)
			taken.MaxRate = l.Amount
			want[k] = l.Give(want[k], taken, now, 2)
		case i%1000 == 4:
			now.Steady += rng.Int64N(int64(20 * time.Second))
			table.Sweep(now, rng.Float64())
		default:
			cost := rng.Int64N(4)
			next, ok := l.Take(want[k], now, cost)
			want[k] = next
			if have := take(table, now, k, l, cost); have != l.Describe(next, now, cost, ok) {
				t.Fatalf("seed %d, step %d: have %+v, want %+v", seed, i, have, l.Describe(next, now, cost, ok))
			}
		}
	}
	for k, s := range want {
		used, _ := table.Usage(now, k, l)
		s = l.Advance(s, now)
		if used != l.Used(s, now) {
			t.Fatalf("seed %d: have %d used, want %d", seed, used, l.Used(s, now))
		}
	}
}

func TestSweepReleasesMemory(t *testing.T) {
	table := newTable(t, 1_000_000)
	fixed, log := perMinute(algorithms.FixedWindow, 10), perMinute(algorithms.SlidingLog, 10)
	for i := range uint64(50_000) {
		take(table, epoch, key(i), fixed, 1)
	}
	for i := range uint64(1000) {
		take(table, epoch, key(1<<32+i), log, 1)
	}
	if st := table.Stats(); st.Counters != 51_000 || st.Logs != 1000 || st.LogEntries != 1000 || st.Bytes == 0 {
		t.Fatalf("have %+v", st)
	}
	table.Sweep(after(30*time.Second), 1)
	if st := table.Stats(); st.Counters != 51_000 {
		t.Errorf("swept while in use: %+v", st)
	}
	for range 10 {
		table.Sweep(after(63*time.Second), 0.1)
	}
	want := Stats{Max: 1_000_000, Expired: 51_000}
	expect.Equal(t, table.Stats(), want, "table.Stats()")
}

var floodKeys = flag.Int("flood-keys", 1_000_000, "subjects of a flood; make models has more")

// A flood of new keys evicts the counters closest to fresh, never a refusing one.
func TestFloodDoesNotEvictRefused(t *testing.T) {
	flood := uint64(*floodKeys)
	if testing.Short() {
		flood /= 10
	}
	max := int64(flood / 10)
	table := newTable(t, max)
	l := perMinute(algorithms.TokenBucket, 10)
	refused := []Key{key(1), key(2), key(3)}
	for _, k := range refused {
		take(table, epoch, k, l, 10)
		if take(table, epoch, k, l, 1).Allowed {
			t.Fatal("admitted past the limit")
		}
	}
	logKey, logLimit := key(4), perMinute(algorithms.SlidingLog, 1)
	take(table, epoch, logKey, logLimit, 1)
	take(table, epoch, logKey, logLimit, 1)
	busy := key(5) // more used than the flood's keys, never refused
	take(table, epoch, busy, l, 8)
	start := time.Now()
	for i := range flood {
		if d := take(table, epoch, key(100+i), l, 1); !d.Allowed {
			t.Fatalf("new key %d refused: %+v", i, d)
		}
	}
	t.Logf("%d new keys, %s each", flood, time.Since(start)/time.Duration(flood))
	for _, k := range refused {
		if take(table, epoch, k, l, 1).Allowed {
			t.Error("a refused subject was forgotten")
		}
	}
	if take(table, epoch, logKey, logLimit, 1).Allowed {
		t.Error("a refused log was forgotten")
	}
	if d := take(table, epoch, busy, l, 0); d.Remaining != 2 {
		t.Errorf("a busy subject was evicted before fresh ones: %+v", d)
	}
	st := table.Stats()
	if st.Counters > max || st.Counters < max*9/10 || st.Refused != 0 {
		t.Errorf("have %+v", st)
	}
}

// If only refusing counters are left, a new subject is refused until one of them is free.
func TestFullOfRefused(t *testing.T) {
	table := newTable(t, 100)
	l := perMinute(algorithms.FixedWindow, 1)
	for i := range uint64(100) {
		take(table, epoch, key(i), l, 1)
		take(table, epoch, key(i), l, 1)
	}
	ops := []Op{{Key: key(1000), Limit: l, Cost: 1}}
	if table.Take(after(time.Second), ops) == Admitted || !ops[0].NoRoom {
		t.Errorf("have %+v", ops[0])
	}
	retry := ops[0].Decision.RetryAfter
	if retry < 59*time.Second || retry > 62*time.Second {
		t.Errorf("have a retry after %s", retry)
	}
	expect.ErrorIs(t, table.penalize(after(time.Second), key(1000), l, 1), ErrNoRoom, "a penalty")
	if st := table.Stats(); st.Counters != 100 || st.Refused != 1 || st.Evicted != 0 {
		t.Errorf("have %+v", st)
	}
	for i := range uint64(100) {
		if used, _ := table.Usage(after(time.Second), key(i), l); used != 1 {
			t.Errorf("counter %d was evicted", i)
		}
	}
	// A search that fails just before must not delay that.
	table.Take(after(time.Second+retry-50*time.Millisecond), []Op{{Key: key(1001), Limit: l, Cost: 1}})
	if table.Take(after(time.Second+retry), ops) != Admitted {
		t.Error("still refused when the others are fresh")
	}
}

func TestTableTooSmallForOneCheck(t *testing.T) {
	table := newTable(t, 1)
	l := perMinute(algorithms.FixedWindow, 10)
	ops := []Op{{Key: key(1), Limit: l, Cost: 1}, {Key: key(2), Limit: l, Cost: 1}}
	if table.Take(epoch, ops) == Admitted || ops[1].Decision.RetryAfter != time.Second {
		t.Errorf("have %+v", ops)
	}
	if table.Take(epoch, ops[:1]) != Admitted {
		t.Errorf("one fits: have %+v", ops[0])
	}
}

// A bucket whose rate was lowered becomes fresh later than expected when it was stored.
func TestLoweredRateKeepsTheCounter(t *testing.T) {
	table := newTable(t, 1000)
	fast := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 1000, Burst: 1000, Window: time.Hour}
	slow := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 10, Burst: 1000, Window: time.Hour}
	take(table, epoch, key(1), fast, 1000)
	at := after(time.Hour)
	if take(table, at, key(1), slow, 1000).Allowed {
		t.Fatal("admitted at once")
	}
	table.Sweep(after(2*time.Hour), 1)
	if take(table, after(2*time.Hour), key(1), slow, 1000).Allowed {
		t.Error("a refused counter was dropped at its old time")
	}
}

// While the wall clock loses a 64th of its pace, a window lasts longer than it seemed to.
func TestSlewedClockKeepsTheCounter(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow} {
		table := newTable(t, 1000)
		l := &algorithms.Limit{Kind: kind, Amount: 10, Window: 24 * time.Hour}
		take(table, epoch, key(1), l, 10)
		at := after(24 * time.Hour)
		at.Wall -= int64(24 * time.Hour / 64)
		table.Sweep(at, 1)
		if take(table, at, key(1), l, 10).Allowed {
			t.Errorf("%s: the counter was dropped inside its window", kind)
		}
	}
}

// A late clock reading still finds its counter.
func TestLateReadingFindsTheCounter(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingWindow,
		algorithms.TokenBucket, algorithms.SlidingLog} {
		table := newTable(t, 1000)
		l := perMinute(kind, 10)
		d := take(table, epoch, key(1), l, 10)
		table.Sweep(after(d.ResetAfter), 1)
		if take(table, after(d.ResetAfter-20*time.Millisecond), key(1), l, 10).Allowed {
			t.Errorf("%s: the limit could be used twice", kind)
		}
	}
}

// A penalty does not expose a refused subject to eviction.
func TestPenaltyKeepsTheCounter(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.TokenBucket, algorithms.SlidingLog} {
		table, l := newTable(t, 100), perMinute(kind, 10)
		take(table, epoch, key(1), l, 10)
		take(table, epoch, key(1), l, 1)
		table.penalize(epoch, key(1), l, 100)
		for i := range uint64(99) {
			take(table, epoch, key(10+i), l, 10)
			take(table, epoch, key(10+i), l, 1)
		}
		take(table, epoch, key(5000), l, 1)
		if used, _ := table.Usage(epoch, key(1), l); used != 110 {
			t.Errorf("%s: have %d used, want 110", kind, used)
		}
	}
}

// A cost that can never be allowed does not protect its counter from eviction.
func TestImpossibleCostProtectsNothing(t *testing.T) {
	table, l := newTable(t, 100), perMinute(algorithms.FixedWindow, 1_000_000)
	for i := range uint64(100) {
		take(table, epoch, key(i), l, 1)
		take(table, epoch, key(i), l, algorithms.MaxAmount)
	}
	if d := take(table, epoch, key(1000), l, 1); !d.Allowed {
		t.Errorf("have %+v", d)
	}
}

// A mostly used monthly quota outlives buckets that are full again in a second,
// and a flood of single hits on the monthly limit does not evict busy minutes.
func TestEvictionOrder(t *testing.T) {
	month := &algorithms.Limit{Kind: algorithms.FixedWindow, Amount: 10_000, Window: 30 * 24 * time.Hour}
	second := &algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 10, Burst: 10, Window: time.Second}
	table := newTable(t, 100)
	take(table, epoch, key(1), month, 9000)
	for i := range uint64(3000) {
		take(table, epoch, key(10+i), second, 10)
	}
	if used, _ := table.Usage(epoch, key(1), month); used != 9000 {
		t.Errorf("have %d of the month used, want 9000", used)
	}
	minute := perMinute(algorithms.SlidingWindow, 10)
	take(table, epoch, key(2), minute, 9)
	for i := range uint64(3000) {
		take(table, epoch, key(10_000+i), month, 1)
	}
	if used, _ := table.Usage(epoch, key(2), minute); used != 9 {
		t.Errorf("have %d of the minute used, want 9", used)
	}
}

// A reset is yielded even if its counter was not in the table, or would be evicted first.
func TestResetIsHandedOut(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.FixedWindow, algorithms.SlidingLog} {
		table, l := newTable(t, 100), perMinute(kind, 10)
		take(table, epoch, key(1), l, 10)
		table.DrainChanges(func([]Record) error { return nil })
		table.makeFresh(epoch, key(1), l)
		table.makeFresh(epoch, key(2), l)
		for i := range uint64(300) {
			take(table, epoch, key(10+i), l, 1)
		}
		seen := map[Key]Record{}
		table.DrainChanges(func(b []Record) error {
			for _, r := range onlyCounters(b) {
				seen[r.Key] = r
			}
			return nil
		})
		for _, k := range []Key{key(1), key(2)} {
			if r, ok := seen[k]; !ok || !r.State.Fresh() || len(r.Log) != 0 {
				t.Errorf("%s: have %+v, %v", kind, r, ok)
			}
		}
		if table.Sweep(epoch, 1); table.Stats().Counters != 98 {
			t.Errorf("%s: have %d counters after the sweep", kind, table.Stats().Counters)
		}
	}
}

func TestChangedAndRestore(t *testing.T) {
	table := newTable(t, 1_000_000)
	limits := map[algorithms.Kind]*algorithms.Limit{}
	for _, kind := range []algorithms.Kind{algorithms.SlidingWindow, algorithms.FixedWindow,
		algorithms.TokenBucket, algorithms.SlidingLog} {
		limits[kind] = perMinute(kind, 100)
	}
	kindOf := func(i uint64) algorithms.Kind {
		return []algorithms.Kind{algorithms.SlidingWindow, algorithms.FixedWindow,
			algorithms.TokenBucket, algorithms.SlidingLog}[i%4]
	}
	const n = 60_000
	for i := range uint64(n) {
		take(table, epoch, key(i), limits[kindOf(i)], int64(i%90+1))
	}
	broken := errors.New("disk full")
	calls := 0
	err := table.DrainChanges(func([]Record) error {
		calls++
		if calls == 2 {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) {
		t.Fatalf("have %v", err)
	}
	seen := map[Key]Record{}
	collect := func(batch []Record) error {
		for _, r := range onlyCounters(batch) {
			seen[r.Key] = r
		}
		return nil
	}
	// The first batch was accepted, so it is not yielded again until it changes.
	table.MarkPartsChanged(0, math.MaxInt)
	if err := table.DrainChanges(collect); err != nil || len(seen) != n {
		t.Fatalf("have %d records, %v", len(seen), err)
	}
	clear(seen)
	if table.DrainChanges(collect); len(seen) != 0 {
		t.Errorf("%d records count as changed without a change", len(seen))
	}
	table.makeFresh(epoch, key(2), limits[kindOf(2)])
	table.makeFresh(epoch, key(3), limits[kindOf(3)])
	table.Sweep(epoch, 1)
	if table.DrainChanges(collect); len(seen) != 2 || !seen[key(2)].State.Fresh() ||
		seen[key(2)].Fullness != 0 || len(seen[key(3)].Log) != 0 {
		t.Errorf("have %+v, want two resets", seen)
	}
	if table.Sweep(epoch, 1); table.Stats().Counters != n-2 {
		t.Errorf("have %d counters, want the reset ones gone", table.Stats().Counters)
	}

	table.MarkPartsChanged(0, math.MaxInt)
	table.DrainChanges(collect)
	again := newTable(t, 1_000_000)
	records := slices.Collect(maps.Values(seen))
	if restored, noRoom := again.Restore(epoch, append(records, records[:9]...)); restored != len(seen) || noRoom != 0 {
		t.Fatalf("have %d, %d", restored, noRoom)
	}
	if restored, noRoom := again.Restore(epoch, records); restored != 0 || noRoom != 0 {
		t.Fatalf("once more: have %d, %d", restored, noRoom)
	}
	for i := range uint64(n) {
		have, _ := again.Usage(epoch, key(i), limits[kindOf(i)])
		want, _ := table.Usage(epoch, key(i), limits[kindOf(i)])
		if have != want {
			t.Fatalf("counter %d: have %d used, want %d", i, have, want)
		}
	}
	clear(seen)
	if again.DrainChanges(collect); len(seen) != 0 {
		t.Errorf("%d restored counters count as changed", len(seen))
	}
}

// A counter that was lowered and would be fresh at once stays until it has
// replaced its older copy on disk.
func TestLoweredCounterIsHandedOut(t *testing.T) {
	table := newTable(t, 1000)
	l, log := perMinute(algorithms.TokenBucket, 60), perMinute(algorithms.SlidingLog, 60)
	saved := func() (out []Record) {
		table.DrainChanges(func(b []Record) error { out = append(out, onlyCounters(b)...); return nil })
		return out
	}
	take(table, epoch, key(1), l, 60)
	take(table, epoch, key(2), log, 60)
	first := saved()
	table.reward(epoch, key(1), l, 60)
	take(table, epoch, key(1), l, 1) // fresh after a second
	table.reward(epoch, key(2), log, 60)
	table.Sweep(after(2*time.Second), 1)
	second := saved()
	if len(second) != 2 || second[0].ExpiresAt != first[0].ExpiresAt || second[1].ExpiresAt != first[1].ExpiresAt {
		t.Errorf("have %+v after %+v", second, first)
	}
}

func TestFailedBatchStaysChanged(t *testing.T) {
	table := newTable(t, 1_000_000)
	l := perMinute(algorithms.FixedWindow, 10)
	log := perMinute(algorithms.SlidingLog, 10)
	take(table, epoch, key(1), l, 1)
	take(table, epoch, key(2), log, 1)
	for range 3 {
		if err := table.DrainChanges(func([]Record) error { return os.ErrInvalid }); err == nil {
			t.Fatal("the failure was lost")
		}
	}
	n := 0
	table.DrainChanges(func(b []Record) error { n += len(onlyCounters(b)); return nil })
	expect.Equal(t, n, 2, "records after failures")
}

// Logs far beyond their fair share don't make small ones forget late.
func TestSmallLogsStayExact(t *testing.T) {
	table := newTable(t, 100_000)
	big := &algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 1 << 40, Window: 366 * 24 * time.Hour}
	for k := range uint64(5) {
		for i := range algorithms.MaxLogEntries {
			take(table, after(time.Duration(i)*time.Microsecond), key(k), big, 1)
		}
	}
	small := &algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 5, Window: 15 * time.Minute}
	for i := range 20 {
		if d := take(table, after(time.Duration(i+1)*10*time.Minute), key(99), small, 1); !d.Allowed {
			t.Fatalf("hit %d, with at most two in the window: have %+v", i, d)
		}
	}
	for range 1000 {
		take(table, after(4*time.Hour), key(0), big, 1)
	}
	if st := table.Stats(); st.LogEntries > minLogEntries {
		t.Errorf("have %d entries, bound %d", st.LogEntries, minLogEntries)
	}
}

// The logs stay within their common bound by becoming coarser, and never admit more because of it.
func TestLogsAreBounded(t *testing.T) {
	table := newTable(t, 1000)
	l := &algorithms.Limit{Kind: algorithms.SlidingLog, Amount: 1_000_000, Window: time.Hour}
	for i := range 300_000 {
		for k := range uint64(3) {
			take(table, after(time.Duration(i)*time.Microsecond), key(k), l, 1)
		}
	}
	st := table.Stats()
	if st.LogEntries > minLogEntries {
		t.Errorf("have %d entries, bound %d", st.LogEntries, minLogEntries)
	}
	for k := range uint64(3) {
		if used, _ := table.Usage(after(time.Second), key(k), l); used != 300_000 {
			t.Errorf("have %d used, want 300000", used)
		}
	}
}

func TestConcurrentEverything(t *testing.T) {
	table := newTable(t, 3000)
	limits := []*algorithms.Limit{perMinute(algorithms.FixedWindow, 3),
		perMinute(algorithms.SlidingLog, 3), perMinute(algorithms.TokenBucket, 3)}
	var wg sync.WaitGroup
	for w := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(w, 7))
			for i := range 20_000 {
				now := after(time.Duration(i) * time.Millisecond)
				ops := []Op{}
				for j := range 1 + rng.Uint64N(3) {
					ops = append(ops, Op{Key: key(rng.Uint64N(8000)*4 + j), Limit: limits[j], Cost: rng.Int64N(3)})
				}
				switch rng.IntN(20) {
				case 0:
					table.Sweep(now, 0.2)
				case 1:
					table.makeFresh(now, ops[0].Key, ops[0].Limit)
				case 2:
					table.Peek(now, ops)
				case 3:
					table.Stats()
				default:
					table.Take(now, ops)
				}
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			table.DrainChanges(func([]Record) error { return nil })
		}
	})
	wg.Wait()
	if st := table.Stats(); st.Counters > 3000 {
		t.Errorf("have %+v", st)
	}
	table.Sweep(after(time.Hour), 1)
	if st := table.Stats(); st.Counters != 0 || st.LogEntries != 0 || st.Bytes != 0 {
		t.Errorf("left behind: %+v", st)
	}
}

// resident returns the process's resident memory in bytes; zero if it is unknown.
func resident() int64 {
	runtime.GC()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

func TestBytesPerCounter(t *testing.T) {
	table := newTable(t, 10_000_000)
	l := perMinute(algorithms.TokenBucket, 10)
	before := resident()
	const n = 1_000_000
	for i := range uint64(n) {
		take(table, epoch, key(i), l, 1)
	}
	grown := resident() - before
	t.Logf("%.1f bytes resident, %.1f bytes mapped a counter", float64(grown)/n, float64(table.Stats().Bytes)/n)
	if per := table.Stats().Bytes / n; per > 64 {
		t.Errorf("have %d bytes a counter, want at most 64", per)
	}
	if before > 0 && grown/n > 100 {
		t.Errorf("have %d bytes resident a counter, want at most 100", grown/n)
	}
}

func BenchmarkTake(b *testing.B) {
	for _, keys := range []uint64{1000, 100_000, 1_000_000} {
		b.Run(strconv.FormatUint(keys, 10), func(b *testing.B) {
			table := newTable(b, 10_000_000)
			l := perMinute(algorithms.TokenBucket, 1<<40)
			all := make([]Key, keys)
			for i := range all {
				all[i] = key(uint64(i))
				take(table, epoch, all[i], l, 1)
			}
			rng := rand.New(rand.NewPCG(1, 1))
			ops := []Op{{Limit: l, Cost: 1}}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				ops[0].Key = all[rng.Uint64N(keys)]
				table.Take(epoch, ops)
			}
		})
	}
}
