package api

import (
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
)

// latencyStripes is the number of copies of the counts. Requests on different processors then rarely write to the same cache
// line.
const latencyStripes = 8

// latencyBounds are the upper bounds of the buckets of a Latency.
var latencyBounds = [...]time.Duration{
	time.Microsecond, 2500 * time.Nanosecond, 5 * time.Microsecond,
	10 * time.Microsecond, 25 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, time.Second,
}

// Latency counts the requests at a door, and is a histogram of how long its checks take.
type Latency struct {
	stripes [latencyStripes]LatencyStripe
	last    atomic.Uint32 // the stripe handed out last
}

// LatencyStripe is one of the copies of the counts.
type LatencyStripe struct {
	requests atomic.Int64
	buckets  [len(latencyBounds) + 1]atomic.Uint64 // the last counts checks beyond all bounds
	sum      atomic.Int64                          // nanoseconds
	_        [64]byte
}

// Stripe returns one of the copies in turn.
func (l *Latency) Stripe() *LatencyStripe {
	return &l.stripes[l.last.Add(1)%latencyStripes]
}

// Count counts a request.
func (s *LatencyStripe) Count() { s.requests.Add(1) }

// Observe counts a check that took d.
func (s *LatencyStripe) Observe(d time.Duration) {
	i := 0
	for i < len(latencyBounds) && d > latencyBounds[i] {
		i++
	}
	s.buckets[i].Add(1)
	s.sum.Add(int64(d))
}

// Metrics reports the counts of a door. name is the name of the histogram.
func (l *Latency) Metrics(s metrics.Sink, door, name, help string) {
	counts := make([]int64, len(latencyBounds)+1) // by bucket
	var nanos, requests int64
	for i := range l.stripes {
		stripe := &l.stripes[i]
		for n := range stripe.buckets {
			counts[n] += int64(stripe.buckets[n].Load())
		}
		nanos += stripe.sum.Load()
		requests += stripe.requests.Load()
	}
	s.Count("requests_total", "Requests answered at a door, probes included.", requests, "door", door)
	s.Histogram(name, help, metrics.Seconds(latencyBounds[:]), counts, time.Duration(nanos).Seconds())
}
