package grants

import (
	"math"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/localcache"
)

// Ask is what a holder asks of one limit.
type Ask struct {
	Limit     *algorithms.Limit
	Want      int64 // units that it expects to need in the life of a lease
	Remaining int64 // units left of the limit
	Out       int64 // units of other grants that are out
	OutThere  int64 // of these, the holder's own
}

// Size is how many units of one limit to grant a holder; 0 for none.
func Size(a Ask, t localcache.Terms) int64 {
	capacity := a.Limit.Capacity()
	used := capacity - min(a.Remaining, capacity)
	large := min(a.Want, (int64(t.Threshold*float64(capacity))-used)/2)
	part := t.Part(a.Limit)
	small := min(a.Want, part-a.OutThere, t.Together(a.Limit)-a.Out)
	size := max(0, min(max(large, small), a.Remaining))
	// Crumbs of a limit that is used up as fast as it comes back save no calls, and have to be remembered each.
	if size < min(a.Want, part/crumbs) {
		return 0
	}
	return size
}

// crumbs is by how much less than a node's part of what may be idle is not worth a grant.
const crumbs = 8

// add is a + b, or the greatest number.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
