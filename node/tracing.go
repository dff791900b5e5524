package node

import (
	"context"
	"errors"
	"time"

	"github.com/rlnode/rlnode/internal/tracing"
)

// flushBound is for the spans that wait when the node stops.
const flushBound = time.Second

// tracing is where spans go.
func (c *settings) tracing() *tracing.Config {
	return &tracing.Config{
		Endpoint: c.OTLPEndpoint, Ratio: c.TraceRatio, Node: c.Name, Version: Version(), Region: c.Region, Logger: c.Logger,
	}
}

// openTracing begins to trace, if there is somebody to tell.
func (n *Node) openTracing() (err error) {
	if n.config.OTLPEndpoint == "" {
		return nil
	}
	if n.tracer, err = tracing.Open(*n.config.tracing()); err != nil {
		return err
	}
	n.atEnd(n.closeTracing)
	return nil
}

// closeTracing sends what waits. A collector that does not take it in time is no failure of this node.
func (n *Node) closeTracing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushBound)
	defer cancel()
	if err := n.tracer.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		n.log.Warn("not all spans were sent", "error", err)
	}
	return nil
}
