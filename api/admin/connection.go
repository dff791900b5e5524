package admin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/api/framing"
)

// checkedListener checks the framing of what arrives before net/http reads it,
// by the rules of the data plane.
type checkedListener struct{ net.Listener }

// Accept waits for the next connection.
func (l checkedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &checkedConn{Conn: c, tracked: api.Unwrap[*api.Connection](c)}, nil
}

// checkedConn is a connection as net/http sees it.
type checkedConn struct {
	net.Conn
	tracked  *api.Connection
	frame    framing.Checker
	idle     atomic.Bool // net/http waits for the next request
	answered bool        // Read has answered an unreadable request; nothing follows
}

// Read returns received bytes that pass the framing. It answers a head that
// does not pass, because net/http's answer would say less.
func (c *checkedConn) Read(b []byte) (int, error) {
	n := 0
	err := c.frame.Err()
	if err == nil {
		n, err = c.Conn.Read(b)
		n, err = c.frame.Filter(b[:n], err)
	}

	refused, ok := err.(framing.Error)
	switch {
	case !ok:
		return n, err
	case n > 0:
		return n, nil // what was read before has its answer first
	case c.frame.BodyRefused():
		return 0, err // the handler gets the error, and answers
	case len(b) == 1:
		// While a handler runs, net/http reads one byte, to learn whether the caller
		// hangs up. The caller has not hung up. Its next request is refused once
		// net/http reads it.
		b[0] = 0
		return 1, nil
	}

	if !c.answered {
		c.answered = true
		c.tracked.Linger()
		_, _ = c.Conn.Write(refusal(refused)) // an error changes nothing
	}

	return 0, &net.OpError{Op: "read", Net: "tcp", Err: refused} // after this error, net/http goes on to nothing else
}

// Write sends net/http's answers. After Read has answered a refused head,
// net/http answers it as well, and Write drops that answer.
func (c *checkedConn) Write(b []byte) (int, error) {
	if c.answered {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// refusal returns the answer to a request that can be read in two ways.
func refusal(why framing.Error) []byte {
	e := api.FramingError(why)
	if why == framing.ErrHeadTooLarge {
		e = api.HeadTooLargeError(framing.MaxHead)
	}
	body := codec.AppendProblem(nil, e)
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		e.Status(), http.StatusText(e.Status()), codec.TypeProblem, len(body), body)
}

// SetReadDeadline bounds the next reads. A stranger may not idle for long.
func (c *checkedConn) SetReadDeadline(t time.Time) error {
	if c.idle.Load() && !t.IsZero() {
		now := time.Now()
		t = now.Add(c.tracked.IdleTimeout(t.Sub(now)))
	}
	return c.Conn.SetReadDeadline(t)
}

// NetConn returns the underlying connection.
func (c *checkedConn) NetConn() net.Conn { return c.Conn }

// followConnState follows whether net/http waits for a request.
func followConnState(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(*checkedConn); ok {
		c.idle.Store(state == http.StateIdle)
	}
}

// connectionKey is the context key for the connection of a request.
type connectionKey struct{}

func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, api.Unwrap[*api.Connection](c))
}

// connectionOf returns the connection of a request; nil if it is unknown.
func connectionOf(r *http.Request) *api.Connection {
	c, _ := r.Context().Value(connectionKey{}).(*api.Connection)
	return c
}

// onConnection tells a connection that its request is being answered. On a
// spare seat, it answers only probes, and closes the connection after one
// request.
func (s *Server) onConnection(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := connectionOf(r)
		if c == nil {
			next.ServeHTTP(w, r)
			return
		}

		w = &answerWriter{ResponseWriter: w, server: s, conn: c}
		if !c.BeginAnswer() {
			panic(http.ErrAbortHandler) // it has lost its seat, and is closed
		}

		defer func() { c.BeginWait(time.Now()) }()

		if c.ProbesOnly {
			w.Header().Set("Connection", "close")
			if r.RequestURI != "/healthz" && r.RequestURI != "/readyz" {
				s.sendError(w, r, api.CrowdedError())
				return
			}
		}

		if c.HasUsedUpRequests() {
			w.Header().Set("Connection", "close")
		}

		next.ServeHTTP(w, r)
	})
}

// awaitBody records that r's connection waits for a body while read is running.
func awaitBody(r *http.Request, read func() ([]byte, error)) ([]byte, error) {
	c := connectionOf(r)
	if c == nil {
		return read()
	}
	c.BeginWait(time.Now())
	body, err := read()
	if !c.BeginAnswer() {
		panic(http.ErrAbortHandler) // it has lost its seat, and is closed
	}
	return body, err
}
