package main

import (
	"math/bits"
	"time"
)

const (
	octaveParts = 64 // buckets per doubling: a quantile is accurate to 1.6 %
	octaves     = 34 // up to 18 minutes
)

// latencies counts durations by size. The zero value is empty.
type latencies struct {
	buckets [octaves * octaveParts]int64
	count   int64
}

// add counts one duration.
func (l *latencies) add(d time.Duration) {
	l.buckets[bucketOf(uint64(max(d, 0)))]++
	l.count++
}

// bucketOf returns the bucket of n: linear up to octaveParts, logarithmic beyond.
func bucketOf(n uint64) int {
	if n < octaveParts {
		return int(n)
	}
	octave := bits.Len64(n) - bits.Len64(octaveParts) // how many times to halve n until it is below 2 × octaveParts
	return min((octave+1)*octaveParts+int(n>>octave)-octaveParts, octaves*octaveParts-1)
}

// middleOf returns the middle of a bucket.
func middleOf(bucket int) time.Duration {
	if bucket < octaveParts {
		return time.Duration(bucket)
	}
	octave := bucket/octaveParts - 1
	low := uint64(bucket%octaveParts+octaveParts) << octave
	return time.Duration(low + uint64(1)<<octave/2)
}

// merge adds the counts of other.
func (l *latencies) merge(other *latencies) {
	for i, n := range other.buckets {
		l.buckets[i] += n
	}
	l.count += other.count
}

// quantile returns the q-quantile: a fraction q of all durations is at most
// that long. It returns 0 without any.
func (l *latencies) quantile(q float64) time.Duration {
	if l.count == 0 {
		return 0
	}
	rank := max(1, int64(q*float64(l.count)+0.5))
	for i, n := range l.buckets {
		rank -= n
		if rank <= 0 {
			return middleOf(i)
		}
	}
	return middleOf(len(l.buckets) - 1)
}
