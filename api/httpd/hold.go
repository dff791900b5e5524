package httpd

import (
	"errors"
	"net"
	"os"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/api"
)

// This file takes connections over from the server library while their answers
// are held back, and returns them afterwards.

// hold takes the connection over from the library until x's answer is due. It
// reports false if the answer must be sent at once: the node drains, too many
// answers are held, or the budget has no room.
func (s *Server) hold(ctx *fasthttp.RequestCtx, x *exchange) bool {
	t := libraryConnOf(ctx)
	if t == nil || !s.held.takeRoom() {
		return false
	}

	// The answer is copied, because x serves other requests while this one
	// waits.
	w := &heldAnswer{due: x.due, delayAfterDue: x.delayAfterDue, prepaid: x.prepaid, reply: newHeldReply(x),
		closes: ctx.Request.Header.ConnectionClose()}
	n := int64(len(w.reply.text))
	if n > api.UnchargedBytes {
		if !s.handlers.Budget.Take(n) {
			s.held.freeRoom()
			return false
		}
		w.charged = n
	}

	w.reply.keepAlive = !ctx.Request.Header.IsHTTP11()
	// From here on nothing may fail: the library no longer sends an answer.
	ctx.HijackSetNoResponse(true)
	t.held = true
	t.endStall()
	ctx.Hijack(func(c net.Conn) { s.park(w, t, c) })

	return true
}

// park holds back w's answer. The library no longer uses t. c is the library's
// view of t, and still has the input that the library has read ahead.
func (s *Server) park(w *heldAnswer, t *libraryConn, c net.Conn) {
	w.conn = t.connection
	w.fd = w.conn.Descriptor()
	// The connection needs no seat while nothing is read from it, and must not
	// keep others out for as long as it waits.
	s.conns.Park(w.conn.Connection)
	unread, err := readBuffered(c)
	if err != nil {
		w.closes = true // what the caller sent next is unreadable, but it still gets its answer
	}
	w.unread = unread
	s.held.keep(w)
}

// readBuffered returns what the library has already read from the connection beyond the request.
func readBuffered(c net.Conn) (unread []byte, err error) {
	var room [512]byte
	for {
		n, err := c.Read(room[:])
		unread = append(unread, room[:n]...)
		if errors.Is(err, os.ErrDeadlineExceeded) { // see libraryConn.Read
			return unread, nil
		}
		if err != nil {
			return unread, err
		}
	}
}

// sendHeld sends w's answer, with left as the rest of its delay, then serves the connection again.
func (s *Server) sendHeld(w *heldAnswer, left time.Duration) {
	now := time.Now()
	c := w.conn
	closes := w.closes || s.handlers.ClosesConnections() || c.closesAfterAnswer()
	if !closes {
		// Resume comes last: it may cost a stranger its seat, which is in vain if the
		// connection closes anyway.
		resumed := s.conns.Resume(c.Connection)
		closes = !resumed
	}

	text := w.reply.append(make([]byte, 0, len(w.reply.text)+256), s.date.at(now), left, closes)
	w.reply = heldReply{}
	err := c.SetWriteDeadline(now.Add(s.server.WriteTimeout))
	if err == nil {
		_, err = c.Write(text)
	}

	// The answer's room is freed only now: the text was in memory until it was
	// sent, and awaitEmpty waits until all rooms are free.
	s.handlers.Budget.Give(w.charged)
	s.held.freeRoom()

	gone := w.hungUp
	if gone && err == nil {
		gone = awaitReset(w)
	}
	w.endWait(gone)

	if err == nil && !closes {
		goesOn := c.end()
		if goesOn {
			_ = c.SetReadDeadline(now.Add(c.IdleTimeout(s.server.IdleTimeout))) // receive returns the error
			s.resumeServing(c, w.unread)
			return
		}
	}

	if err == nil && hasUnreadInput(w) {
		c.Linger() // closing with unread input would reset the connection, and the caller would lose this answer
	}
	if err != nil {
		s.handlers.Logger.Debug("data plane: connection after a wait", "error", err)
	}

	_ = c.closeNow()
}

// resumeServing serves c after an answer that was held back. unread is input
// that came with that answer's request, and has passed the framing.
func (s *Server) resumeServing(c *connection, unread []byte) {
	if len(unread) == 0 {
		s.serve(c)
		return
	}
	if !c.begin() {
		_ = c.closeNow()
		return
	}

	// The input does not go through serveInput: the framing has counted these
	// bytes already, and would count them twice.
	t := s.newLibraryConn(c)
	t.unread = unread
	t.readErr = c.frame.Err()

	switch t.run() {
	case awaitsRequest:
		s.serve(c)
	case connectionOver:
		_ = c.closeNow()
	}
}
