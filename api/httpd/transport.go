package httpd

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/api"
)

// transport is the state that all connections of the data plane share.
type transport struct {
	began time.Time
	// slack is how late deadlines may fire; 0: they are set at once and exactly, even for a read or write in progress.
	slack time.Duration
	// fast answers input that was read where a request begins; nil: no fast path. If it reports false, the library gets the
	// input.
	fast func(*connection, []byte) (bool, error)
	// framed means that connections check the framing. With TLS, securedListener does, above the encryption.
	framed bool
}

// listener wraps accepted connections for a transport.
type listener struct {
	net.Listener
	*transport
}

// Accept waits for the next connection.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.wrap(api.Unwrap[*api.Connection](c)), nil
}

func (t *transport) wrap(c *api.Connection) *connection {
	return &connection{Connection: c, transport: t}
}

// connection is a connection of the data plane.
type connection struct {
	*api.Connection
	transport *transport

	reading, writing deadline // used only if the transport has slack

	// betweenRequests is true while the library waits for the next request and has read none of it. Only the goroutine that
	// serves the connection uses it.
	betweenRequests bool
	frame           framing
	head            fastHead     // of the last request that was answered on the fast path
	fastState       atomic.Int32 // the state of the fast path
}

// The states of the fast path on a connection.
const (
	fastIdle      int32 = iota
	fastAnswering       // a request is being answered
	fastLast            // a request is being answered, and the connection closes after it
	fastClosed          // the connection is closed
)

// beginFast starts answering a request on the fast path. It reports false if the connection is closed.
func (c *connection) beginFast() bool { return c.fastState.CompareAndSwap(fastIdle, fastAnswering) }

// isClosed reports whether the connection is closed.
func (c *connection) isClosed() bool { return c.fastState.Load() == fastClosed }

// closesAfterAnswer reports whether the connection closes after the answer in progress.
func (c *connection) closesAfterAnswer() bool { return c.fastState.Load() == fastLast }

// endFast finishes an answer. If Close was called in the meantime, it closes the connection and reports true.
func (c *connection) endFast() bool {
	if c.fastState.CompareAndSwap(fastAnswering, fastIdle) {
		return false
	}
	c.fastState.Store(fastClosed)
	_ = c.Connection.Close() // Close has already returned nil
	return true
}

// Close closes the connection, at once or after the answer in progress.
func (c *connection) Close() error {
	for !c.fastState.CompareAndSwap(fastIdle, fastClosed) {
		if c.fastState.CompareAndSwap(fastAnswering, fastLast) {
			return nil
		}
		switch c.fastState.Load() {
		case fastLast:
			return nil
		case fastClosed:
			return c.Connection.Close()
		}
	}
	return c.Connection.Close()
}

// SetDeadline bounds the next reads and writes.
func (c *connection) SetDeadline(t time.Time) error {
	if c.transport.slack == 0 {
		return c.Connection.SetDeadline(t)
	}
	c.reading.request(t, c.transport.began)
	c.writing.request(t, c.transport.began)
	return nil
}

// SetReadDeadline bounds the next reads.
func (c *connection) SetReadDeadline(t time.Time) error {
	if c.transport.slack == 0 {
		return c.Connection.SetReadDeadline(t)
	}
	c.reading.request(t, c.transport.began)
	return nil
}

// SetWriteDeadline bounds the next writes.
func (c *connection) SetWriteDeadline(t time.Time) error {
	if c.transport.slack == 0 {
		return c.Connection.SetWriteDeadline(t)
	}
	c.writing.request(t, c.transport.began)
	return nil
}

// Write sends b.
func (c *connection) Write(b []byte) (int, error) {
	if slack := c.transport.slack; slack > 0 {
		if t, moves := c.writing.pendingMove(c.transport.began, slack); moves {
			if err := c.Connection.SetWriteDeadline(t); err != nil {
				return 0, err
			}
		}
	}
	return c.Connection.Write(b)
}

// Read returns received bytes, except for requests that the fast path has answered.
func (c *connection) Read(b []byte) (int, error) {
	if c.frame.err != nil {
		return 0, c.frame.err
	}
	for {
		n, err := c.receive(b)
		if n == 0 || err != nil || !c.betweenRequests || c.transport.fast == nil {
			return c.checkFraming(b[:n], err)
		}
		done, err := c.transport.fast(c, b[:n])
		if err != nil {
			return 0, err
		}
		if !done {
			return c.checkFraming(b[:n], nil)
		}
	}
}

// checkFraming turns b and err, read from the underlying connection, into the result of Read. If framed is set, it checks the
// framing.
func (c *connection) checkFraming(b []byte, err error) (int, error) {
	if !c.transport.framed {
		return len(b), err
	}
	return c.frame.filter(b, err)
}

// receive reads from the underlying connection.
func (c *connection) receive(b []byte) (int, error) {
	if slack := c.transport.slack; slack > 0 {
		if t, moves := c.reading.pendingMove(c.transport.began, slack); moves {
			if err := c.Connection.SetReadDeadline(t); err != nil {
				return 0, err
			}
		}
	}
	return c.Connection.Read(b)
}

// NetConn returns the underlying connection.
func (c *connection) NetConn() net.Conn { return c.Connection }
