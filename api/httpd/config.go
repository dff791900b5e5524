package httpd

import (
	"time"

	"github.com/rlnode/rlnode/internal/tracing"
)

// Config configures the data plane, beyond the configuration that all doors share.
type Config struct {
	Addr string // host:port; port 0 picks a free one
	// ReadTimeout bounds the time from the first byte of a request to its last;
	// batches get three times as long. 0: 10 seconds.
	ReadTimeout time.Duration
	Tracer      *tracing.Tracer // records checks; nil: no tracing
}
