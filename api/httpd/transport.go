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
	// quick answers input that was read where a request begins; nil: no quick way. If it reports false, the library gets the
	// input.
	quick func(*connection, []byte) (bool, error)
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
	return l.over(api.Unwrap[*api.Connection](c)), nil
}

func (t *transport) over(c *api.Connection) *connection {
	return &connection{Connection: c, transport: t}
}

// connection is a connection of the data plane.
type connection struct {
	*api.Connection
	transport *transport

	reading, writing deadline // used only if the transport has slack

	// between is true while the library waits for the next request and has read none of it. Only the goroutine that serves the
	// connection uses it.
	between bool
	frame   framing
	head    quickHead    // of the last request that was answered the quick way
	work    atomic.Int32 // the state of the quick way
}

// The states of the quick way on a connection.
const (
	workNone   int32 = iota
	workAnswer       // a request is being answered
	workLast         // a request is being answered, and the connection closes after it
	workClosed       // the connection is closed
)

// begin starts answering a request the quick way. It reports false if the connection is closed.
func (c *connection) begin() bool { return c.work.CompareAndSwap(workNone, workAnswer) }

// ending reports whether the connection closes after the answer in progress.
func (c *connection) ending() bool { return c.work.Load() == workLast }

// end finishes an answer. If Close was called in the meantime, it closes the connection and reports true.
func (c *connection) end() bool {
	if c.work.CompareAndSwap(workAnswer, workNone) {
		return false
	}
	c.work.Store(workClosed)
	_ = c.Connection.Close() // Close has already returned nil
	return true
}

// Close closes the connection, at once or after the answer in progress.
func (c *connection) Close() error {
	for !c.work.CompareAndSwap(workNone, workClosed) {
		if c.work.CompareAndSwap(workAnswer, workLast) {
			return nil
		}
		switch c.work.Load() {
		case workLast:
			return nil
		case workClosed:
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
	c.reading.ask(t, c.transport.began)
	c.writing.ask(t, c.transport.began)
	return nil
}

// SetReadDeadline bounds the next reads.
func (c *connection) SetReadDeadline(t time.Time) error {
	if c.transport.slack == 0 {
		return c.Connection.SetReadDeadline(t)
	}
	c.reading.ask(t, c.transport.began)
	return nil
}

// SetWriteDeadline bounds the next writes.
func (c *connection) SetWriteDeadline(t time.Time) error {
	if c.transport.slack == 0 {
		return c.Connection.SetWriteDeadline(t)
	}
	c.writing.ask(t, c.transport.began)
	return nil
}

// Write sends b.
func (c *connection) Write(b []byte) (int, error) {
	if slack := c.transport.slack; slack > 0 {
		if t, moves := c.writing.next(c.transport.began, slack); moves {
			if err := c.Connection.SetWriteDeadline(t); err != nil {
				return 0, err
			}
		}
	}
	return c.Connection.Write(b)
}

// Read returns received bytes, except for requests that the quick way has answered.
func (c *connection) Read(b []byte) (int, error) {
	if c.frame.err != nil {
		return 0, c.frame.err
	}
	for {
		n, err := c.receive(b)
		if n == 0 || err != nil || !c.between || c.transport.quick == nil {
			return c.follow(b[:n], err)
		}
		done, err := c.transport.quick(c, b[:n])
		if err != nil {
			return 0, err
		}
		if !done {
			return c.follow(b[:n], nil)
		}
	}
}

// follow turns b and err, read from the underlying connection, into the result of Read. It checks the framing if framed is set.
func (c *connection) follow(b []byte, err error) (int, error) {
	if !c.transport.framed {
		return len(b), err
	}
	return c.frame.filter(b, err)
}

// receive reads from the underlying connection.
func (c *connection) receive(b []byte) (int, error) {
	if slack := c.transport.slack; slack > 0 {
		if t, moves := c.reading.next(c.transport.began, slack); moves {
			if err := c.Connection.SetReadDeadline(t); err != nil {
				return 0, err
			}
		}
	}
	return c.Connection.Read(b)
}

// NetConn returns the underlying connection.
func (c *connection) NetConn() net.Conn { return c.Connection }
