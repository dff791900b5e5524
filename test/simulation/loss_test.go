package simulation

import (
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// What a region used after the last copy is missing in it, also if a loan that
// came meanwhile was taken off the same counter, or widened its window.
func TestMissingUse(t *testing.T) {
	window := func(count, part int64) counters.Record {
		return counters.Record{Kind: algorithms.FixedWindow, State: algorithms.State{At: 7, Count: count, Part: part}}
	}
	bucket := func(at, count int64) counters.Record {
		return counters.Record{Kind: algorithms.TokenBucket, State: algorithms.State{At: at, Count: count}}
	}

	none := counters.Record{}
	before := window(20, 0) // what an earlier window lent
	before.State.At = 6

	for name, test := range map[string]struct{ own, copied Use }{
		"no loan":               {Use{window(30, 0), none, window(0, 0)}, Use{window(10, 0), none, window(0, 0)}},
		"a loan":                {Use{window(15, 0), none, window(15, 0)}, Use{window(10, 0), none, window(0, 0)}},
		"more than was used":    {Use{window(0, 10), none, window(40, 0)}, Use{window(10, 0), none, window(0, 0)}},
		"one before and one":    {Use{window(14, 5), none, window(26, 0)}, Use{window(10, 5), none, window(10, 0)}},
		"the copy is older":     {Use{window(5, 0), none, window(15, 0)}, Use{}},
		"the loan was long ago": {Use{window(20, 0), none, none}, Use{}},
		"it lent":               {Use{window(45, 0), window(15, 0), none}, Use{window(10, 0), none, none}},
		"it lent before, too":   {Use{window(45, 0), window(25, 0), none}, Use{window(20, 0), window(20, 0), none}},
		"it lent long ago":      {Use{window(20, 0), before, none}, Use{}},
		"a bucket":              {Use{bucket(9, 14), none, bucket(9, 15)}, Use{bucket(8, 10), none, bucket(8, 0)}}, // 1 for the fraction
		"its old loan drained":  {Use{bucket(9, 29), none, bucket(9, 15)}, Use{bucket(8, 10), none, bucket(5, 40)}},
	} {
		have := test.own.MissingUseIn(&test.copied)
		if have != 20 {
			t.Errorf("%s: have %d, want 20", name, have)
		}
	}
}
