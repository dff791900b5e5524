package httpd

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/framing"
	"github.com/rlnode/rlnode/internal/rawconn"
)

// transport is the state that all connections of the data plane share.
type transport struct {
	began time.Time
	// slack is how late deadlines may fire; 0: they are set at once and exactly,
	// even for a read or write in progress.
	slack time.Duration
	// fast answers input that was read where a request begins; nil: no fast path.
	// If it reports false, the library gets the input.
	fast    func(*connection, []byte) (bool, error)
	tls     *tls.Config // nil: plain text
	buffers inputBuffers
}

// inputBuffers lends the buffers that input is read into.
type inputBuffers struct{ pool sync.Pool }

// inputSize is the size of these buffers in bytes. Any head fits.
const inputSize = dataHeaderBytes

// Get returns a buffer.
func (p *inputBuffers) Get() []byte {
	b, ok := p.pool.Get().(*[inputSize]byte)
	if !ok {
		b = new([inputSize]byte)
	}
	return b[:]
}

// Put takes a buffer back. It ignores any other slice.
func (p *inputBuffers) Put(b []byte) {
	if cap(b) == inputSize {
		p.pool.Put((*[inputSize]byte)(b[:inputSize]))
	}
}

// smallInput is the size of the buffer that each connection with TLS keeps. It
// can't wait without one, because TLS does not tell what it has buffered.
// Longer input takes several reads.
const smallInput = 512

func (t *transport) wrap(c *api.Connection) *connection {
	conn := &connection{Connection: c, stream: c, transport: t}
	conn.consume = conn.beginRequest

	if t.tls != nil {
		conn.stream = tls.Server(c, t.tls)
		conn.small = make([]byte, smallInput)
		return conn
	}

	conn.pooled, _ = c.Conn.(rawconn.PooledReader)
	return conn
}

// connection is a connection of the data plane. While it waits for a request it
// holds little, because most of the time most connections do.
type connection struct {
	*api.Connection
	stream    net.Conn // what requests come over: the Connection, or TLS on top of it
	transport *transport
	pooled    rawconn.PooledReader // waits for input without a buffer; nil: there is no such way
	consume   rawconn.Consumer     // beginRequest
	small     []byte               // receives input with TLS

	reading, writing deadline // used only if the transport has slack

	frame framing.Checker
	// handled counts the requests that frame has passed on and the library has begun to answer.
	handled int
	head    fastHead     // of the last request that was answered on the fast path
	state   atomic.Int32 // whether a request is in progress
}

// The states of a connection.
const (
	stateIdle    int32 = iota // nothing of a request has arrived
	stateServing              // a request is in progress
	stateLast                 // a request is in progress, and the connection closes after it
	stateClosed               // the connection is closed
)

// begin notes that a request begins. It reports false if the connection is closed.
func (c *connection) begin() bool { return c.state.CompareAndSwap(stateIdle, stateServing) }

// isClosed reports whether the connection is closed.
func (c *connection) isClosed() bool { return c.state.Load() == stateClosed }

// closesAfterAnswer reports whether the connection closes after the answer in
// progress: Close has been called, or the caller has used up its requests.
func (c *connection) closesAfterAnswer() bool {
	return c.state.Load() == stateLast || c.HasUsedUpRequests()
}

// end notes that a request is over. It reports false if Close was called in the
// meantime. Close has then returned nil, and the caller of end must close the
// connection.
func (c *connection) end() bool { return c.state.CompareAndSwap(stateServing, stateIdle) }

// Close closes the connection, at once or after the request in progress.
func (c *connection) Close() error {
	for {
		state := c.state.Load()
		switch state {
		case stateServing:
			// The request in progress is answered. Then end makes its caller close the
			// connection.
			if c.state.CompareAndSwap(state, stateLast) {
				return nil
			}
		case stateLast:
			return nil
		default:
			if c.state.CompareAndSwap(state, stateClosed) {
				return c.stream.Close()
			}
		}
	}
}

// Interrupt implements api.Interrupter.
func (c *connection) Interrupt() { _ = c.Close() }

// closeNow closes the connection, whatever is in progress. An error changes nothing for a server.
func (c *connection) closeNow() error {
	c.state.Store(stateClosed)
	return c.stream.Close()
}

// handshake prepares the connection for its first request: with TLS, it makes it secure.
func (c *connection) handshake(timeout time.Duration) error {
	secured, ok := c.stream.(*tls.Conn)
	if !ok {
		return nil
	}
	// This bypasses c.SetDeadline, which only records deadlines for c's own reads
	// and writes, and not for those of the handshake.
	if err := c.Connection.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if err := secured.HandshakeContext(context.Background()); err != nil {
		return err
	}
	return c.Connection.SetDeadline(time.Time{})
}

// SetDeadline bounds the next reads and writes.
func (c *connection) SetDeadline(t time.Time) error {
	if c.transport.slack == 0 {
		return c.stream.SetDeadline(t)
	}
	c.reading.request(t, c.transport.began)
	c.writing.request(t, c.transport.began)
	return nil
}

// SetReadDeadline bounds the next reads.
func (c *connection) SetReadDeadline(t time.Time) error {
	if c.transport.slack == 0 {
		return c.stream.SetReadDeadline(t)
	}
	c.reading.request(t, c.transport.began)
	return nil
}

// SetWriteDeadline bounds the next writes.
func (c *connection) SetWriteDeadline(t time.Time) error {
	if c.transport.slack == 0 {
		return c.stream.SetWriteDeadline(t)
	}
	c.writing.request(t, c.transport.began)
	return nil
}

// Write sends b.
func (c *connection) Write(b []byte) (int, error) {
	if slack := c.transport.slack; slack > 0 {
		if t, moves := c.writing.moveIfDue(c.transport.began, slack); moves {
			if err := c.stream.SetWriteDeadline(t); err != nil {
				return 0, err
			}
		}
	}
	return c.stream.Write(b)
}

// Read returns received bytes. It does not check their framing.
func (c *connection) Read(b []byte) (int, error) {
	if err := c.applyReadDeadline(); err != nil {
		return 0, err
	}
	return c.stream.Read(b)
}

// receive waits for input. If consume takes the input, receive puts the buffer
// back and waits for more. Otherwise it returns the input in a buffer, which
// the caller must put back: at least one byte, or an error. A nil consume takes
// nothing.
func (c *connection) receive(consume rawconn.Consumer) (b []byte, err error) {
	if c.pooled == nil {
		return c.receiveInto(consume)
	}
	if err := c.applyReadDeadline(); err != nil {
		return nil, err
	}

	b, err = c.pooled.ReadPooled(&c.transport.buffers, consume)
	// This read was not made by api.Connection, which would have noted it.
	if err == nil && !c.NoteInput() {
		c.transport.buffers.Put(b)
		return nil, net.ErrClosed
	}

	return b, err
}

// receiveInto is receive for a connection that can't wait without a buffer.
func (c *connection) receiveInto(consume rawconn.Consumer) ([]byte, error) {
	for {
		b := c.small
		if b == nil {
			b = c.transport.buffers.Get()
		}

		n, err := c.Read(b)
		if n == 0 {
			c.transport.buffers.Put(b)
			return nil, err
		}

		// If the read has also failed, the next one returns the error again.
		if consume == nil {
			return b[:n], nil
		}
		taken, err := consume(b[:n])
		if !taken && err == nil {
			return b[:n], nil
		}

		c.transport.buffers.Put(b)
		if err != nil {
			return nil, err
		}
	}
}

// beginRequest begins the request whose first bytes are input, and answers it
// if it is for the fast path. It is a [rawconn.Consumer], so it must not read
// from the connection, nor close it, which may read. The caller of receive
// closes it.
func (c *connection) beginRequest(input []byte) (answered bool, err error) {
	if !c.NoteInput() || !c.begin() {
		return false, net.ErrClosed
	}
	c.TakeTurn(1)
	if c.transport.fast == nil {
		return false, nil
	}

	// The framing need not see what the fast path takes: that is exactly one
	// complete request, so what comes next begins another.
	answered, err = c.transport.fast(c, input)
	if !answered || err != nil {
		return answered, err
	}
	if !c.end() {
		return true, net.ErrClosed
	}

	return true, c.applyReadDeadline()
}

// applyReadDeadline moves the deadline of the stream if it must.
func (c *connection) applyReadDeadline() error {
	slack := c.transport.slack
	if slack == 0 {
		return nil
	}
	t, moves := c.reading.moveIfDue(c.transport.began, slack)
	if !moves {
		return nil
	}
	return c.stream.SetReadDeadline(t)
}

// NetConn returns the underlying connection.
func (c *connection) NetConn() net.Conn { return c.Connection }
