package api

import (
	"errors"
	"os"
	"time"
)

const (
	// stallTime is how long a caller may read nothing of an answer.
	stallTime = 5 * time.Second
	// socketBuffers is roughly what the system holds for a connection whose caller
	// does not read; see boundSocket.
	socketBuffers = sendBuffer + receiveBuffer
)

// errNoRoom means that the budget has no room for an answer that its caller does not read.
var errNoRoom = errors.New("the memory for answers that callers don't read is used up")

// SetWriteDeadline bounds the next writes.
func (c *Connection) SetWriteDeadline(t time.Time) error {
	c.recordWriteDeadline(t)
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline bounds the next reads and writes.
func (c *Connection) SetDeadline(t time.Time) error {
	c.recordWriteDeadline(t)
	return c.Conn.SetDeadline(t)
}

func (c *Connection) recordWriteDeadline(t time.Time) {
	if t.IsZero() {
		c.writeDeadline.Store(0)
		return
	}
	c.writeDeadline.Store(c.owner.sinceBegan(t))
}

// Write sends b.
func (c *Connection) Write(b []byte) (int, error) {
	if c.tryWriter == nil {
		return c.Conn.Write(b)
	}

	// Bytes that fit into the system's buffer go out at once. Nearly every answer
	// fits, and then costs neither a deadline nor a charge.
	sent := 0
	for sent < len(b) {
		n := c.tryWriter.TryWrite(b[sent:])
		if n == 0 {
			break
		}
		sent += n
	}

	if sent == len(b) {
		return sent, nil
	}

	n, err := c.writeSlowly(b[sent:])
	return sent + n, err
}

// writeSlowly sends b to a caller that is slow to read. It charges what the
// system holds for it meanwhile, and fails as soon as the caller has read
// nothing for stallTime.
func (c *Connection) writeSlowly(b []byte) (sent int, err error) {
	if budget := c.owner.config.Budget; budget != nil {
		var stall Transfer
		if !budget.Hold(&stall, socketBuffers, c) {
			return 0, errNoRoom
		}
		defer budget.Release(&stall)
	}

	// A caller that does not read keeps a seat. From here on, it may lose the
	// seat.
	c.BeginWait(time.Now())
	requested := time.Time{}
	deadline := c.writeDeadline.Load()
	if deadline != 0 {
		requested = c.owner.began.Add(time.Duration(deadline))
	}

	for {
		until := time.Now().Add(stallTime)
		if !requested.IsZero() && requested.Before(until) {
			until = requested
		}

		if err := c.Conn.SetWriteDeadline(until); err != nil {
			return sent, err
		}

		n, err := c.Conn.Write(b[sent:])
		sent += n
		// If stallTime ended the write but something was sent, the caller is only
		// slow, and gets as long again. The requested deadline ends the write for
		// good.
		progress := n > 0 && !until.Equal(requested) && errors.Is(err, os.ErrDeadlineExceeded)
		if !progress {
			if err == nil {
				// The short deadline of this write must not end a later one.
				err = c.Conn.SetWriteDeadline(requested)
			}
			return sent, err
		}
	}
}
