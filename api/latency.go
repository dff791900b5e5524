package api

import (
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/latency"
	"github.com/rlnode/rlnode/internal/metrics"
)

// latencyStripes is the number of copies of the counts. Requests on different
// processors then rarely write to the same cache line.
const latencyStripes = 8

// Latency counts the requests at a door, and is a histogram of how long its checks take.
type Latency struct {
	stripes [latencyStripes]LatencyStripe
	last    atomic.Uint32 // the stripe handed out last
}

// LatencyStripe is one of the copies of the counts.
type LatencyStripe struct {
	requests atomic.Int64
	buckets  [latency.Buckets]atomic.Uint64
	sum      atomic.Int64 // nanoseconds
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
	s.buckets[latency.Bucket(d)].Add(1)
	s.sum.Add(int64(d))
}

// Counts returns how many checks there were, by how long they took.
func (l *Latency) Counts() (counts latency.Counts) {
	for i := range l.stripes {
		for n := range l.stripes[i].buckets {
			counts[n] += int64(l.stripes[i].buckets[n].Load())
		}
	}
	return counts
}

// Metrics reports the counts of a door. name is the name of the histogram.
func (l *Latency) Metrics(s metrics.Sink, door, name, help string) {
	counts := l.Counts()
	var nanos, requests int64
	for i := range l.stripes {
		nanos += l.stripes[i].sum.Load()
		requests += l.stripes[i].requests.Load()
	}
	s.Count("requests_total", "Requests received at a door, probes included.", requests, "door", door)
	s.Histogram(name, help, metrics.Seconds(latency.Bounds[:]), counts[:], time.Duration(nanos).Seconds())
}
