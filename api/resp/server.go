package resp

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/latency"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/tracing"
)

// Bounds of the door in time.
const (
	// readTimeout bounds the time from a command's first byte to its last, and the
	// time until a token is shown, if one is needed.
	readTimeout  = 10 * time.Second
	idleTimeout  = time.Hour // clients keep connections for long, and expect them to stay open
	writeTimeout = 30 * time.Second
	// authLogPause is the least time between two log lines about callers that send
	// a token although none is needed.
	authLogPause = time.Minute
)

// Config configures the door, beyond the configuration that all doors share.
type Config struct {
	Addr   string                                     // host:port; port 0 picks a free one
	Listen func(address string) (net.Listener, error) // nil: api.Listen; tests have networks of their own
	Tracer *tracing.Tracer                            // records commands; nil: no tracing
}

// Server serves the commands of Redis that limit rates.
type Server struct {
	*api.Doors
	tracer     *tracing.Tracer // nil: no tracing
	addr       net.Addr
	conns      *api.Connections
	latency    api.Latency
	inputs     sync.Pool // of *input
	executions sync.Pool // of *execution
	checks     sync.Pool // of *check

	sessions  atomic.Int64 // how many there have been
	authNoted atomic.Int64 // when a needless AUTH was logged last, in Unix nanoseconds
	closing   atomic.Bool  // connections close after the reply in progress
}

// Open binds the door's address and starts serving.
func Open(doors *api.Doors, config Config) (*Server, error) {
	listen := config.Listen
	if listen == nil {
		listen = api.Listen
	}
	ln, err := listen(config.Addr)
	if err != nil {
		return nil, fmt.Errorf("open Redis protocol: %w", err)
	}

	s := &Server{Doors: doors, tracer: config.Tracer, addr: ln.Addr(), conns: doors.DataConnections()}
	s.conns.Serve(ln, s.begin)
	return s, nil
}

// Addr returns the address on which the door listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Latency returns the number of checks by duration.
func (s *Server) Latency() latency.Counts { return s.latency.Counts() }

// Metrics reports the door's metrics.
func (s *Server) Metrics(sink metrics.Sink) {
	s.latency.Metrics(sink, "redis", "redis_seconds",
		"Time from reading a check over the Redis protocol to its decision; those that arrived together are decided together.")
	s.conns.Metrics(sink, "redis")
}

// begin serves a new connection.
func (s *Server) begin(conn *api.Connection) api.Interrupter {
	session := s.newSession(conn)
	go func() {
		defer func() { _ = session.stream.Close() }() // an error changes nothing
		session.serve()
	}()
	return session
}

// Close stops accepting connections, closes those that are idle, waits for the
// commands in progress until ctx ends, and closes what is left.
func (s *Server) Close(ctx context.Context) error {
	s.closing.Store(true)
	err := s.conns.Stop(ctx)
	if err != nil {
		return fmt.Errorf("close Redis protocol: %w", err)
	}
	return nil
}

// readWithin returns how long a command may take to arrive.
func (s *Server) readWithin() time.Duration { return cmp.Or(s.Timeout, readTimeout) }

// noteNeedlessToken logs that a caller has sent a token although this node needs none.
func (s *Server) noteNeedlessToken(from net.Addr) {
	now := time.Now().UnixNano()
	last := s.authNoted.Load()
	// If several callers come at once, only one is logged.
	if now-last < int64(authLogPause) || !s.authNoted.CompareAndSwap(last, now) {
		return
	}
	s.Logger.Info("Redis protocol: a caller sends a password, but this node has no tokens and takes anybody's commands",
		"from", from.String())
}
