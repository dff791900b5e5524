package algorithms

import (
	"math"
	"math/bits"
	"time"
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

// IsSmallerFraction reports whether a/b < c/d, for numbers >= 0. It multiplies
// in 128 bits: a division would round, and a product may overflow 64 bits.
func IsSmallerFraction(a, b, c, d int64) bool {
	hi, lo := mul(a, d)
	otherHi, otherLo := mul(c, b)
	return less(hi, lo, otherHi, otherLo)
}

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

// uint128 is a number of 128 bits, 0 or above.
type uint128 struct{ hi, lo uint64 }

// wideProduct returns a × b, for a, b >= 0.
func wideProduct(a, b int64) uint128 {
	hi, lo := mul(a, b)
	return uint128{hi, lo}
}

func (w uint128) less(o uint128) bool { return less(w.hi, w.lo, o.hi, o.lo) }

// bitLen returns the number of bits that w needs.
func (w uint128) bitLen() int {
	if w.hi > 0 {
		return 64 + bits.Len64(w.hi)
	}
	return bits.Len64(w.lo)
}

func (w uint128) min(o uint128) uint128 {
	if o.less(w) {
		return o
	}
	return w
}

// plus returns w + o, which must fit.
func (w uint128) plus(o uint128) uint128 {
	lo, carry := bits.Add64(w.lo, o.lo, 0)
	return uint128{w.hi + o.hi + carry, lo}
}

// minus returns w − o, or 0 if that is less.
func (w uint128) minus(o uint128) uint128 {
	if w.less(o) {
		return uint128{}
	}
	lo, borrow := bits.Sub64(w.lo, o.lo, 0)
	return uint128{w.hi - o.hi - borrow, lo}
}

// double returns w doubled n times, which must fit.
func (w uint128) double(n uint) uint128 { return uint128{w.hi<<n | w.lo>>(64-n), w.lo << n} }

// halve returns w halved n times, rounded up, which must fit into 63 bits.
func (w uint128) halve(n uint) uint64 {
	up := w.plus(uint128{0, 1<<n - 1})
	return up.lo>>n | up.hi<<(64-n)
}

// times returns w × a / b, rounded up, for a, b > 0; at most about 2¹²⁷.
func (w uint128) times(a, b int64) uint128 {
	// The product has 192 bits.
	midHi, lo := bits.Mul64(w.lo, uint64(a))
	hi, mid := bits.Mul64(w.hi, uint64(a))
	mid, carry := bits.Add64(mid, midHi, 0)
	hi += carry
	if hi >= uint64(b) {
		return uint128{math.MaxInt64, math.MaxUint64}
	}
	qHi, rest := bits.Div64(hi, mid, uint64(b))
	qLo, rest := bits.Div64(rest, lo, uint64(b))
	return uint128{qHi & math.MaxInt64, qLo}.plus(uint128{0, min(rest, 1)})
}

// duration returns nanoseconds as a duration, the longest one at most.
func (w uint128) duration() time.Duration {
	if w.hi > 0 || w.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(w.lo)
}
