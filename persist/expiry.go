package persist

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
)

// Counters stand in buckets of the file by the time at which they expire, so that what has expired is dropped
// whole instead of key by key. A bucket's name is its expiry, a multiple of grain.
const (
	grain = 16 // seconds

	// maxBuckets bounds how many buckets are made exactly; beyond it, counters go to a later bucket that exists.
	maxBuckets = 2048

	// maxExpiry keeps a nonsensical expiry from overflowing; it is some 30,000 years away.
	maxExpiry = 1 << 40
)

// bucketFor is the expiry of the bucket for a counter that expires at expiry (Unix seconds).
//
// The windows' expiry stands still while the window lasts: the next multiple of grain will do, and the key has
// one copy. The buckets' and logs' expiry moves with each check. There the grain is a quarter to a half of the
// time left, so that a counter in constant use leaves no more than about five copies behind.
func bucketFor(kind algorithms.Kind, expiry, now int64) int64 {
	// Two clocks and their rounding move a window's end by a second or so; it must not fall on a boundary.
	expiry = min(max(expiry, now), maxExpiry) + 2
	g := int64(grain)
	if kind.Bucket() || kind == algorithms.SlidingLog {
		g = max(g, coarse(expiry-now))
	}
	return (expiry + g - 1) / g * g
}

// coarse is the least power of two that is at least a quarter of left.
func coarse(left int64) int64 {
	quarter := max(1, (left+3)/4)
	return 1 << bits.Len64(uint64(quarter-1))
}

func bucketName(expiry int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(expiry)) }

// parseBucket returns the expiry that a bucket's name says, or false if it is none of ours.
func parseBucket(name []byte) (int64, bool) {
	if len(name) != 8 {
		return 0, false
	}
	e := int64(binary.BigEndian.Uint64(name))
	return e, e >= 0 && e%grain == 0
}

// expiries are the buckets that the file has, ascending.
type expiries []int64

func (x expiries) add(e int64) expiries {
	i, ok := slices.BinarySearch(x, e)
	if ok {
		return x
	}
	return slices.Insert(x, i, e)
}

// choose is the bucket for a counter: want, or where there are too many already, a later one that exists.
func (x expiries) choose(want int64) int64 {
	i, ok := slices.BinarySearch(x, want)
	if ok || len(x) < maxBuckets || i == len(x) {
		return want
	}
	return x[i]
}

// after returns the buckets that expire after e.
func (x expiries) after(e int64) expiries {
	i, _ := slices.BinarySearch(x, e+1)
	return x[i:]
}
