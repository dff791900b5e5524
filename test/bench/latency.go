package main

import (
	"math/bits"
	"time"
)

const (
	octaveParts = 64 // buckets for each doubling: a quantile is right to 1.6 %
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

// bucketOf is linear up to octaveParts, and from there on logarithmic.
func bucketOf(n uint64) int {
	if n < octaveParts {
		return int(n)
	}
	octave := bits.Len64(n) - bits.Len64(octaveParts) // how often n is to be halved until it is below 2 × octaveParts
	return min((octave+1)*octaveParts+int(n>>octave)-octaveParts, octaves*octaveParts-1)
}

// middleOf is the middle of a bucket.
func middleOf(bucket int) time.Duration {
	if bucket < octaveParts {
		return time.Duration(bucket)
	}
	octave := bucket/octaveParts - 1
	low := uint64(bucket%octaveParts+octaveParts) << octave
	return time.Duration(low + uint64(1)<<octave/2)
}

// merge adds what other has counted.
func (l *latencies) merge(other *latencies) {
	for i, n := range other.buckets {
		l.buckets[i] += n
	}
	l.count += other.count
}

// quantile is the duration that a part q of all was not above; 0 if nothing was counted.
func (l *latencies) quantile(q float64) time.Duration {
	if l.count == 0 {
		return 0
	}
	rank := max(1, int64(q*float64(l.count)+0.5))
	for i, n := range l.buckets {
		if rank -= n; rank <= 0 {
			return middleOf(i)
		}
	}
	return middleOf(len(l.buckets) - 1)
}
