package persist

import (
	"maps"
	"slices"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/golden"
)

// TestGolden: counters are on disk as ever.
func TestGolden(t *testing.T) {
	records := map[string]counters.Record{
		"0-fixed-window":   {Kind: algorithms.FixedWindow, State: algorithms.State{Count: 300, At: 29_000_000}, Level: 255},
		"1-sliding-window": {Kind: algorithms.SlidingWindow, State: algorithms.State{Count: 300, Part: 7, At: -3}},
		"2-token-bucket":   {Kind: algorithms.TokenBucket, State: algorithms.State{Count: 300, Part: 7, At: 40}},
		"3-leaky-bucket":   {Kind: algorithms.LeakyBucket, State: algorithms.State{Count: 300, Part: 7, At: 40}},
		"4-sliding-log":    {Kind: algorithms.SlidingLog, Log: []algorithms.Entry{{At: 5, N: 1}, {At: 100, N: 2}}},
	}
	key := counters.AppendKey(nil, counters.Key{Hi: 1, Lo: 1 << 63})
	now := algorithms.Now{Steady: 90}
	var lines []golden.Line
	for _, name := range slices.Sorted(maps.Keys(records)) {
		r := records[name]
		r.FreshAt = 60
		lines = append(lines, golden.Line{Name: name, Bytes: appendValue(nil, key, &r, 1_800_000_000, now, 12)})
	}
	lines = append(lines, golden.Line{Name: "key", Bytes: key})
	for i, b := range golden.Check(t, "testdata/values.txt", lines...)[:len(records)] {
		want := records[lines[i].Name]
		have, err := parseValue(key, b, nil)
		if err != nil || have.Kind != want.Kind || have.State.Count != want.State.Count || len(have.Log) != len(want.Log) || have.FreshAt != 1_800_000_060 {
			t.Errorf("%s: have %+v, %v", lines[i].Name, have, err)
		}
	}
}
