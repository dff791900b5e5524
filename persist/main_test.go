package persist

import (
	"flag"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

// childEnv makes the test binary act as the process that a kill test kills.
const childEnv = "PERSIST_TEST_CHILD"

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		child(job)
		return
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // those in parallel mostly wait for locks and child processes
	goleak.VerifyTestMain(m)
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// table is a Source backed by a map, which records what changed.
type table struct {
	mu      sync.Mutex // guards everything
	all     map[counters.Key]counters.Record
	changed map[counters.Key]counters.Record
	batch   int // records per batch
	full    bool
}

func newTable() *table {
	return &table{
		all: map[counters.Key]counters.Record{}, changed: map[counters.Key]counters.Record{}, batch: 7000,
	}
}

// set changes a counter. Like the real table, it never moves the expiry to an earlier time.
func (t *table) set(r counters.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.ExpiresAt = max(r.ExpiresAt, t.all[r.Key].ExpiresAt)
	t.all[r.Key], t.changed[r.Key] = r, r
}

func (t *table) DrainChanges(yield func([]counters.Record) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(t.changed), func(a, b counters.Key) int {
		if a.Subject < b.Subject || a.Subject == b.Subject && a.Counter < b.Counter {
			return -1
		}
		return 1
	})
	for chunk := range slices.Chunk(keys, t.batch) {
		var batch []counters.Record
		for _, k := range chunk {
			batch = append(batch, t.changed[k])
		}
		if err := yield(batch); err != nil {
			return err
		}
		for _, k := range chunk {
			delete(t.changed, k)
		}
	}
	return nil
}

func (t *table) Restore(_ algorithms.Instant, records []counters.Record) (restored, noRoom int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full {
		return 0, len(records)
	}
	for _, r := range records {
		if _, found := t.all[r.Key]; !found {
			r.Log = slices.Clone(r.Log)
			t.all[r.Key] = r
			restored++
		}
	}
	return restored, 0
}

func (t *table) Drops() int64 { return 0 }

func (t *table) MaxClockLead(algorithms.Instant) int64 { return 0 }

func (t *table) FollowClock(algorithms.Instant, int, int64) {}

const tableParts = 16

func (t *table) MarkPartsChanged(part, n int) (next, marked int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; part < tableParts && marked < n; part++ {
		for k, r := range t.all {
			if int(k.Subject%tableParts) == part {
				t.changed[k] = r
				marked++
			}
		}
	}
	return part % tableParts, marked
}

func (t *table) pending() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.changed)
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// clock is a pair of clocks that the test controls.
type clock struct {
	mu  sync.Mutex // guards now
	now algorithms.Instant
}

func newClock() *clock {
	wall := time.Date(2026, 11, 21, 12, 0, 3, 0, time.UTC)
	return &clock{now: algorithms.Instant{Steady: wall.Add(-77 * time.Millisecond).UnixNano(), Wall: wall.UnixNano()}}
}

func (c *clock) Now() algorithms.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Steady += int64(d)
	c.now.Wall += int64(d)
}

func testConfig(dir string, src Source, now func() algorithms.Instant) CounterFileConfig {
	config := DefaultCounterFileConfig()
	config.Dir, config.Source, config.Now, config.Logger = dir, src, now, quiet
	return config
}

// openLoaded opens the store in dir and loads it.
func openLoaded(t testing.TB, config CounterFileConfig) (*CounterFile, LoadStats) {
	t.Helper()
	c, err := OpenCounterFile(config)
	expect.NoError(t, err)
	stats, err := c.Load(config.Now())
	expect.NoError(t, err)
	return c, stats
}

func mustCheckpoint(t testing.TB, c *CounterFile) {
	t.Helper()
	expect.NoError(t, c.Checkpoint(t.Context()))
}

func mustClose(t testing.TB, c *CounterFile) {
	t.Helper()
	expect.NoError(t, c.Close(t.Context()))
}

// sample returns n counters of all algorithms that expire within a few hours of now.
func sample(now algorithms.Instant, n int) []counters.Record {
	second := now.Steady / int64(time.Second)
	out := make([]counters.Record, 0, n)
	for i := range n {
		r := counters.Record{
			Key:       counters.Key{Subject: mix(uint64(i)), Counter: mix(uint64(i) + 1<<40)},
			Kind:      algorithms.Kind(i % 5),
			Fullness:  uint8(i % 2 * 255),
			ExpiresAt: second + 60 + int64(i%97)*31,
			State:     algorithms.State{Count: int64(i + 1), Part: int64(i % 7), At: now.Steady - int64(i)},
		}
		if !r.Kind.IsBucket() {
			r.State.At = second / 60
		}
		if r.Kind == algorithms.SlidingLog {
			r.State = algorithms.State{}
			for j := range 1 + i%4 {
				r.Log = append(r.Log, algorithms.Entry{At: now.Steady - int64(100-j), N: int64(j + 1)})
			}
		}
		out = append(out, r)
	}
	return out
}

// mix is splitmix64; it makes keys look like hashes.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
