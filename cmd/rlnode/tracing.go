package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/tracing"
)

// flushBound is for the spans that wait when the node stops.
const flushBound = time.Second

// tracing is where spans go.
func (c *serveCmd) tracing(log *slog.Logger) *tracing.Config {
	return &tracing.Config{
		Endpoint: c.OTLPEndpoint, Ratio: c.TraceRatio, Node: c.Name, Version: readBuild().Version, Region: c.Region, Logger: log,
	}
}

// openTracing begins to trace, if there is somebody to tell.
func (s *server) openTracing() (err error) {
	if s.settings.OTLPEndpoint == "" {
		return nil
	}
	s.tracer, err = tracing.Open(*s.settings.tracing(s.log))
	return err
}

// closeTracing sends what waits. A collector that does not take it in time is no failure of this node.
func (s *server) closeTracing(ctx context.Context) {
	if s.tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushBound)
	defer cancel()
	if err := s.tracer.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("not all spans were sent", "error", err)
	}
}
