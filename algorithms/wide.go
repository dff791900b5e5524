package algorithms

import (
	"math"
	"math/bits"
)

// mul returns a × b in 128 bits, for a, b >= 0.
func mul(a, b int64) (hi, lo uint64) { return bits.Mul64(uint64(a), uint64(b)) }

// mulAdd returns a × b + c in 128 bits, for a, b, c >= 0.
func mulAdd(a, b, c int64) (hi, lo uint64) {
	hi, lo = bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(c), 0)
	return hi + carry, lo
}

// less reports whether a < b in 128 bits.
func less(aHi, aLo, bHi, bLo uint64) bool { return aHi < bHi || aHi == bHi && aLo < bLo }

// floorDiv128 returns floor(hi:lo / d), at most MaxInt64.
func floorDiv128(hi, lo, d uint64) int64 {
	if hi >= d {
		return math.MaxInt64
	}
	if hi == 0 {
		return int64(min(lo/d, math.MaxInt64))
	}
	q, _ := bits.Div64(hi, lo, d)
	return int64(min(q, math.MaxInt64))
}

// ceilDiv128 returns ceil(hi:lo / d), at most MaxInt64.
func ceilDiv128(hi, lo, d uint64) int64 {
	if hi >= d {
		return math.MaxInt64
	}
	if hi == 0 {
		return int64(min(lo/d+min(lo%d, 1), math.MaxInt64)) // much cheaper than a 128-bit division on many processors
	}
	q, r := bits.Div64(hi, lo, d)
	if r > 0 && q < math.MaxInt64 {
		q++
	}
	return int64(min(q, math.MaxInt64))
}

// addSat returns a + b for a, b >= 0, at most MaxInt64.
func addSat(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// floorDiv returns floor(a / b) for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
