package localcache

import (
	"math"

	"github.com/rlnode/rlnode/algorithms"
)

// SizeInput is a holder's request for one limit, with what the owner knows about that limit.
type SizeInput struct {
	Limit          *algorithms.Limit
	Want           int64 // units that the holder expects to need within a lease's TTL
	Remaining      int64 // units left of the limit
	MaySpend       int64 // units that all holders may still spend from grants
	HolderMaySpend int64 // the part of Outstanding that this holder has
}

// Size returns how many units of one limit to grant; zero for none.
func Size(in SizeInput, policy Policy) int64 {
	capacity := in.Limit.Capacity()
	used := capacity - min(in.Remaining, capacity)

	// Every node may be about to ask for as much as this one. With larger grants,
	// some nodes would refuse while others still had much to spend.
	headroom := int64(policy.Threshold*float64(capacity)) - used
	large := min(in.Want, headroom/int64(max(2, policy.Nodes+1)))

	part := policy.IdlePart(in.Limit)
	small := min(in.Want, part-in.HolderMaySpend, policy.IdleTotal(in.Limit)-in.MaySpend)

	size := max(0, min(max(large, small), in.Remaining))

	// When a limit is used up as fast as it refills, grants are tiny. They save no
	// calls, and the ledger would have to remember each of them.
	if size < min(in.Want, part/minGrantDivisor) {
		return 0
	}
	return size
}

// minGrantDivisor bounds the smallest grant: less than 1/minGrantDivisor of a
// node's part of the idle amount is not worth granting.
const minGrantDivisor = 8

// addCapped returns a + b, or the largest int64 on overflow.
func addCapped(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
