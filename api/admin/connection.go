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

// checkedListener checks the framing of what arrives before net/http reads it, by the rules of the data plane.
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
	serving  atomic.Bool // a handler is running
	answered bool        // Read has answered what could not be read
}

// Read returns received bytes that pass the framing. It answers what does not, if that is a head: net/http would say less.
func (c *checkedConn) Read(b []byte) (int, error) {
	n, err := 0, c.frame.Err()
	if err == nil {
		n, err = c.Conn.Read(b)
		n, err = c.frame.Filter(b[:n], err)
	}

	refused, ok := err.(framing.Error)
	if !ok || n > 0 || c.serving.Load() {
		return n, err
	}

	if !c.answered {
		c.answered = true
		c.tracked.Linger()
		_, _ = c.Conn.Write(refusal(refused)) // an error changes nothing
	}

	return 0, &net.OpError{Op: "read", Net: "tcp", Err: refused} // after which net/http says nothing
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

// noteState follows whether net/http waits for a request.
func noteState(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(*checkedConn); ok {
		c.idle.Store(state == http.StateIdle)
	}
}

// connectionKey is the context key for the connection of a request.
type connectionKey struct{}

func noteConnection(ctx context.Context, c net.Conn) context.Context {
	if checked, ok := c.(*checkedConn); ok {
		ctx = context.WithValue(ctx, servingKey{}, &checked.serving)
	}
	return context.WithValue(ctx, connectionKey{}, api.Unwrap[*api.Connection](c))
}

// servingKey is the context key for what notes that a handler is running.
type servingKey struct{}

// connectionOf returns the connection of a request; nil if it is unknown.
func connectionOf(r *http.Request) *api.Connection {
	c, _ := r.Context().Value(connectionKey{}).(*api.Connection)
	return c
}

// onConnection tells a connection that its request is being answered, closes one that holds a spare slot after one request,
// and answers only probes on it.
func (s *Server) onConnection(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := connectionOf(r)
		if c == nil {
			next.ServeHTTP(w, r)
			return
		}

		w = &answerWriter{ResponseWriter: w, server: s, conn: c}
		if !c.Answer() {
			panic(http.ErrAbortHandler) // its place is taken, and so it is closed
		}

		defer func() { c.Await(time.Now()) }()

		if serving, ok := r.Context().Value(servingKey{}).(*atomic.Bool); ok {
			serving.Store(true)
			defer serving.Store(false)
		}

		if c.ProbesOnly {
			w.Header().Set("Connection", "close")
			if r.RequestURI != "/healthz" && r.RequestURI != "/readyz" {
				s.sendError(w, r, api.CrowdedError())
				return
			}
		}

		if c.IsWornOut() {
			w.Header().Set("Connection", "close")
		}

		next.ServeHTTP(w, r)
	})
}

// awaitBody notes that r's connection waits for a body while read is running.
func awaitBody(r *http.Request, read func() ([]byte, error)) ([]byte, error) {
	c := connectionOf(r)
	if c == nil {
		return read()
	}
	c.Await(time.Now())
	body, err := read()
	if !c.Answer() {
		panic(http.ErrAbortHandler) // as in onConnection
	}
	return body, err
}
