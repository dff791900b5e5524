package rules

import (
	"fmt"
	"testing"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

func adaptiveSet(t *testing.T, steps, limits string) (*Set, *Hit) {
	t.Helper()
	doc, err := document.Parse([]byte("version: 1\nrules:\n  - {name: r, key: [], limits: [" + limits +
		"], adaptive: {source: s, steps: [" + steps + "]}}\n"))
	expect.NoError(t, err)
	s, err := Compile(doc, 1)
	expect.NoError(t, err)
	var m Match
	s.Match(nil, nil, &m)
	if len(m.Hits) != 1 {
		t.Fatalf("have %d hits", len(m.Hits))
	}
	return s, &m.Hits[0]
}

func TestLowered(t *testing.T) {
	const most = algorithms.MaxAmount
	for _, tt := range []struct {
		amount, burst int64
		factor        string
		want, wantCap int64
	}{
		{100, 100, "0.75", 75, 75},
		{100, 100, "0.29", 29, 29}, // no float64 equals 0.29
		{10, 3, "0.5", 5, 1},
		{1, 1, "0.001", 1, 1},
		{7, 9, "1", 7, 9},
		{most, most, "1", most, most},
		{most, most, "0.5", most / 2, most / 2},
		{1000, 20, "0.0999", 99, 1},
	} {
		_, h := adaptiveSet(t, "{above: 0.5, factor: "+tt.factor+"}",
			fmt.Sprintf("{limit: %d, per: 1m, algorithm: token-bucket, burst: %d}, {limit: %d, per: 1h, algorithm: fixed-window}", tt.amount, tt.burst, tt.amount))
		low := h.Rule.Lowered(h.Limits, 0)
		if have := [2]int64{low[0].Amount, low[0].Burst}; have != [2]int64{tt.want, tt.wantCap} {
			t.Errorf("%d, burst %d, by %s: have %v, want %d, %d", tt.amount, tt.burst, tt.factor,
				have, tt.want, tt.wantCap)
		}
		if low[1].Amount != tt.want || low[1].Burst != 0 {
			t.Errorf("%d by %s: have %d, burst %d, want %d", tt.amount, tt.factor, low[1].Amount, low[1].Burst, tt.want)
		}
		for i := range low {
			if low[i].ID != h.Limits[i].ID || low[i].Name != h.Limits[i].Name || low[i].Per != h.Limits[i].Per {
				t.Errorf("limit %d is another counter: have %+v, want as %+v", i, low[i], h.Limits[i])
			}
		}
		if h.Limits[0].Amount != tt.amount {
			t.Error("the rule's own limits were changed")
		}
	}
}

// Lowered limits are built once for each step, and never for rules without steps.
func TestLoweredIsKept(t *testing.T) {
	_, h := adaptiveSet(t, "{above: 0.5, factor: 0.5}, {above: 0.9, factor: 0.1}", "{limit: 100, per: 1m}")
	for step, want := range []int64{50, 10, 50} {
		step %= 2
		low := h.Rule.Lowered(h.Limits, step)
		expect.Equal(t, low[0].Amount, want, "step %d", step)
		if n := testing.AllocsPerRun(10, func() {
			if again := h.Rule.Lowered(h.Limits, step); again[0] != low[0] {
				t.Error("the limits were built again")
			}
		}); n > 0 {
			t.Errorf("have %v allocations", n)
		}
	}
	for _, step := range []int{-1, 2} {
		if have := h.Rule.Lowered(h.Limits, step); have[0] != h.Limits[0] {
			t.Errorf("step %d: have %+v, want the whole limit", step, have[0])
		}
	}
}
