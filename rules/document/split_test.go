package document

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestSplit(t *testing.T) {
	three := []Region{{"us", 0.5}, {"eu", 0.3}, {"ap", 0.2}}
	for _, tt := range []struct {
		amount int64
		names  string
		parts  []Region
		want   []int64
	}{
		{900, "ap eu us", nil, []int64{300, 300, 300}},
		{901, "ap eu us", nil, []int64{301, 300, 300}},
		{2, "us eu ap", nil, []int64{0, 1, 1}}, // ties go to the first by name
		{1, "us", nil, []int64{1}},
		{0, "us eu", nil, []int64{0, 0}},
		{900, "us eu ap", three, []int64{450, 270, 180}},
		{7, "us eu ap", three, []int64{4, 2, 1}}, // 3.5, 2.1, 1.4
		{1, "us eu ap", three, []int64{1, 0, 0}},
		{900, "eu us", three, []int64{270, 450}}, // ap's part goes to nobody
		{900, "eu zz", three, []int64{270, 0}},   // an unlisted region gets nothing
		{900, "yy zz", three, []int64{450, 450}}, // no region is listed
		{10, "a b", []Region{{"a", 1}, {"b", 0}}, []int64{10, 0}},
		{10, "a b c", []Region{{"a", 0.333}, {"b", 0.333}, {"c", 0.333}}, []int64{4, 3, 3}},
		{100, "a b", []Region{{"a", 0.29}, {"b", 0.71}}, []int64{29, 71}}, // no float64 equals 0.29
		{algorithms.MaxAmount, "a b", []Region{{"a", 0.5}, {"b", 0.5}}, []int64{1 << 52, 1<<52 - 1}},
	} {
		expect.EqualSlices(t, Split(tt.amount, strings.Fields(tt.names), tt.parts), tt.want,
			"%d among %s by %v", tt.amount, tt.names, tt.parts)
	}
}

// Shares add up, are within one unit of the exact parts, and don't depend on any order.
func TestSplitAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 32).Draw(t, "regions")
		amount := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, algorithms.MaxAmount)).Draw(t, "amount")
		var names []string
		var parts []Region
		total := 0.0
		for i := range n {
			names = append(names, fmt.Sprintf("r%d", i))
			part := float64(rapid.IntRange(0, 1000).Draw(t, "part"))
			total += part
			parts = append(parts, Region{names[i], part})
		}
		if total == 0 || rapid.Bool().Draw(t, "equal") {
			parts = nil
		}
		for i := range parts {
			parts[i].Part /= total
		}
		have := map[string]int64{}
		sum := int64(0)
		for i, share := range Split(amount, names, parts) {
			have[names[i]] = share
			sum += share
			quota := float64(amount) / float64(n)
			if parts != nil {
				quota = float64(amount) * parts[i].Part
			}
			if math.Abs(float64(share)-quota) > 1+quota*1e-9 || parts != nil && parts[i].Part == 0 && share != 0 {
				t.Fatalf("%s has %d, and %g is its part", names[i], share, quota)
			}
		}
		if sum != amount {
			t.Fatalf("%d of %d", sum, amount)
		}
		shuffled := rapid.Permutation(names).Draw(t, "names")
		again := map[string]int64{}
		for i, share := range Split(amount, shuffled, rapid.Permutation(parts).Draw(t, "parts")) {
			again[shuffled[i]] = share
		}
		if !maps.Equal(have, again) {
			t.Fatalf("have %v, and %v in another order", have, again)
		}
	})
}
