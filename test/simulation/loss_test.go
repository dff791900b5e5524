package simulation

import (
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// What a region used after the last copy is missing in it, also if a loan that
// came meanwhile was taken off the same counter, or widened its window.
func TestMissingInCopy_WithLoans(t *testing.T) {
	window := func(count, part int64) counters.Record {
		return counters.Record{Kind: algorithms.FixedWindow, State: algorithms.State{At: 7, Count: count, Part: part}}
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
	} {
		own := WithoutLoans(test.own, &test.borrowed)
		have := MissingInCopy(&own, WithoutLoans(test.copied, &test.borrowedAtTheCopy))
		if have != 20 {
			t.Errorf("%s: have %d, want 20", name, have)
		}
	}
}
