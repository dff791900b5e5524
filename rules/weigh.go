package rules

import (
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/rlnode/rlnode/algorithms"
)

type (
	atomicSettled = atomic.Pointer[settledLimits]
	atomicMoving  = atomic.Pointer[movingLimits]
)

// vector is what one view gives to each region of one limit.
type vector struct{ amounts, bursts []int64 }

// divide is what a limit of rule gives to regions, of which those in committed divide it.
func divide(regions, committed []string, rule *Rule, l *Limit) vector {
	return vector{among(regions, committed, rule.Regions, l.Amount), among(regions, committed, rule.Regions, l.Burst)}
}

func among(regions, committed []string, parts []Region, amount int64) []int64 {
	shares := Split(amount, committed, parts)
	out := make([]int64, len(regions))
	for i, name := range regions {
		if j := slices.Index(committed, name); j >= 0 {
			out[i] = shares[j]
		}
	}
	return out
}

// boundless is what a view without the limit gives.
func boundless(regions int) vector {
	all := make([]int64, regions)
	for i := range all {
		all[i] = math.MaxInt64
	}
	return vector{all, all}
}

func (v vector) of(region int) room { return room{v.amounts[region], v.bursts[region]} }

// span is how long the slowest region's bucket takes to fill, in ns; 0 for other limits.
func (v vector) span(l *Limit) int64 {
	if !l.Kind.Bucket() {
		return 0
	}
	longest := int64(0)
	for i, amount := range v.amounts {
		if amount == 0 {
			continue // it refuses all
		}
		hi, lo := bits.Mul64(uint64(v.bursts[i]), uint64(l.Limit.Window))
		if hi >= uint64(amount) {
			return int64(algorithms.Forever)
		}
		fill, _ := bits.Div64(hi, lo, uint64(amount))
		longest = max(longest, int64(min(fill, uint64(algorithms.Forever)-1))+1)
	}
	return longest
}

// rooms is what views leave to one region of them, −1 for none, by how many were recorded before the window began. Those
// that are recorded come first.
func rooms(views []vector, recorded, region int) []room {
	out := make([]room, recorded+1)
	if region < 0 {
		return out
	}
	unknown := boundless(len(views[0].amounts)) // what was used before the first record
	amounts, bursts := [][]int64{unknown.amounts}, [][]int64{unknown.bursts}
	for _, v := range views {
		amounts, bursts = append(amounts, v.amounts), append(bursts, v.bursts)
	}
	for first := range out {
		out[first] = room{least(amounts, first, recorded, region), least(bursts, first, recorded, region)}
	}
	return out
}

// least is what shares leave to a region in a window that began at the first of them, or at any later one. The last one
// that is recorded has its number.
func least(shares [][]int64, first, recorded, region int) int64 {
	out := int64(math.MaxInt64)
	for ; first <= recorded; first++ {
		out = min(out, chain(shares[first:recorded+1], region))
	}
	for _, v := range shares[recorded+1:] {
		out = min(out, v[region])
	}
	return out
}

// chain is what recorded shares leave to a region in a window that began when the first of them held, and the others were
// recorded later. most is what each region may have used of the window: shares that are nowhere smaller hold at once.
// Others only lower what may be used from now on. What each has had is then below most still, and most is one version's.
func chain(shares [][]int64, region int) int64 {
	most, out := shares[0], shares[0][region]
	for _, v := range shares[1:] {
		if covers(v, most) {
			most, out = v, v[region]
		} else {
			out = min(out, v[region])
		}
	}
	return out
}

// covers reports whether a is nowhere smaller than b.
func covers(a, b []int64) bool {
	for i := range a {
		if a[i] < b[i] {
			return false
		}
	}
	return true
}
