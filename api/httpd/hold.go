package httpd

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/api"
)

// This file takes connections over from the server library while their answers are held back, and returns them afterwards.

// hold takes the connection over from the library until x's answer is due. It reports false if the answer must be sent at
// once: the node drains, too many answers are held, or the budget has no room.
func (s *Server) hold(ctx *fasthttp.RequestCtx, x *exchange) bool {
	if !s.waiting.takeSlot() {
		return false
	}
	w := &waiter{due: x.due, delayAfterDue: x.delayAfterDue, reply: newHeldReply(x), closes: ctx.Request.Header.ConnectionClose()}
	if n := int64(len(w.reply.text)); n > api.UnchargedBytes {
		if !s.handlers.Budget.Take(n) {
			s.waiting.freeSlot()
			return false
		}
		w.charged = n
	}
	w.reply.keepAlive = !ctx.Request.Header.IsHTTP11()
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(c net.Conn) { s.park(w, c) })
	return true
}

// park holds back w's answer on connection c.
func (s *Server) park(w *waiter, c net.Conn) {
	raw, ok := c.(interface{ UnsafeConn() net.Conn })
	if !ok {
		s.handlers.Logger.Error("a check with wait came over an unknown kind of connection, which was closed")
		s.handlers.Budget.Give(w.charged)
		s.waiting.freeSlot()
		_ = c.Close()
		return
	}
	w.conn = raw.UnsafeConn()
	w.fd = descriptor(w.conn)
	if c := api.Unwrap[*api.Connection](w.conn); c != nil {
		s.conns.Park(c)
	}
	if more, err := readBuffered(c, w.conn); err != nil {
		w.closes = true // what the caller sent next is unreadable, but it still gets its answer
	} else if len(more) > 0 {
		w.conn = &replayConn{Conn: w.conn, unread: more}
	}
	s.waiting.hold(w)
}

// readBuffered returns what the library has already read from the connection beyond the request. Meanwhile the deadline of the
// underlying connection lies in the past, so that nothing is read from it.
func readBuffered(c, under net.Conn) (more []byte, err error) {
	if err := under.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return nil, err
	}
	var room [512]byte
	for {
		n, err := c.Read(room[:])
		more = append(more, room[:n]...)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return more, under.SetReadDeadline(time.Time{})
		}
		if err != nil {
			return more, err
		}
	}
}

// replayConn is a connection whose first input has already been read.
type replayConn struct {
	net.Conn
	unread []byte
}

// Read returns the earlier input first.
func (r *replayConn) Read(b []byte) (int, error) {
	if len(r.unread) > 0 {
		n := copy(b, r.unread)
		if r.unread = r.unread[n:]; len(r.unread) == 0 {
			r.unread = nil
		}
		return n, nil
	}
	return r.Conn.Read(b)
}

// NetConn returns the underlying connection.
func (r *replayConn) NetConn() net.Conn { return r.Conn }

// descriptor returns c's file descriptor, or -1 if it is unknown. The descriptor is only polled, and only while c is held. If c
// is closed in the meantime and the number reused, a wrong result does no harm.
func descriptor(c net.Conn) int {
	one := api.Unwrap[*api.Connection](c)
	if one == nil {
		return -1
	}
	file, ok := one.Conn.(syscall.Conn)
	if !ok {
		return -1
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return -1
	}
	fd := -1
	if err := raw.Control(func(n uintptr) { fd = int(n) }); err != nil {
		return -1
	}
	return fd
}

// sendHeld sends w's answer, with left as the rest of its delay, then serves the connection again.
func (s *Server) sendHeld(w *waiter, left time.Duration) {
	now := time.Now()
	c := api.Unwrap[*api.Connection](w.conn)
	closes := w.closes || s.handlers.ClosesConnections() || c != nil && !s.conns.Resume(c)
	text := w.reply.append(make([]byte, 0, len(w.reply.text)+256), now, left, closes)
	w.reply = heldReply{}
	err := w.conn.SetWriteDeadline(now.Add(s.server.WriteTimeout))
	if err == nil {
		_, err = w.conn.Write(text)
	}
	s.handlers.Budget.Give(w.charged)
	s.waiting.freeSlot()
	if err == nil && !closes {
		err = s.server.ServeConn(w.conn)
	} else {
		if c != nil && err == nil && hasUnreadInput(w) {
			c.Linger() // closing with unread input would reset the connection, and the caller would lose this answer
		}
		err = errors.Join(err, w.conn.Close())
	}
	if err != nil {
		s.handlers.Logger.Debug("data plane: connection after a wait", "error", err)
	}
}
