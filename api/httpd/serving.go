package httpd

import (
	"io"
	"net"
	"os"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/framing"
)

// This file decides who serves a connection. Between requests nobody does: a
// goroutine waits, and holds neither a buffer nor anything of the library's. A
// request that is plain goes to the fast path. For any other, the library gets
// the connection once the whole head has arrived, and gives it back when it
// would have to wait for the next request.

const (
	// freeHead is the capacity in bytes up to which an unfinished head is not
	// charged to the budget.
	freeHead = 2 << 10
	// libraryConnMemory is roughly what the library and a handler hold for a
	// request, without its body.
	libraryConnMemory = 32 << 10
)

// begin serves a new connection.
func (s *Server) begin(conn *api.Connection) api.Interrupter {
	c := s.wrap(conn)
	go func() {
		if s.secure(c) {
			s.serve(c)
		}
	}()
	return c
}

// secure makes a connection secure, and prepares it for its first request. It
// closes the connection and reports false if that fails.
func (s *Server) secure(c *connection) bool {
	// The handshake is made here, in the connection's goroutine: a caller that
	// delays it must not keep others from being accepted.
	if err := c.handshake(s.server.ReadTimeout); err != nil {
		s.handlers.Logger.Debug("data plane: a connection is not secure", "error", err)
		_ = c.closeNow()
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(s.server.ReadTimeout)) // receive returns the error
	return true
}

// serve serves c until it is closed, or an answer on it is held back.
func (s *Server) serve(c *connection) {
	for {
		input, err := c.receive(c.consume)
		if err != nil {
			_ = c.closeNow()
			return
		}

		if after := s.serveInput(c, input); after != awaitsRequest {
			if after == connectionOver {
				_ = c.closeNow()
			}
			return
		}
	}
}

// afterRequest is what becomes of a connection after a request.
type afterRequest int

const (
	connectionOver afterRequest = iota
	awaitsRequest               // it can take another request
	answerHeld                  // an answer is held back on it
)

// serveInput answers the request that begins with input, and those that arrive
// with it. The request has begun, and is not for the fast path.
func (s *Server) serveInput(c *connection, input []byte) afterRequest {
	began := time.Now()
	t := s.newLibraryConn(c)
	// The library gets only whole heads: its buffers must not wait for the rest
	// of one.
	t.unread, t.readErr = s.receiveHead(c, input)
	t.spent = time.Since(began)

	return t.run()
}

// receiveHead receives the rest of the head that begins with input. It returns
// the received bytes that pass the framing, and the error that ended the input,
// if any.
func (s *Server) receiveHead(c *connection, input []byte) (head []byte, err error) {
	heads := c.frame.Heads()
	n, err := c.frame.Filter(input, nil)
	if err != nil || c.frame.Heads() > heads {
		return input[:n], err
	}

	// The head is unfinished: from here on it must cost no more than has
	// arrived.
	head = append(head, input[:n]...)
	s.buffers.Put(input)

	now := time.Now()
	c.BeginWait(now)
	if err := c.SetReadDeadline(now.Add(s.server.ReadTimeout)); err != nil {
		return head, err
	}

	var headCharge api.Transfer
	charged := 0
	defer func() {
		if charged > 0 {
			s.handlers.Budget.Release(&headCharge)
		}
	}()

	for err == nil && c.frame.Heads() == heads {
		// The framing keeps the line that is unfinished.
		size := 2 * cap(head)
		if size > 2*freeHead && size > charged {
			if charged > 0 {
				s.handlers.Budget.Release(&headCharge)
				charged = 0
			}
			if !s.handlers.Budget.Hold(&headCharge, int64(size), c) {
				c.closeIfStranger()
				// A caller that is no stranger gets an answer: the library asks
				// for one when it reads this error.
				return head, s.handlers.Budget.FullError()
			}
			charged = size
		}

		var received []byte
		received, err = c.receive(nil)
		n, err = c.frame.Filter(received, err)
		head = append(head, received[:n]...)
		s.buffers.Put(received)
	}

	return head, err
}

// closeIfStranger closes the connection of a stranger for whose request there is
// no room: even an answer would take some.
func (c *connection) closeIfStranger() {
	if c.IsStranger() {
		_ = c.closeNow()
	}
}

// libraryConn is a connection as the library sees it. The library has it only
// while there is something to do on it.
type libraryConn struct {
	*connection
	server  *Server
	unread  []byte        // input that was received before
	readErr error         // what follows it; nil: more can be received
	spent   time.Duration // how much of the first request's time was spent before

	between bool // the last answer is sent, and no other request has begun
	toldEOF bool // the library was told EOF because nothing of another request has arrived; the connection lives on
	held    bool // an answer is held back

	stallCharged bool // stall is charged to the budget
	stall        api.Transfer
	isCharged    bool // what the request holds is charged already
}

func (s *Server) newLibraryConn(c *connection) *libraryConn {
	t, ok := s.libraryConns.Get().(*libraryConn)
	if !ok {
		t = &libraryConn{server: s}
	}
	t.connection = c
	return t
}

// run lets the library serve the connection until it has answered all that has arrived.
func (t *libraryConn) run() afterRequest {
	s := t.server
	c := t.connection

	err := s.server.ServeConn(t)
	if err != nil {
		s.handlers.Logger.Debug("data plane: a connection ended", "error", err)
	}

	if t.held {
		return answerHeld // park reads from t
	}

	// toldEOF is read before t goes back to the pool, where another connection may
	// take it.
	goesOn := t.toldEOF
	t.endStall()
	s.buffers.Put(t.unread)
	*t = libraryConn{server: s}
	s.libraryConns.Put(t)

	if !goesOn || !c.end() {
		return connectionOver
	}

	now := time.Now()
	c.BeginWait(now)
	_ = c.SetReadDeadline(now.Add(c.IdleTimeout(s.server.IdleTimeout))) // receive returns the error
	return awaitsRequest
}

// Read returns the input that was received before, and then more input of the
// request.
func (t *libraryConn) Read(b []byte) (int, error) {
	switch {
	case len(t.unread) > 0:
		n := copy(b, t.unread)
		if n == len(t.unread) {
			t.server.buffers.Put(t.unread)
			t.unread = nil
			return n, nil
		}

		// The rest moves to the front. A slice of the buffer could not go back to the
		// pool, which knows its buffers by their capacity.
		rest := copy(t.unread, t.unread[n:])
		t.unread = t.unread[:rest]
		return n, nil
	case t.readErr != nil:
		return 0, t.readErr
	case t.held:
		// This is for readBuffered, which reads the input that the library has read
		// ahead, and must not wait for more.
		return 0, os.ErrDeadlineExceeded
	case t.between:
		// No other request has begun. Reporting the end makes the library free its
		// buffers. The connection stays, and serve waits for the next request.
		t.toldEOF = true
		return 0, io.EOF
	}

	return t.receiveMore(b)
}

// receiveMore receives more of a request whose head has arrived.
func (t *libraryConn) receiveMore(b []byte) (n int, err error) {
	if !t.stallCharged && !t.isCharged {
		// While this caller keeps the node waiting, the library and a handler hold
		// memory for it. So the memory is charged, and the caller may lose its seat.
		if !t.server.handlers.Budget.Hold(&t.stall, libraryConnMemory, t) {
			t.closeIfStranger()
			t.readErr = t.server.handlers.Budget.FullError()
			return 0, t.readErr
		}
		t.stallCharged = true
		t.BeginWait(time.Now())
	}

	n, err = t.connection.Read(b)
	n, err = t.frame.Filter(b[:n], err)
	t.readErr = err
	return n, err
}

// SetReadDeadline bounds the next reads. The time that the request took before
// the library got it counts.
func (t *libraryConn) SetReadDeadline(at time.Time) error {
	if !at.IsZero() {
		at = at.Add(-t.spent)
	}
	return t.connection.SetReadDeadline(at)
}

// Close closes the connection, unless the library only gives it back.
func (t *libraryConn) Close() error {
	if t.toldEOF {
		return nil
	}
	t.frame = framing.Checker{} // it may linger, and should hold little meanwhile
	return t.closeNow()
}

// NetConn returns the underlying connection.
func (t *libraryConn) NetConn() net.Conn { return t.connection }

// endStall gives back what was charged while the caller kept a request waiting.
func (t *libraryConn) endStall() {
	if t.stallCharged {
		t.server.handlers.Budget.Release(&t.stall)
		t.stallCharged = false
	}
}

// followConnState records whether the library waits for the next request.
func followConnState(conn net.Conn, state fasthttp.ConnState) {
	t, ok := conn.(*libraryConn)
	if !ok {
		return
	}

	switch state {
	case fasthttp.StateActive:
		t.between = false
	case fasthttp.StateIdle:
		t.between = true
		t.isCharged = false
		t.spent = 0
		t.endStall()
		t.BeginWait(time.Now())
		// Requests that were sent ahead go on in the library, without
		// serveInput.
		t.TakeTurn(1)
	}
}

// libraryConnOf returns the connection of ctx as the library has it; nil in
// tests that need none.
func libraryConnOf(ctx *fasthttp.RequestCtx) *libraryConn {
	t, _ := ctx.Conn().(*libraryConn)
	return t
}
