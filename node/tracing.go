package node

import (
	"context"
	"errors"
	"time"

	"github.com/rlnode/rlnode/internal/tracing"
)

// flushTimeout bounds sending the queued spans when the node stops.
const flushTimeout = time.Second

// tracing returns where spans are sent.
func (s *settings) tracing() *tracing.Config {
	return &tracing.Config{
		Endpoint: s.OTLPEndpoint, Ratio: s.TraceRatio, Node: s.Name, Version: Version(),
		Region: s.Region, Logger: s.Logger,
	}
}

// openTracing starts tracing if a collector is configured.
func (n *Node) openTracing() (err error) {
	if n.config.OTLPEndpoint == "" {
		return nil
	}

	n.tracer, err = tracing.Open(*n.config.tracing())
	if err != nil {
		return err
	}
	n.onRelease(n.closeTracing)
	return nil
}

// closeTracing sends the queued spans. A collector that is too slow is not an error of this node.
func (n *Node) closeTracing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()

	if err := n.tracer.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		n.log.Warn("not all spans were sent", "error", err)
	}
	return nil
}
