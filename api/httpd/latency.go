package httpd

import (
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/figures"
)

// latencyStripes is how many copies of the counts there are, so that checks on different processors rarely write to the
// same cache line.
const latencyStripes = 8

// latencyBounds are the upper bounds of the buckets of rlnode_check_seconds.
var latencyBounds = [...]time.Duration{
	time.Microsecond, 2500 * time.Nanosecond, 5 * time.Microsecond,
	10 * time.Microsecond, 25 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, time.Second,
}

// latency is a histogram of how long checks take.
type latency struct {
	stripes [latencyStripes]latencyStripe
	last    atomic.Uint32 // the stripe handed out last
}

type latencyStripe struct {
	buckets [len(latencyBounds) + 1]atomic.Uint64 // the last is beyond all bounds
	sum     atomic.Int64                          // nanoseconds
	_       [64]byte
}

// stripe hands out one of the copies.
func (l *latency) stripe() *latencyStripe {
	return &l.stripes[l.last.Add(1)%latencyStripes]
}

func (s *latencyStripe) observe(d time.Duration) {
	i := 0
	for i < len(latencyBounds) && d > latencyBounds[i] {
		i++
	}
	s.buckets[i].Add(1)
	s.sum.Add(int64(d))
}

// read sums the copies: the number of checks per bucket, with those beyond all bounds last, and their total time in
// seconds.
func (l *latency) read() (counts []int64, sum float64) {
	counts = make([]int64, len(latencyBounds)+1)
	var nanos int64
	for i := range l.stripes {
		s := &l.stripes[i]
		for n := range s.buckets {
			counts[n] += int64(s.buckets[n].Load())
		}
		nanos += s.sum.Load()
	}
	return counts, time.Duration(nanos).Seconds()
}

// Figures shows what the data plane counts.
func (s *Server) Figures(sink figures.Sink) {
	counts, sum := s.plane.latency.read()
	sink.Histogram("check_seconds", "Time from a check's body to its answer, single checks.", figures.Seconds(latencyBounds[:]), counts, sum)
	sink.Level("waiting", "Answers of checks with wait that are held back now.", int(s.waiting.count()))
	sink.Level("waiting_max", "Bound on the answers held back at once.", int(s.waiting.most))
	sink.Count("wait_refused_total", "Checks with wait that were answered at once because too many were held back.", s.waiting.turned.Load())
	s.conns.Figures(sink, "data")
}
