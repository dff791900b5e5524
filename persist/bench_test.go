package persist

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/expect"
)

const million = 1_000_000

// typicalRecord returns counter i of four limits: windows of a minute and an
// hour, and two token buckets.
func typicalRecord(now algorithms.Instant, i int) counters.Record {
	second := now.Steady / 1e9
	r := counters.Record{
		Key:      counters.Key{Subject: mix(uint64(i / 4)), Counter: mix(uint64(i) + 1<<40)},
		Fullness: uint8(1 + i%255),
		State:    algorithms.State{Count: int64(i%1000 + 1), At: now.Steady - int64(i)},
	}
	owed := int64(mix(uint64(i)) % 1000)
	switch i % 4 {
	case 0:
		r.Kind, r.ExpiresAt, r.State.At = algorithms.FixedWindow, second/60*60+600, second/60
	case 1:
		r.Kind, r.ExpiresAt, r.State.At = algorithms.SlidingWindow, second/3600*3600+7200, second/3600
	case 2:
		r.Kind, r.ExpiresAt, r.State.Part = algorithms.TokenBucket, second+60+owed*60/1000, owed<<30
	case 3:
		r.Kind, r.ExpiresAt, r.State.Part = algorithms.TokenBucket, second+60+owed*3600/1000, owed<<40
	}
	return r
}

// resourceUse returns the processor time of this process, and the bytes it
// passed to the kernel for writing.
func resourceUse(b *testing.B) (time.Duration, int64) {
	b.Helper()
	var u syscall.Rusage
	expect.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	io, err := os.ReadFile("/proc/self/io")
	if err != nil {
		b.Skip(err)
	}
	var written int64
	for line := range strings.Lines(string(io)) {
		if n, _ := fmt.Sscanf(line, "wchar: %d", &written); n == 1 {
			break
		}
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), written
}

// BenchmarkCheckpoint writes the counters that changed since the last
// checkpoint, in a table of two million: half a million at random, or always
// the same ten thousand.
func BenchmarkCheckpoint(b *testing.B) {
	const all = 2 * million
	for _, bb := range []struct {
		name    string
		changed int
		pick    func(i int) int
	}{
		{"random", million / 2, func(i int) int { return int(mix(uint64(i)) % all) }},
		{"hot", 10_000, func(i int) int { return int(mix(uint64(i%10_000)) % all) }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			clk, table := newClock(), counters.New(all)
			defer table.Close()
			for i := range all {
				table.Put(clk.Now(), typicalRecord(clk.Now(), i))
			}
			c, _ := openLoaded(b, testConfig(b.TempDir(), table, clk.Now))
			for mustCheckpoint(b, c); c.base.firstFrame > 0 || c.base.logSize > max(c.base.size, c.minLogSize); {
				mustCheckpoint(b, c) // completes the first base
			}
			next := 0
			var processor time.Duration
			var written int64
			for b.Loop() {
				b.StopTimer()
				clk.add(time.Second)
				for range bb.changed {
					table.Put(clk.Now(), typicalRecord(clk.Now(), bb.pick(next)))
					next++
				}
				before, had := resourceUse(b)
				b.StartTimer()
				mustCheckpoint(b, c)
				b.StopTimer()
				after, have := resourceUse(b)
				processor, written = processor+after-before, written+have-had
				b.StartTimer()
			}
			b.ReportMetric(processor.Seconds()*1e3/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(written)/1e6/float64(b.N), "MB/op")
			b.ReportMetric(float64(c.Status().FileSize)/1e6, "MB-file")
			mustClose(b, c)
		})
	}
}

// BenchmarkLoad opens a file of ten million counters and reads it into a table.
func BenchmarkLoad(b *testing.B) {
	const all = 10 * million
	dir, clk, table := b.TempDir(), newClock(), counters.New(all)
	for i := range all {
		table.Put(clk.Now(), typicalRecord(clk.Now(), i))
	}
	c, _ := openLoaded(b, testConfig(dir, table, clk.Now))
	mustClose(b, c)
	table.Close()
	for b.Loop() {
		table := counters.New(all)
		before, _ := resourceUse(b)
		begin := time.Now()
		c, stats := openLoaded(b, testConfig(dir, table, clk.Now))
		took := time.Since(begin)
		b.StopTimer()
		after, _ := resourceUse(b)
		if stats.Restored+stats.NoRoom < all*99/100 {
			b.Fatalf("%+v", stats)
		}
		b.ReportMetric((after - before).Seconds(), "cpu-s")
		b.ReportMetric(took.Seconds(), "load-s")
		mustClose(b, c)
		table.Close()
		b.StartTimer()
	}
}
