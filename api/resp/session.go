package resp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/rawconn"
)

const (
	// inputSize is how many bytes are read at once; commands in one read are decided together.
	inputSize = 16 << 10
	// headroom is the space in front of the input, for the beginning of a
	// command that arrived before.
	headroom = 2 << 10
	// smallInput is the size of a TLS connection's own buffer: TLS does not tell
	// whether it has anything to read.
	smallInput = 512
	// keptPending is the capacity up to which a buffer for the beginning of a
	// command is kept while nothing is in it.
	keptPending = 512
	// placesFactor is how many times its bytes an incomplete command may take. The
	// reader notes where each argument is: an argument has at least 6 bytes, and
	// its note takes 8 more.
	placesFactor = 3
	// flushSize is how many bytes of replies are sent before further commands are executed.
	flushSize = 16 << 10
	// maxStrangerCommands is how many commands a connection may send without a valid
	// token, if one is needed.
	maxStrangerCommands = 16
)

// errOver means that the connection closes after the replies that have been composed.
var errOver = errors.New("the connection closes")

// input is a buffer for what is read, with headroom in front.
type input [headroom + inputSize]byte

// lender lends a session the buffer for its next input.
type lender struct {
	pool *sync.Pool // of *input
	lent *input     // nil: none
}

// Get implements rawconn.Pool.
func (l *lender) Get() []byte {
	b, ok := l.pool.Get().(*input)
	if !ok {
		b = new(input)
	}
	l.lent = b
	return b[headroom:]
}

// Put implements rawconn.Pool: it takes the buffer back.
func (l *lender) Put([]byte) {
	if l.lent != nil {
		l.pool.Put(l.lent)
		l.lent = nil
	}
}

// session is one connection and what its caller has set.
type session struct {
	*api.Connection
	server *Server
	stream net.Conn             // the Connection, or TLS on top of it
	pooled rawconn.PooledReader // waits for input without a buffer; nil: there is no such way
	lender lender
	small  []byte // receives input with TLS
	stripe *api.LatencyStripe

	reader        reader
	unfinished    []byte       // the beginning of a command whose end has not arrived
	pendingCharge api.Transfer // the budget's charge for unfinished
	charged       int64        // bytes charged for unfinished; 0: none

	readBy, writeBy time.Time // the deadlines in force
	strangerSince   time.Time // since when it has had no valid token, if one is needed
	incompleteSince time.Time // when the command in unfinished began to arrive; zero: there is none

	id               int64
	resp3            bool
	name             string // as the client calls it
	authorization    string // as a header: Bearer and the token; empty: no valid token was shown
	cache            api.TokenCache
	token            *api.Token // of the command in progress; nil: none is required
	strangerCommands int        // how many commands it has sent without a valid token, if one is needed

	execution *execution // while commands are executed
}

// newSession returns the session of a new connection.
func (s *Server) newSession(conn *api.Connection) *session {
	c := &session{
		Connection: conn, stream: conn, server: s, id: s.sessions.Add(1), stripe: s.latency.Stripe(),
		strangerSince: time.Now(),
		lender:        lender{pool: &s.inputs},
	}
	if s.TLS != nil {
		c.stream = tls.Server(conn, s.TLS)
		c.small = make([]byte, smallInput)
		return c
	}
	c.pooled, _ = conn.Conn.(rawconn.PooledReader)
	return c
}

// serve serves the connection until it is over.
func (c *session) serve() {
	defer c.release()

	if err := c.handshake(); err != nil {
		c.server.Logger.Debug("Redis protocol: a connection is not secure", "error", err)
		return
	}

	for now := c.strangerSince; ; {
		b, err := c.receive(now)
		if err != nil {
			return
		}
		// One input may have hundreds of commands, so it counts as a whole
		// turn.
		c.TakeTurn(api.TurnRequests)
		if !c.BeginAnswer() {
			c.lender.Put(b) // it has lost its seat: nothing is decided that can't be answered
			return
		}

		err = c.handle(b)
		if err == nil && (c.server.closing.Load() || c.server.ClosesConnections()) {
			err = errOver
		}

		if err != nil {
			if errors.Is(err, errOver) {
				// Closing with unread input would reset the connection, and the caller
				// would lose the last replies.
				c.Linger()
			}
			return
		}

		now = time.Now()
		c.BeginWait(now)
	}
}

// handshake makes a connection with TLS secure.
func (c *session) handshake() error {
	secured, ok := c.stream.(*tls.Conn)
	if !ok {
		return nil
	}
	if err := c.Connection.SetDeadline(time.Now().Add(c.server.readWithin())); err != nil {
		return err
	}

	if c.server.closing.Load() {
		c.Interrupt() // Stop's own call may have come before
	}

	if err := secured.HandshakeContext(context.Background()); err != nil {
		return err
	}

	return c.Connection.SetDeadline(time.Time{})
}

// receive waits for input, and returns at least one byte or an error. The
// caller must put the buffer back.
func (c *session) receive(now time.Time) (b []byte, err error) {
	if err := c.setReadDeadline(now); err != nil {
		return nil, err
	}
	if c.pooled != nil {
		b, err = c.pooled.ReadPooled(&c.lender, nil)
		if err == nil && !c.NoteInput() {
			c.lender.Put(b)
			return nil, net.ErrClosed
		}
		return b, err
	}

	b = c.small
	if b == nil {
		b = c.lender.Get()
	}
	n, err := c.stream.Read(b)
	if n > 0 {
		return b[:n], nil // the next read returns the error again
	}
	c.lender.Put(b)
	if err == nil {
		err = io.ErrNoProgress
	}
	return nil, err
}

// setReadDeadline bounds the next read. Moving a deadline takes time. So each
// is set an eighth too late, and stays in force while it is no earlier than
// needed and at most that much later.
func (c *session) setReadDeadline(now time.Time) error {
	within := idleTimeout
	by := now.Add(within)
	if !c.incompleteSince.IsZero() {
		within = c.server.readWithin()
		by = c.incompleteSince.Add(within)
	}

	// The time of a stranger counts from when it became one: no command
	// prolongs it.
	if c.isStranger() {
		within = c.server.readWithin()
		latest := c.strangerSince.Add(within)
		if latest.Before(by) {
			by = latest
		}
	}

	slack := within / 8
	late := c.readBy.Sub(by)
	if !c.readBy.IsZero() && late >= 0 && late <= slack {
		return nil
	}

	c.readBy = by.Add(slack)
	if err := c.stream.SetReadDeadline(c.readBy); err != nil {
		return err
	}

	if c.server.closing.Load() {
		c.Interrupt() // Stop's own call may have come before
	}
	return nil
}

// Interrupt implements api.Interrupter: it ends the wait for input.
func (c *session) Interrupt() { _ = c.Connection.Conn.SetReadDeadline(time.Unix(1, 0)) }

// isStranger reports whether the caller must show a valid token, and has not.
func (c *session) isStranger() bool { return c.authorization == "" && c.server.RequiresToken() }

// handle executes the commands that are complete with the input b, and sends
// the replies. An error ends the connection: after errOver, the caller should
// get the last replies.
func (c *session) handle(b []byte) error {
	ex := c.server.getExecution()
	c.execution = ex
	ex.out.resp3 = c.resp3
	defer func() {
		c.lender.Put(b)
		c.releaseUnsent()
		c.execution = nil
		c.server.putBack(ex)
	}()

	work, err := c.join(b)
	if err != nil {
		return err
	}

	rest, err := c.executeAll(work)
	var bad protocolError
	switch {
	case err == errHTTP: // it gets no answer
		c.server.Logger.Debug("Redis protocol: a request of HTTP", "from", c.RemoteAddr().String())
		err = errOver
	case errors.As(err, &bad):
		ex.out.fail("ERR " + failure(bad))
		err = errOver
	case err != nil && !errors.Is(err, errOver):
		return err
	}

	if sendErr := c.flush(); sendErr != nil {
		return sendErr
	}
	if err != nil {
		return err
	}

	// This comes before the buffer is put back, because rest is part of it.
	return c.keep(work, rest)
}

// errNoRoom means that the budget has no room for what a connection holds.
var errNoRoom = errors.New("the memory for incomplete commands is used up")

// join returns b, preceded by the beginning of the command that b continues. It
// fails if the budget has no room.
func (c *session) join(b []byte) ([]byte, error) {
	n := len(c.unfinished)
	switch {
	case n == 0:
		return b, nil
	case n <= headroom && c.lender.lent != nil:
		// Only a lent buffer has room in front; that of TLS has none.
		space := c.lender.lent
		copy(space[headroom-n:headroom], c.unfinished)
		return space[headroom-n : headroom+len(b)], nil
	}

	if err := c.reserve(n + len(b)); err != nil {
		return nil, err
	}

	return append(c.unfinished, b...), nil
}

// reserve makes unfinished have a capacity of n bytes, and charges it. It fails if
// the budget has no room.
func (c *session) reserve(n int) error {
	if n <= cap(c.unfinished) {
		return nil
	}

	size := max(n, 2*cap(c.unfinished), keptPending)
	// The old charge is given back first. Otherwise a caller could fail for lack
	// of room that it holds itself.
	c.uncharge()

	if size > headroom {
		memory := placesFactor * int64(size)
		if !c.server.Budget.Hold(&c.pendingCharge, memory, c.Connection) {
			return errNoRoom
		}
		c.charged = memory
	}

	c.unfinished = append(make([]byte, 0, size), c.unfinished...)
	return nil
}

// uncharge gives back what is charged for unfinished.
func (c *session) uncharge() {
	if c.charged > 0 {
		c.server.Budget.Release(&c.pendingCharge)
		c.charged = 0
	}
}

// keep keeps the rest of work, the beginning of a command. It fails if the budget has no room.
func (c *session) keep(work, rest []byte) error {
	if len(rest) == 0 {
		c.uncharge()
		c.incompleteSince = time.Time{}
		c.unfinished = c.unfinished[:0]
		if cap(c.unfinished) > keptPending {
			c.unfinished = nil
		}
		return nil
	}

	// The time begins anew only with another command: a caller that sends one
	// byte at a time must not hold this one for ever.
	if len(rest) < len(work) || c.incompleteSince.IsZero() {
		c.incompleteSince = time.Now()
	}

	if err := c.reserve(len(rest)); err != nil {
		return err
	}

	c.unfinished = append(c.unfinished[:0], rest...) // there may be work left: then rest moves to its front
	return nil
}

// executeAll executes the commands that work has, and returns what follows
// them. The error, if any, ends the connection.
func (c *session) executeAll(work []byte) (rest []byte, err error) {
	ex := c.execution
	ex.began = time.Now()
	defer func() {
		if v := recover(); v != nil {
			c.server.Panics.Add(1)
			c.server.Logger.Error("panic in a handler", "door", "redis", "panic", v, "stack", string(debug.Stack()))
			ex.checksUsed = 0 // what the checks hold is not known
			ex.checks = nil
			ex.out.fail(failureOf(api.InternalError()))
			err = errOver
		}
	}()

	if c.ProbesOnly {
		return nil, protocolError("max number of clients reached")
	}

	for rest = work; len(rest) > 0; {
		c.reader.stranger = c.isStranger()
		var length int
		ex.args, length, err = c.reader.read(rest, ex.args[:0])
		if err != nil || length == 0 {
			break
		}

		rest = rest[length:]
		ex.hasMore = len(rest) > 0

		if len(ex.args) == 0 {
			err = c.countStranger()
			if err != nil {
				break
			}
			continue
		}
		err = c.execute(ex.args)
		if err != nil {
			break
		}

		if len(ex.out.b) >= flushSize {
			err = c.flush()
			if err != nil {
				break
			}
		}
	}

	// decide is called even after an error: the checks before the broken command
	// are decided and answered, in order.
	c.decide()
	return rest, err
}

// flush sends the replies. While the caller does not read them, nothing more is read from it.
func (c *session) flush() error {
	ex := c.execution
	if len(ex.out.b) == 0 {
		return nil
	}

	ex.fitOut()
	size := cap(ex.out.b)
	if size > api.UnchargedBytes {
		var sent api.Transfer
		if !c.server.Budget.Hold(&sent, int64(size), c.Connection) {
			return fmt.Errorf("send replies: %w", c.server.Budget.FullError())
		}
		defer c.server.Budget.Release(&sent)
	}

	if c.writeBy.Sub(ex.began) < writeTimeout/2 { // ex began a moment ago
		c.writeBy = ex.began.Add(writeTimeout)
		if err := c.stream.SetWriteDeadline(c.writeBy); err != nil {
			return err
		}
	}

	n, err := c.stream.Write(ex.out.b)
	ex.out.b = ex.out.b[:0]

	// Slots whose replies the caller may have read stay held: it may be at work
	// already. releaseUnsent releases the rest.
	ex.acquired = slices.DeleteFunc(ex.acquired, func(s unsentSlot) bool { return s.end <= n })

	return err
}

// release gives back what the session holds beside its connection.
func (c *session) release() { c.uncharge() }
