package counters

import (
	"maps"
	"slices"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/golden"
)

// TestGolden: the encoding of counters has not changed.
func TestGolden(t *testing.T) {
	now := algorithms.Instant{Steady: 5_000_000_000_000, Wall: 1_800_000_000_000_000_000}
	state := algorithms.State{Count: 300, Part: 7, At: now.Steady - 1000}
	records := map[string]Record{
		"0-fixed-window": {Kind: algorithms.FixedWindow,
			State: algorithms.State{Count: 300, At: 29_000_000}, Fullness: 255},
		"1-widened": {Kind: algorithms.FixedWindow,
			State: algorithms.State{Count: 300, Part: 7, At: 29_000_000}},
		"2-sliding-window": {Kind: algorithms.SlidingWindow,
			State: algorithms.State{Count: 300, Part: 7, At: -3}, Fullness: 9},
		"3-token-bucket": {Kind: algorithms.TokenBucket, State: state},
		"4-leaky-bucket": {Kind: algorithms.LeakyBucket, State: state},
		"5-sliding-log": {Kind: algorithms.SlidingLog,
			Log: []algorithms.Entry{{At: now.Steady - 9, N: 2}, {At: now.Steady + 5, N: 1}}},
		"6-queue": {Kind: algorithms.FixedWindow, State: algorithms.State{Count: 5, At: 1<<61 + 29_000_000}},
		"7-first-window": {Kind: algorithms.FirstWindow,
			State: algorithms.State{Count: 300, Part: 60e9, At: now.Steady - 1000}},
		"8-cell-bucket": {Kind: algorithms.CellBucket,
			State: algorithms.State{Count: 60e9, Part: 1e9, At: now.Steady + 3e9}},
	}
	var lines []golden.Line
	for _, name := range slices.Sorted(maps.Keys(records)) {
		r := records[name]
		r.Key, r.ExpiresAt = Key{Subject: 1 << 63, Counter: 5}, 5063
		lines = append(lines, golden.Line{Name: name, Bytes: AppendRecord(nil, &r, now)})
	}
	for i, b := range golden.Check(t, "testdata/records.txt", lines...) {
		var r Record
		want := records[lines[i].Name]
		rest, err := parseRecord(b, &r, now)
		if err != nil || len(rest) > 0 || r.Kind != want.Kind || r.State != want.State ||
			len(r.Log) != len(want.Log) || r.ExpiresAt != 5063 {
			t.Errorf("%s: have %+v, %v", lines[i].Name, r, err)
		}
	}
}
