package memnet

import (
	"io"
	"net"
	"sync"
	"time"
)

// Conn is one end of a stream: a net.Conn whose methods are safe for concurrent use.
type Conn struct {
	net           *Net
	in, out       *pipe
	local, remote *net.TCPAddr
	once          sync.Once
}

// streamLocked makes the two ends of a stream from one host to another.
func (n *Net) streamLocked(from, to *Host, fromPort, toPort int) (near, far *Conn) {
	forth, back := n.pipeLocked(from, to), n.pipeLocked(to, from)
	near = &Conn{net: n, in: back, out: forth, local: from.tcp(fromPort), remote: to.tcp(toPort)}
	far = &Conn{net: n, in: forth, out: back, local: near.remote, remote: near.local}
	return near, far
}

func (n *Net) pipeLocked(from, to *Host) *pipe {
	p := &pipe{held: n.heldLocked(from.ip, to.ip), reverseHeld: n.heldLocked(to.ip, from.ip),
		delay: n.delayLocked(from.ip, to.ip)}
	p.host.from, p.host.to = from, to
	p.change.L = &p.mu
	n.pipes[p] = struct{}{}
	return p
}

// Read returns what has arrived.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	return n, c.wrap("read", err)
}

// Write sends b.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.out.write(b, true)
	return n, c.wrap("write", err)
}

// TryWrite sends as much of b as fits in the buffer, and returns its length.
func (c *Conn) TryWrite(b []byte) int {
	n, _ := c.out.write(b, false) // the next Write fails, too
	return n
}

// Close ends both directions. The other end still gets the bytes written
// before, if the link permits.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.out.closeWrite()
		c.in.closeRead()
		c.net.mu.Lock()
		defer c.net.mu.Unlock()
		for _, p := range []*pipe{c.in, c.out} {
			if p.isClosed() {
				delete(c.net.pipes, p)
			}
		}
	})
	return nil
}

// CloseWrite ends one direction: the other end gets the bytes written before, and then EOF.
func (c *Conn) CloseWrite() error {
	c.out.closeWrite()
	return nil
}

// LocalAddr returns a *net.TCPAddr.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns a *net.TCPAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readDeadline, t)
	c.out.setDeadline(&c.out.writeDeadline, t)
	return nil
}

// SetReadDeadline sets the deadline of Read.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readDeadline, t)
	return nil
}

// SetWriteDeadline sets the deadline of Write.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeDeadline, t)
	return nil
}

// wrap makes errors look like those of package net, except io.EOF.
func (c *Conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}
