package rawconn

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// rawCallSize bounds the bytes moved by one raw system call: a few microseconds' worth.
const rawCallSize = 32 << 10

// conn is a TCP connection with raw calls. They never block, because the socket is non-blocking.
type conn struct {
	*net.TCPConn
	in, out transfer
	pooled  pooledRead   // guarded by in.mu
	phase   atomic.Int32 // phaseOpen and so on: what Close must wait for
	waits   atomic.Uint64
	// reset means that a write has found that the other end had reset the
	// connection, which the system reports only once.
	reset atomic.Bool
}

// transfer moves bytes in one direction.
type transfer struct {
	run  func(func(fd uintptr) bool) error
	step func(fd uintptr) bool
	call func(fd uintptr, b []byte) (n int, errno syscall.Errno)

	mu    sync.Mutex // guards the fields below, and is held during a transfer
	bytes []byte     // to be moved
	once  bool       // don't wait until the socket is ready
	moved int
	errno syscall.Errno
}

// Wrap returns a connection that does the same as c at less cost, or c if there is none.
func Wrap(c net.Conn) net.Conn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}

	raw, err := t.SyscallConn()
	if err != nil {
		return c
	}

	// The steps are made here: a closure for each call would be allocated.
	d := &conn{TCPConn: t}
	d.in.run = raw.Read
	d.in.call = read
	d.in.step = func(fd uintptr) bool { return d.countWait(d.in.callOnce(fd)) }
	d.pooled.step = d.readPooled
	d.out.run = raw.Write
	d.out.call = write
	d.out.step = d.out.callOnce
	d.pooled.reportsMore = reportMore(raw)

	return d
}

// countWait counts a read that is not done, and so must wait.
func (c *conn) countWait(done bool) bool {
	if !done {
		c.waits.Add(1)
	}
	return done
}

// Waits implements WaitCounter.
func (c *conn) Waits() uint64 { return c.waits.Load() }

// callOnce makes one system call. It returns false if the caller must wait
// until the socket is ready.
func (t *transfer) callOnce(fd uintptr) bool {
	t.moved, t.errno = t.call(fd, t.bytes)
	return t.errno != syscall.EAGAIN || t.once
}

// move moves bytes until one call has succeeded or failed.
func (t *transfer) move(b []byte) (int, error) {
	t.bytes = b
	err := t.run(t.step)
	t.bytes = nil
	switch {
	case err != nil:
		return 0, err

	// A signal came first and nothing was moved: the caller tries again.
	case t.errno == syscall.EINTR:
		return 0, nil
	case t.errno != 0:
		return 0, t.errno
	}
	return t.moved, nil
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (n int, err error) {
	// A raw read of no bytes would look like the end of the stream.
	if len(b) == 0 {
		return c.TCPConn.Read(b)
	}

	b = b[:min(len(b), rawCallSize)]
	c.in.mu.Lock()
	defer c.in.mu.Unlock()

	for again := true; again; again = c.in.errno == syscall.EINTR {
		n, err = c.in.move(b)
		if err != nil {
			return 0, c.wrap("read", err)
		}
	}

	switch {
	case n > 0:
	case c.reset.Load():
		return 0, c.wrap("read", syscall.ECONNRESET)
	default:
		err = io.EOF
	}

	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (n int, err error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()

	// The scheduler can't see a raw call, so a long one would hold up other
	// goroutines.
	if len(b) > rawCallSize {
		return c.TCPConn.Write(b)
	}
	for n < len(b) {
		moved, err := c.write(b[n:])
		n += moved
		if err != nil {
			return n, c.wrap("write", err)
		}
	}
	return n, nil
}

// TryWrite implements TryWriter.
func (c *conn) TryWrite(b []byte) int {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.once = true
	n, _ := c.write(b[:min(len(b), rawCallSize)]) // the next Write fails, too
	c.out.once = false
	return n
}

// write writes until one call has succeeded or failed. The caller must hold c.out.mu.
func (c *conn) write(b []byte) (int, error) {
	n, err := c.out.move(b)
	if err == syscall.ECONNRESET {
		c.reset.Store(true)
	}
	return n, err
}

// wrap turns an error of a system call into the one that net.TCPConn would return.
func (c *conn) wrap(op string, err error) error {
	errno, ok := err.(syscall.Errno)
	if !ok {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(),
		Err: os.NewSyscallError(op, errno)}
}
