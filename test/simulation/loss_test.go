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

	for name, test := range map[string]struct {
		own, borrowed             counters.Record
		copied, borrowedAtTheCopy counters.Record
	}{
		"no loan":               {window(30, 0), window(0, 0), window(10, 0), window(0, 0)},
		"a loan":                {window(15, 0), window(15, 0), window(10, 0), window(0, 0)},
		"more than was used":    {window(0, 10), window(40, 0), window(10, 0), window(0, 0)},
		"one before and one":    {window(14, 5), window(26, 0), window(10, 5), window(10, 0)},
		"the copy is older":     {window(5, 0), window(15, 0), counters.Record{}, counters.Record{}},
		"the loan was long ago": {window(20, 0), counters.Record{}, counters.Record{}, counters.Record{}},
		"a bucket":              {bucket(9, 14), bucket(9, 15), bucket(8, 10), bucket(8, 0)}, // 1 for the fraction
		"its old loan drained":  {bucket(9, 29), bucket(9, 15), bucket(8, 10), bucket(5, 40)},
	} {
		have := MissingUse(&test.own, &test.borrowed, &test.copied, &test.borrowedAtTheCopy)
		if have != 20 {
			t.Errorf("%s: have %d, want 20", name, have)
		}
	}
}
