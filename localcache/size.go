package localcache

import (
	"math"

	"github.com/rlnode/rlnode/algorithms"
)

// SizeInput is a holder's request for one limit, with what the owner knows of that limit.
type SizeInput struct {
	Limit     *algorithms.Limit
	Want      int64 // units that the holder expects to need within a lease's TTL
	Remaining int64 // units left of the limit
	Out       int64 // units of grants that are out
	HolderOut int64 // units of Out that the same holder has
}

// Size returns how many units of one limit to grant; zero for none.
func Size(in SizeInput, t Terms) int64 {
	capacity := in.Limit.Capacity()
	used := capacity - min(in.Remaining, capacity)
	large := min(in.Want, (int64(t.Threshold*float64(capacity))-used)/2)
	part := t.IdlePart(in.Limit)
	small := min(in.Want, part-in.HolderOut, t.IdleTotal(in.Limit)-in.Out)
	size := max(0, min(max(large, small), in.Remaining))
	// Tiny grants of a limit that is used up as fast as it refills save no calls, and the ledger must remember each.
	if size < min(in.Want, part/minGrantDivisor) {
		return 0
	}
	return size
}

// minGrantDivisor bounds the smallest grant: less than 1/crumbs of a node's part of the idle amount is not worth granting.
const minGrantDivisor = 8

// addCapped returns a + b, or the largest int64 on overflow.
func addCapped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
