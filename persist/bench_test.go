package persist

import (
	"os"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

const million = 1_000_000

// everyday is n counters of four limits: windows of a minute and an hour, and two token buckets.
func everyday(now algorithms.Now, n int) []counters.Record {
	second := now.Steady / 1e9
	out := make([]counters.Record, 0, n)
	for i := range n {
		r := counters.Record{
			Key:   counters.Key{Hi: mix(uint64(i / 4)), Lo: mix(uint64(i) + 1<<40)},
			Level: uint8(1 + i%255),
			State: algorithms.State{Count: int64(i%1000 + 1), At: now.Steady - int64(i)},
		}
		owed := int64(mix(uint64(i)) % 1000)
		switch i % 4 {
		case 0:
			r.Kind, r.FreshAt, r.State.At = algorithms.FixedWindow, second/60*60+60, second/60
		case 1:
			r.Kind, r.FreshAt, r.State.At = algorithms.SlidingWindow, second/3600*3600+7200, second/3600
		case 2:
			r.Kind, r.FreshAt, r.State.Part = algorithms.TokenBucket, second+1+owed*60/1000, owed<<30
		case 3:
			r.Kind, r.FreshAt, r.State.Part = algorithms.TokenBucket, second+1+owed*3600/1000, owed<<40
		}
		out = append(out, r)
	}
	return out
}

// BenchmarkCheckpoint writes a million changed counters: first into a new file, then over it.
func BenchmarkCheckpoint(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		dir, clk := b.TempDir(), newClock()
		src := newTable()
		all := everyday(clk.Now(), million)
		c, _ := openLoaded(b, testConfig(dir, src, clk.Now))
		for round, name := range []string{"new-s", "again-s"} {
			for i := range all {
				all[i].State.Count += int64(round)
			}
			ready := &records{all: all}
			c.cfg.Source = ready
			b.StartTimer()
			mustCheckpoint(b, c)
			b.StopTimer()
			b.ReportMetric(c.Status().Duration.Seconds(), name)
		}
		b.ReportMetric(float64(c.Status().FileSize)/(1<<20), "MiB")
		mustClose(b, c)
		b.StartTimer()
	}
}

// BenchmarkLoad reads a million counters, from opening on.
func BenchmarkLoad(b *testing.B) {
	dir, clk := b.TempDir(), newClock()
	src := &records{all: everyday(clk.Now(), million)}
	c, _ := openLoaded(b, testConfig(dir, src, clk.Now))
	mustClose(b, c)
	for b.Loop() {
		src := &records{}
		c, stats := openLoaded(b, testConfig(dir, src, clk.Now))
		if src.restored != million {
			b.Fatalf("%+v", stats)
		}
		b.StopTimer()
		b.ReportMetric(stats.Duration.Seconds(), "load-s")
		mustClose(b, c)
		b.StartTimer()
	}
	_ = os.RemoveAll(dir)
}
