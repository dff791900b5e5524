package rawconn

import (
	"io"
	"net"
	"syscall"
)

// pooledRead is the ReadPooled in progress.
//
// A read that finds nothing costs as much as one that finds something. Usually
// such a read follows every input: net resets the poller's news before a read,
// so the read must look first. Here, the input is taken within one call of net,
// during which no news is lost. If the system has said that nothing else has
// arrived, the next look waits for the poller. The poller does not repeat the
// news of bytes that came with the input, so the system must tell of them.
type pooledRead struct {
	step        func(fd uintptr) bool // conn.readPooled
	reportsMore bool                  // the system tells what else has arrived

	pool    Pool
	consume Consumer
	err     error // consume's
	// untried counts the inputs taken since a read has looked for more without news.
	untried int
}

// The phases of a connection.
const (
	phaseOpen      int32 = iota
	phaseConsuming       // consume runs
	phaseClosing         // consume runs, and the connection closes when it returns
	phaseClosed
)

// ReadPooled implements PooledReader.
func (c *conn) ReadPooled(pool Pool, consume Consumer) ([]byte, error) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()

	c.pooled.pool = pool
	c.pooled.consume = consume
	c.pooled.err = nil

	for again := true; again; again = c.in.errno == syscall.EINTR {
		if err := c.in.run(c.pooled.step); err != nil {
			return nil, c.wrap("read", err)
		}
	}

	b := c.in.bytes
	c.in.bytes = nil

	switch {
	case c.phase.CompareAndSwap(phaseClosing, phaseClosed):
		_ = c.TCPConn.Close() // Close has returned already
		return nil, net.ErrClosed
	case c.pooled.err != nil:
		return nil, c.pooled.err
	case c.in.errno != 0:
		return nil, c.wrap("read", c.in.errno)
	case b != nil:
		return b[:c.in.moved], nil
	case c.reset.Load():
		return nil, c.wrap("read", syscall.ECONNRESET)
	}

	return nil, io.EOF
}

// readPooled reads and offers input. It returns false if the caller must wait
// until the socket is ready.
func (c *conn) readPooled(fd uintptr) bool {
	for {
		done, more := c.callPooled(fd)
		if !c.countWait(done) {
			c.pooled.untried = 0
			return false
		}
		if c.in.bytes == nil || !c.offer() {
			return true
		}

		c.pooled.untried++
		if !more && c.pooled.untried < TryInterval {
			return false
		}
	}
}

// callPooled makes one system call, with a buffer that it puts back if there is
// nothing to read. It reports whether the read is over, and whether more may
// have arrived.
func (c *conn) callPooled(fd uintptr) (done, more bool) {
	b := c.pooled.pool.Get()

	if c.pooled.reportsMore && c.pooled.consume != nil {
		c.in.moved, more, c.in.errno = receive(fd, b)
	} else {
		c.in.moved, c.in.errno = c.in.call(fd, b)
		more = true
	}

	if c.in.errno == 0 && c.in.moved > 0 {
		c.in.bytes = b
		return true, more
	}

	c.pooled.pool.Put(b)
	return c.in.errno != syscall.EAGAIN, false
}

// offer offers the input to consume. It reports whether consume took it and more is
// to be read.
func (c *conn) offer() bool {
	if c.pooled.consume == nil {
		return false
	}
	if !c.phase.CompareAndSwap(phaseOpen, phaseConsuming) {
		return false // Close has been called, and Close of net waits for this call to end
	}

	taken, err := c.pooled.consume(c.in.bytes[:c.in.moved])
	closing := !c.phase.CompareAndSwap(phaseConsuming, phaseOpen)
	if taken || err != nil || closing {
		c.pooled.pool.Put(c.in.bytes)
		c.in.bytes = nil
	}
	c.pooled.err = err

	return taken && err == nil && !closing
}

// Close implements net.Conn. Net's Close would wait for a running consume, which
// may itself wait for the caller of Close. So while consume runs, Close only
// shuts the connection down: the writes of consume fail, and ReadPooled closes the
// connection.
func (c *conn) Close() error {
	for {
		switch c.phase.Load() {
		case phaseOpen:
			if c.phase.CompareAndSwap(phaseOpen, phaseClosed) {
				return c.TCPConn.Close()
			}
		case phaseConsuming:
			if c.phase.CompareAndSwap(phaseConsuming, phaseClosing) {
				_ = c.CloseRead() // an error means that it is shut down already
				_ = c.CloseWrite()
				return nil
			}
		default:
			return net.ErrClosed
		}
	}
}
