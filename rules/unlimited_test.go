package rules

import (
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

// TestFromFirst_IsAnotherCounter: windows of the clock and those of the first
// hit have different counters, so that counts begin anew where one becomes the
// other.
func TestFromFirst_IsAnotherCounter(t *testing.T) {
	limitOf := func(more string) *Limit {
		set := keyedSet(t,
			"rules: [{name: r, key: [k], limits: [{limit: 5, per: 1h, algorithm: fixed-window"+more+"}]}]")
		var m Match
		expect.NoError(t, set.MatchKey(set.Rule("r"), []string{"x"}, &m))
		return m.Hits[0].Limits[0]
	}
	clock, first, same := limitOf(""), limitOf(", from: first"), limitOf(", from: clock")
	if first.Kind != algorithms.FirstWindow || first.ID == clock.ID || same.ID != clock.ID ||
		same.Kind != algorithms.FixedWindow {
		t.Errorf("got %+v, %+v, %+v", clock.Limit, first.Limit, same.Limit)
	}
}
