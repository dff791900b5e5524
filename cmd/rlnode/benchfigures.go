package main

import (
	"math/bits"
	"time"
)

// benchFigures holds what one connection has counted, or the sum over all connections.
type benchFigures struct {
	requests         int64
	allowed, refused int64 // checks
	errors           int64 // failed requests
	firstError       error
	latency          histogram
}

func (f *benchFigures) fail(err error) {
	f.errors++
	if f.firstError == nil {
		f.firstError = err
	}
}

func (f *benchFigures) merge(g *benchFigures) {
	f.requests += g.requests
	f.allowed += g.allowed
	f.refused += g.refused
	f.errors += g.errors
	if f.firstError == nil {
		f.firstError = g.firstError
	}
	f.latency.merge(&g.latency)
}

// histogram counts durations in 32 steps per power of two nanoseconds, which is
// accurate to within 3 %.
type histogram struct {
	counts [64 * steps]int64
	total  int64
	most   time.Duration
}

const (
	stepBits = 5
	steps    = 1 << stepBits
)

func (h *histogram) add(d time.Duration) {
	d = max(d, 1)
	h.counts[bucketOf(uint64(d))]++
	h.total++
	h.most = max(h.most, d)
}

func bucketOf(n uint64) int {
	power := bits.Len64(n) - 1
	if power < stepBits {
		return int(n)
	}
	return (power-stepBits+1)*steps + int(n>>(power-stepBits)&(steps-1))
}

// bucketEnd returns the largest duration in a bucket.
func bucketEnd(i int) time.Duration {
	if i < steps {
		return time.Duration(i)
	}
	power := i/steps - 1
	return time.Duration((uint64(steps+i%steps)+1)<<power - 1)
}

func (h *histogram) merge(g *histogram) {
	for i, n := range g.counts {
		h.counts[i] += n
	}
	h.total += g.total
	h.most = max(h.most, g.most)
}

// quantile returns the q-quantile (0…1): a fraction q of all durations is at most that long.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(q * float64(h.total))
	for i, n := range h.counts {
		rank -= n
		if rank < 0 {
			return min(bucketEnd(i), h.most)
		}
	}
	return h.most
}
