// Package latency has the buckets in which latencies are counted: at the doors,
// by rule, and in the history.
package latency

import "time"

// Buckets is the number of buckets.
const Buckets = 16

// Bounds are the upper bounds of the buckets, in ascending order. The last
// bucket, which has none, is for all that took longer.
var Bounds = [Buckets - 1]time.Duration{
	2500 * time.Nanosecond, 5 * time.Microsecond,
	10 * time.Microsecond, 25 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond,
	100 * time.Millisecond, time.Second,
}

// Bucket returns the index of the bucket that counts d.
func Bucket(d time.Duration) int {
	i := 0
	for i < len(Bounds) && d > Bounds[i] {
		i++
	}
	return i
}

// Counts has a number for each bucket.
type Counts [Buckets]int64

// Add adds other to c.
func (c *Counts) Add(other *Counts) {
	for i := range c {
		c[i] += other[i]
	}
}

// Sum returns how many latencies c has.
func (c *Counts) Sum() (n int64) {
	for _, count := range c {
		n += count
	}
	return n
}

// Quantile returns the latency that the fraction q of all, 0…1, did not exceed.
// It assumes that those in a bucket are spread evenly, and that those beyond
// the last bound took just that. It is 0 if c is empty.
func (c *Counts) Quantile(q float64) time.Duration {
	rank := q * float64(c.Sum())
	if rank == 0 {
		return 0
	}

	below := 0.0 // how many are in the buckets before i
	lower := time.Duration(0)
	for i, bound := range Bounds {
		n := float64(c[i])
		if n > 0 && below+n >= rank {
			return lower + time.Duration(float64(bound-lower)*(rank-below)/n)
		}
		below += n
		lower = bound
	}
	return lower
}
