package httpd

import (
	"github.com/rlnode/rlnode/internal/latency"
	"github.com/rlnode/rlnode/internal/metrics"
)

// Latency returns how many single checks there were, by how long they took.
func (s *Server) Latency() latency.Counts { return s.handlers.latency.Counts() }

// Metrics reports the data plane's metrics.
func (s *Server) Metrics(sink metrics.Sink) {
	s.handlers.latency.Metrics(sink, "data", "check_seconds", "Time from a check's body to its answer, single checks.")
	sink.Level("waiting", "Answers of checks with wait that are held back now.", int(s.held.count()))
	sink.Level("waiting_max", "Bound on the answers held back at once.", int(s.held.capacity))
	sink.Count("wait_refused_total",
		"Checks with wait that were answered at once, because the bound on held answers was reached.",
		s.held.refused.Load())
	s.conns.Metrics(sink, "data")
}
