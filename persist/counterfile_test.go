package persist

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

func TestCountersComeBack(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := newTable()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	for _, r := range sample(clk.Now(), 25_000) {
		src.set(r)
	}
	mustCheckpoint(t, c)
	mustClose(t, c)

	// The next process has another steady clock.
	later := clk.Now()
	later.Steady -= int64(3*time.Second) + 5
	again := newTable()
	c, stats := openLoaded(t, testConfig(dir, again, func() algorithms.Instant { return later }))
	defer mustClose(t, c)
	if stats.Restored != 25_000 || stats.DamagedFrames+stats.Older+stats.Expired+stats.NoRoom != 0 {
		t.Fatalf("have %+v", stats)
	}
	shift := later.Steady - clk.Now().Steady
	for k, want := range src.all {
		have := again.all[k]
		if want.Kind.IsBucket() {
			want.State.At += shift
		}
		for i := range want.Log {
			want.Log[i].At += shift
		}
		// The expiry is rounded up on writing and on reading.
		if d := have.ExpiresAt - want.ExpiresAt - shift/int64(time.Second); d < -1 || d > 2 {
			t.Fatalf("expiry moved by %d s", d)
		}
		have.ExpiresAt = want.ExpiresAt
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("have %+v\nwant %+v", have, want)
		}
	}
}

// After a random history of changes, resets, time and restarts, the last state
// of each unexpired counter is restored, and no older record comes back.
func TestNewestWins(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, clk := t.TempDir(), newClock()
		src := newTable()
		src.batch = rapid.IntRange(1, 5).Draw(rt, "batch")
		c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
		c.minLogSize, c.minBaseStep = 300, 1
		model := map[counters.Key]counters.Record{}
		for step := range rapid.IntRange(1, 60).Draw(rt, "steps") {
			now := clk.Now()
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			default:
				r := counters.Record{
					Key: counters.Key{Subject: rapid.Uint64Range(0, 5).Draw(rt, "key")},
					Kind: rapid.SampledFrom([]algorithms.Kind{algorithms.TokenBucket,
						algorithms.FixedWindow}).Draw(rt, "kind"),
					Fullness: 9, State: algorithms.State{Count: int64(step + 1), At: now.Steady},
					ExpiresAt: now.Steady/1e9 + 1<<rapid.IntRange(0, 14).Draw(rt, "life"),
				}
				if !r.Kind.IsBucket() {
					r.State.At /= int64(time.Minute)
				}
				if rapid.IntRange(0, 5).Draw(rt, "reset") == 0 {
					r.State, r.Fullness = algorithms.State{}, 0
				}
				r.ExpiresAt = max(r.ExpiresAt, src.all[r.Key].ExpiresAt)
				src.set(r)
				model[r.Key] = r
			case 5:
				clk.add(time.Duration(1<<rapid.IntRange(0, 13).Draw(rt, "time")) * time.Second)
			case 6, 7:
				mustCheckpoint(t, c)
			case 8:
				mustClose(t, c)
				src = newTable()
				src.batch = 3
				c, _ = openLoaded(t, testConfig(dir, src, clk.Now))
				c.minLogSize, c.minBaseStep = 300, 1
				checkModel(rt, model, src, clk.Now())
			}
		}
		mustClose(t, c)
		src = newTable()
		c, _ = openLoaded(t, testConfig(dir, src, clk.Now))
		checkModel(rt, model, src, clk.Now())
		mustClose(t, c)
	})
}

func checkModel(t *rapid.T, model map[counters.Key]counters.Record, src *table, now algorithms.Instant) {
	for k, want := range model {
		have, ok := src.all[k]
		left := want.ExpiresAt - now.Steady/1e9
		switch {
		case left <= 0 && left > -2:
			// Each frame rounds the expiry up separately, so an older copy may seem to live
			// for two seconds more.
		case want.State.Fresh() && ok:
			t.Fatalf("a reset counter came back: %+v", have)
		case left <= 0 && ok && have.State.Count != want.State.Count:
			t.Fatalf("an older copy came back: have %+v, want none or %+v", have, want)
		case !want.State.Fresh() && left > 1 && (!ok || have.State.Count != want.State.Count):
			t.Fatalf("have %+v (%t), want %+v", have, ok, want)
		}
	}
}

func TestClockWasAhead(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := newTable()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	now := clk.Now()
	second := now.Steady / 1e9
	src.set(counters.Record{Key: counters.Key{Subject: 1}, Kind: algorithms.TokenBucket,
		State: algorithms.State{Count: 5, At: now.Steady}, ExpiresAt: second + 60})
	src.set(counters.Record{Key: counters.Key{Subject: 2}, Kind: algorithms.SlidingLog,
		Log:       []algorithms.Entry{{At: now.Steady - 9, N: 2}, {At: now.Steady, N: 3}},
		ExpiresAt: second + 60})
	src.set(counters.Record{Key: counters.Key{Subject: 3}, Kind: algorithms.FixedWindow,
		State: algorithms.State{Count: 5, At: 77}, ExpiresAt: second + 60})
	mustClose(t, c)

	back := now
	back.Wall -= int64(10 * 365 * 24 * time.Hour)
	back.Steady = back.Wall + 1000
	again := newTable()
	c, stats := openLoaded(t, testConfig(dir, again, func() algorithms.Instant { return back }))
	defer mustClose(t, c)
	if stats.Restored != 3 {
		t.Fatalf("have %+v", stats)
	}
	bucket, log, window := again.all[counters.Key{Subject: 1}], again.all[counters.Key{Subject: 2}], again.all[counters.Key{Subject: 3}]
	if bucket.State.At != back.Steady || bucket.State.Count != 5 {
		t.Errorf("bucket is %+v, want it at now", bucket)
	}
	if left := bucket.ExpiresAt - back.Steady/1e9; left < 58 || left > 63 {
		t.Errorf("bucket is fresh in %d s, want 60", left)
	}
	if len(log.Log) != 2 || log.Log[1] != (algorithms.Entry{At: back.Steady, N: 3}) || log.Log[0].At != back.Steady-9 {
		t.Errorf("log is %+v, want it at now", log)
	}
	if left := window.ExpiresAt - back.Steady/1e9; left < 58 || left > 63 || window.State.At != 77 {
		t.Errorf("window is %+v, fresh in %d s", window, left)
	}
}

// A queue ahead of the clock stays as far ahead, whatever the clock says after a restart.
func TestQueueIsKept(t *testing.T) {
	for _, set := range []time.Duration{0, -time.Hour, -10 * 365 * 24 * time.Hour} {
		dir, clk := t.TempDir(), newClock()
		src := newTable()
		c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
		now := clk.Now()
		entry := func(ahead time.Duration) algorithms.Entry {
			return algorithms.Entry{At: now.Steady + int64(ahead), N: 1}
		}
		log := []algorithms.Entry{entry(-time.Second), entry(0), entry(time.Second), entry(time.Minute)}
		src.set(counters.Record{Key: counters.Key{Subject: 1}, Kind: algorithms.SlidingLog,
			Log: log, ExpiresAt: now.Steady/1e9 + 120})
		mustClose(t, c)

		then := now
		then.Wall += int64(set)
		then.Steady = then.Wall + 1000
		again := newTable()
		c, _ = openLoaded(t, testConfig(dir, again, func() algorithms.Instant { return then }))
		have := again.all[counters.Key{Subject: 1}]
		if len(have.Log) != 4 {
			t.Fatalf("set by %s: have %+v", set, have)
		}
		for i, want := range []time.Duration{-time.Second, 0, time.Second, time.Minute} {
			expect.Equal(t, time.Duration(have.Log[i].At-then.Steady), want, "set by %s: entry %d ahead", set, i)
		}
		if left := have.ExpiresAt - then.Steady/1e9; left < 118 || left > 123 {
			t.Errorf("set by %s: fresh in %d s, want 120", set, left)
		}
		mustClose(t, c)
	}
}

// A step of the wall clock, lasting or momentary, must not make the file drop live counters.
func TestClockStepsForward(t *testing.T) {
	for _, forGood := range []bool{true, false} {
		dir, src := t.TempDir(), newTable()
		now := newClock().Now()
		clock := func() algorithms.Instant { return now }
		c, _ := openLoaded(t, testConfig(dir, src, clock))
		k := counters.Key{Subject: 1, Counter: 1}
		src.set(counters.Record{Key: k, Kind: algorithms.TokenBucket,
			State: algorithms.State{Count: 100, At: now.Steady}, ExpiresAt: now.Steady/1e9 + 3600})
		mustCheckpoint(t, c)
		now.Wall += int64(2 * time.Hour)
		for range 3 {
			mustCheckpoint(t, c)
		}
		if !forGood {
			now.Wall -= int64(2 * time.Hour)
		}
		mustClose(t, c)
		now.Steady = now.Wall // the next process begins at its wall clock
		again := newTable()
		c, stats := openLoaded(t, testConfig(dir, again, clock))
		if r := again.all[k]; stats.Restored != 1 || r.State.Count != 100 || r.ExpiresAt < now.Steady/1e9+3590 {
			t.Errorf("for good %v: have %+v, %+v", forGood, stats, r)
		}
		mustClose(t, c)
	}
}

// Expired counters are not loaded, and not in the next base.
func TestExpiredCountersDisappear(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := newTable()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	for _, r := range sample(clk.Now(), 2000) {
		src.set(r)
	}
	mustClose(t, c)
	clk.add(60*time.Second + 50*31*time.Second)
	again := newTable()
	c, stats := openLoaded(t, testConfig(dir, again, clk.Now))
	if stats.Restored+stats.Expired != 2000 || stats.Restored < 900 || stats.Restored > 1000 {
		t.Errorf("have %+v", stats)
	}
	c.beginBase()
	mustCheckpoint(t, c)
	mustClose(t, c)
	c, next := openLoaded(t, testConfig(dir, newTable(), clk.Now))
	defer mustClose(t, c)
	if next.Restored != stats.Restored || next.Expired != 0 {
		t.Errorf("have %+v after %+v", next, stats)
	}
}

func TestLoopAndClose(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := newTable()
	config := testConfig(dir, src, clk.Now)
	config.Interval = 10 * time.Millisecond
	c, err := OpenCounterFile(config)
	expect.NoError(t, err)
	expect.ErrorIs(t, c.Start(), ErrNotLoaded, "Start before Load")
	expect.ErrorIs(t, c.Checkpoint(t.Context()), ErrNotLoaded, "Checkpoint before Load")
	if _, err := c.Load(clk.Now()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		expect.NoError(t, c.Start())
	}
	src.set(sample(clk.Now(), 1)[0])
	process.Eventually(t, "a checkpoint", func() bool { return !c.Status().Completed.IsZero() && src.pending() == 0 })
	if s := c.Status(); s.Completed.IsZero() || s.Err != nil || s.FileSize == 0 {
		t.Errorf("status is %+v", s)
	}
	for _, r := range sample(clk.Now(), 100) {
		src.set(r)
	}
	mustClose(t, c)
	mustClose(t, c)
	if err := c.Checkpoint(t.Context()); !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
		t.Errorf("Checkpoint after Close: %v", err)
	}
	if err := c.Start(); err == nil {
		t.Error("Start after Close succeeded")
	}
	if _, err := c.Load(clk.Now()); !errors.Is(err, ErrClosed) {
		t.Errorf("Load after Close: %v", err)
	}
	again := newTable()
	c, stats := openLoaded(t, testConfig(dir, again, clk.Now))
	defer mustClose(t, c)
	expect.Equal(t, stats.Restored, 100, "a clean stop kept of 100")
}

// blockingSource is a Source that blocks, as if the disk hung.
type blockingSource struct {
	*table
	entered, leave chan struct{}
}

func (s *blockingSource) DrainChanges(yield func([]counters.Record) error) error {
	close(s.entered)
	<-s.leave
	return nil
}

func TestCloseGivesUp(t *testing.T) {
	clk := newClock()
	src := &blockingSource{newTable(), make(chan struct{}), make(chan struct{})}
	c, _ := openLoaded(t, testConfig(t.TempDir(), src, clk.Now))
	ended := make(chan error)
	go func() { ended <- c.Checkpoint(context.Background()) }()
	<-src.entered
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("have %v, want the deadline", err)
	}
	close(src.leave)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := c.file.close(); err != nil {
		t.Error(err)
	}
}

func TestCloseWithoutLoadKeepsFile(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := newTable()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	src.set(sample(clk.Now(), 1)[0])
	mustClose(t, c)
	c, err := OpenCounterFile(testConfig(dir, newTable(), clk.Now))
	expect.NoError(t, err)
	mustClose(t, c)
	c, stats := openLoaded(t, testConfig(dir, newTable(), clk.Now))
	defer mustClose(t, c)
	if stats.Restored != 1 {
		t.Errorf("have %+v", stats)
	}
}

func TestFullTable(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := newTable()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	for _, r := range sample(clk.Now(), 10) {
		src.set(r)
	}
	mustClose(t, c)
	again := newTable()
	again.full = true
	c, stats := openLoaded(t, testConfig(dir, again, clk.Now))
	defer mustClose(t, c)
	if stats.NoRoom != 10 {
		t.Errorf("have %+v", stats)
	}
}

func TestSecondProcess(t *testing.T) {
	t.Parallel()
	dir, clk := t.TempDir(), newClock()
	c, _ := openLoaded(t, testConfig(dir, newTable(), clk.Now))
	defer mustClose(t, c)
	if _, err := OpenCounterFile(testConfig(dir, newTable(), clk.Now)); !errors.Is(err, ErrInUse) {
		t.Errorf("have %v, want ErrInUse", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*corrupt*")); len(left) > 0 {
		t.Errorf("a file in use was set aside: %v", left)
	}
}

// A large file that is mostly free is rewritten when it is opened.
func TestCompact(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := newTable()
	config := testConfig(dir, src, clk.Now)
	config.CompactAbove = 1 << 20
	c, _ := openLoaded(t, config)
	for _, r := range sample(clk.Now(), 60_000) {
		src.set(r)
	}
	mustClose(t, c)
	before := size(t, dir)
	// All except the last have expired, and disappear with their base.
	clk.add(60*time.Second + 96*31*time.Second - 5*time.Second)
	config.Source = newTable()
	c, _ = openLoaded(t, config)
	c.beginBase()
	mustClose(t, c)
	again := newTable()
	config.Source = again
	c, stats := openLoaded(t, config)
	mustClose(t, c)
	if after := size(t, dir); after > before/4 {
		t.Errorf("file has %d bytes, had %d", after, before)
	}
	if want := int64(60_000 / 97); stats.Restored < want || stats.Restored > want+1 {
		t.Errorf("have %+v, want %d restored", stats, want)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files left: %v", left)
	}
}

func size(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, countersFile))
	expect.NoError(t, err)
	return info.Size()
}

func TestCounterFileConfig(t *testing.T) {
	tests := []struct {
		have func(*CounterFileConfig)
		want string
	}{
		{func(c *CounterFileConfig) { c.Dir = "" }, "Dir"},
		{func(c *CounterFileConfig) { c.Source = nil }, "Source"},
		{func(c *CounterFileConfig) { c.Now = nil }, "Now"},
		{func(c *CounterFileConfig) { c.Interval = 0 }, "Interval"},
		{func(c *CounterFileConfig) { c.Interval = 2 * time.Hour }, "Interval"},
		{func(c *CounterFileConfig) { c.Logger = nil }, "Logger"},
		{func(c *CounterFileConfig) { c.MaxSize = -1 }, "MaxSize"},
		{func(c *CounterFileConfig) { c.CompactAbove = -1 }, "CompactAbove"},
	}
	for _, tt := range tests {
		config := testConfig(t.TempDir(), newTable(), newClock().Now)
		tt.have(&config)
		if _, err := OpenCounterFile(config); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("have %v, want an error about %s", err, tt.want)
		}
	}
}

// The real table, with its counters and its steady clock.
func TestWithTable(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	real := counters.New(10_000)
	defer real.Close()
	c, _ := openLoaded(t, testConfig(dir, real, clk.Now))
	limits := []*algorithms.Limit{
		{Kind: algorithms.FixedWindow, Amount: 10, Window: time.Hour},
		{Kind: algorithms.SlidingWindow, Amount: 10, Window: time.Hour},
		{Kind: algorithms.TokenBucket, Amount: 10, Burst: 10, Window: time.Hour},
		{Kind: algorithms.LeakyBucket, Amount: 10, Burst: 10, Window: time.Hour},
		{Kind: algorithms.SlidingLog, Amount: 10, Window: time.Hour},
		{Kind: algorithms.FirstWindow, Amount: 10, Window: time.Hour},
		{Kind: algorithms.CellBucket, Amount: 10, Burst: 10, Window: time.Hour},
	}
	ops := func(cost int64) (out []counters.Op) {
		for i, l := range limits {
			out = append(out,
				counters.Op{Key: counters.Key{Subject: 1 << 60, Counter: uint64(i)}, Limit: l, Cost: cost})
		}
		return out
	}
	if real.Take(clk.Now(), ops(7)) != counters.Admitted {
		t.Fatal("a fresh table refused")
	}
	mustCheckpoint(t, c)
	mustClose(t, c)

	next := counters.New(10_000)
	defer next.Close()
	now := clk.Now()
	now.Steady += int64(42 * time.Minute)
	c, stats := openLoaded(t, testConfig(dir, next, func() algorithms.Instant { return now }))
	defer mustClose(t, c)
	if stats.Restored != int64(len(limits)) {
		t.Fatalf("have %+v", stats)
	}
	have := ops(3)
	next.Peek(now, have)
	for i, op := range have {
		if !op.Decision.Allowed || op.Decision.Remaining != 0 {
			t.Errorf("%v: have %+v, want 3 remaining to be taken", limits[i].Kind, op.Decision)
		}
	}
	if next.Take(now, ops(4)) == counters.Admitted {
		t.Error("more was admitted than the limit")
	}
	expect.Equal(t, fmt.Sprint(next.Stats().Counters), "7", "counters")
}

// Counters that were dropped with their partition don't come back from the
// file: meanwhile, others may have reset them.
func TestDroppedCountersDisappear(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := counters.New(1000)
	defer src.Close()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	records := sample(clk.Now(), 100)
	for _, r := range records {
		src.Put(clk.Now(), r)
	}
	mustCheckpoint(t, c)
	gone := records[0].Key.Partition()
	src.Drop(gone)
	mustCheckpoint(t, c)
	number := c.lastFrame
	src.Drop(gone)
	if mustCheckpoint(t, c); c.lastFrame != number {
		t.Error("a drop that removed nothing rewrites the file")
	}
	mustClose(t, c)
	next := counters.New(1000)
	defer next.Close()
	c, _ = openLoaded(t, testConfig(dir, next, clk.Now))
	defer mustClose(t, c)
	if want := src.Stats().Counters; next.Stats().Counters != want || want == 0 || want == 100 {
		t.Errorf("have %d counters, want %d", next.Stats().Counters, want)
	}
}

// A counter that was reset hides what older frames say of it, and not the notes that have its key.
func TestNotesOfAResetCounterComeBack(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := counters.New(1000)
	defer src.Close()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	now := clk.Now()
	key := counters.Key{Subject: 1 << 60, Counter: 7}
	limit := algorithms.Limit{Kind: algorithms.TokenBucket, Amount: 10, Burst: 10, Window: time.Hour}
	src.Take(now, []counters.Op{{Key: key, Limit: &limit, Cost: 5}})
	rate := notes.Note{Key: notes.Key{Subject: key.Subject, ID: key.Counter, Kind: notes.Rate},
		Rank: 20, UntilSecond: now.Steady/1e9 + 3600}
	src.Put(now, counters.Record{Note: &rate})
	mustCheckpoint(t, c)

	src.Put(now, counters.Record{Key: key, Kind: limit.Kind, ExpiresAt: now.Steady/1e9 + 3600})
	mustCheckpoint(t, c)
	mustClose(t, c)

	next := counters.New(1000)
	defer next.Close()
	c, _ = openLoaded(t, testConfig(dir, next, clk.Now))
	defer mustClose(t, c)
	found := 0
	expect.NoError(t, next.Copy(key.Partition(), func(records []counters.Record) error {
		for i := range records {
			if records[i].Note != nil && records[i].Note.Kind == notes.Rate {
				found++
			}
		}
		return nil
	}))
	if used, _ := next.Usage(now, key, &limit); found != 1 || used != 0 {
		t.Errorf("have %d notes and %d used, want 1 and 0", found, used)
	}
}

// A slot that was released stays so, although an older frame has it as held.
func TestReleasedSlotsDoNotComeBack(t *testing.T) {
	dir, clk := t.TempDir(), newClock()
	src := counters.New(1000)
	defer src.Close()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	now := clk.Now()
	part := counters.SlotPart{Key: counters.Key{Subject: 1 << 60, Counter: 7}, Units: 1, TTL: time.Hour}
	const released, kept = 1, 2
	for _, id := range []uint64{released, kept} {
		expect.NoError(t, src.RenewSlot(now, &part, id, id, time.Hour, true))
	}
	mustCheckpoint(t, c)

	held, _, err := src.ReleaseSlot(now, part.Key, released, released, false)
	expect.NoError(t, err)
	expect.Equal(t, held, true, "the slot was held before its release")
	mustCheckpoint(t, c)
	mustClose(t, c)

	next := counters.New(1000)
	defer next.Close()
	c, _ = openLoaded(t, testConfig(dir, next, clk.Now))
	defer mustClose(t, c)
	for id, want := range map[uint64]bool{released: false, kept: true} {
		_, have, err := next.FindSlot(clk.Now(), part.Key, id)
		expect.NoError(t, err)
		expect.Equal(t, have, want, "slot %d is held after the restart", id)
	}
}

// The loop's checkpoints leave most of a core to other work.
func TestCheckpointsRest(t *testing.T) {
	clk, src := newClock(), newTable()
	c, _ := openLoaded(t, testConfig(t.TempDir(), src, clk.Now))
	all := sample(clk.Now(), 20_000)
	write := func(paced bool) time.Duration {
		for _, r := range all {
			src.set(r)
		}
		begin := time.Now()
		expect.NoError(t, c.lockAndCheckpoint(t.Context(), paced))
		return time.Since(begin)
	}
	// On a busy machine, any of them may be slow.
	var fast, slow time.Duration
	for try := 0; try == 0 || slow < 3*fast; try++ {
		fast, slow = write(false), write(true)
		if try == 20 {
			t.Fatalf("a checkpoint takes %v, and %v with rests", fast, slow)
		}
	}
	mustClose(t, c)
}

// stallingSource stands still for a minute before its first checkpoint, as a
// stopped process does.
type stallingSource struct {
	*table
	once sync.Once
}

func (s *stallingSource) DrainChanges(yield func([]counters.Record) error) error {
	s.once.Do(func() { time.Sleep(time.Minute) })
	return s.table.DrainChanges(yield)
}

// A checkpoint does not rest long after it stood still, and not at all once a
// caller waits for it.
func TestRestsEnd(t *testing.T) {
	for name, waits := range map[string]bool{"by themselves": false, "when a caller waits": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clk, src := newClock(), &stallingSource{table: newTable()}
				c, _ := openLoaded(t, testConfig(t.TempDir(), src, clk.Now))
				for _, r := range sample(clk.Now(), 20_000) {
					src.set(r)
				}
				began := time.Now()
				paced := make(chan error, 1)
				go func() { paced <- c.lockAndCheckpoint(t.Context(), true) }()
				time.Sleep(time.Minute + time.Millisecond)
				expect.Equal(t, len(c.lock), 1, "checkpoints that rest")
				want := time.Minute + maxRest
				if waits {
					want = time.Minute + time.Millisecond
					ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
					defer cancel()
					expect.NoError(t, c.Checkpoint(ctx))
				}
				expect.NoError(t, <-paced)
				expect.Equal(t, time.Since(began), want, "time until the end")
				mustClose(t, c)
			})
		})
	}
}

// Close interrupts a resting checkpoint and writes the remainder.
func TestCloseWhileResting(t *testing.T) {
	dir, clk, src := t.TempDir(), newClock(), counters.New(300_000)
	defer src.Close()
	c, _ := openLoaded(t, testConfig(dir, src, clk.Now))
	all := sample(clk.Now(), 200_000)
	for _, r := range all {
		src.Put(clk.Now(), r)
	}
	ended := make(chan error)
	go func() { ended <- c.lockAndCheckpoint(c.ctx, true) }()
	process.Eventually(t, "a checkpoint under way", func() bool { return len(c.lock) == 1 })
	mustClose(t, c)
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	again := counters.New(300_000)
	defer again.Close()
	c, stats := openLoaded(t, testConfig(dir, again, clk.Now))
	mustClose(t, c)
	if stats.Restored != int64(len(all)) {
		t.Errorf("have %+v", stats)
	}
}

// However long a node runs, its file needs only a small multiple of the table's
// size, which bbolt rounds up to a power of two.
func TestFileIsBounded(t *testing.T) {
	const all, each = 30_000, 3000
	clk, src := newClock(), counters.New(2*all)
	defer src.Close()
	c, _ := openLoaded(t, testConfig(t.TempDir(), src, clk.Now))
	c.minLogSize, c.minBaseStep = 100_000, 1000
	records := sample(clk.Now(), all)
	bases, before := 0, uint64(0)
	for round := range 120 {
		clk.add(time.Second)
		for i := range each {
			r := records[mix(uint64(round*each+i))%all]
			if r.Kind.IsBucket() {
				r.State.At = clk.Now().Steady
			}
			r.ExpiresAt = clk.Now().Steady/1e9 + 600
			src.Put(clk.Now(), r)
		}
		mustCheckpoint(t, c)
		if before > 0 && c.base.firstFrame == 0 {
			bases++
		}
		before = c.base.firstFrame
	}
	if most := 7 * c.base.size; c.file.usedBytes.Load() > most || bases < 3 {
		t.Errorf("%d bytes of the file were in use, want at most %d, after %d new bases of about %d", c.file.usedBytes.Load(), most, bases, c.base.size)
	}
	t.Logf("%d bytes of the file were in use after %d new bases of about %d",
		c.file.usedBytes.Load(), bases, c.base.size)
	mustClose(t, c)
}
