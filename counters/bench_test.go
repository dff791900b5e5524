package counters

import (
	"testing"

	"github.com/rlnode/rlnode/algorithms"
)

func BenchmarkRecords(b *testing.B) {
	now := algorithms.Instant{Steady: 1_800_000_000_000_000_000, Wall: 1_800_000_000_000_000_000}
	for name, r := range map[string]Record{
		"window": {Kind: algorithms.FixedWindow, State: algorithms.State{Count: 300, At: 29_000_000}, Fullness: 9},
		"bucket": {Kind: algorithms.TokenBucket,
			State: algorithms.State{Count: 300, Part: 7000000, At: now.Steady - 1000000}},
		"log": {Kind: algorithms.SlidingLog,
			Log: []algorithms.Entry{{At: now.Steady - 9e9, N: 2}, {At: now.Steady - 8e9, N: 1},
				{At: now.Steady - 5e9, N: 1}}},
	} {
		r.ExpiresAt = now.Steady/1e9 + 60
		packed := AppendRecord(nil, &r, now)
		b.Run(name+"/append", func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 0, 1024)
			for b.Loop() {
				buf = AppendRecord(buf[:0], &r, now)
			}
		})
		b.Run(name+"/read", func(b *testing.B) {
			b.ReportAllocs()
			have := r
			have.Log = make([]algorithms.Entry, 0, 10)
			for b.Loop() {
				if _, err := parseRecord(packed, &have, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
