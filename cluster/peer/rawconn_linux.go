package peer

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// rawCallSize bounds the bytes moved by one raw system call: a few microseconds' worth.
const rawCallSize = 32 << 10

// rawConn is a TCP connection that makes system calls without the knowledge of Go's scheduler. Otherwise the first call after
// a pause wakes a thread that looks for blocked calls every 20 µs until the process is idle again, which makes up a third
// of an idle node's load. These calls never block, because the socket is non-blocking.
type rawConn struct {
	*net.TCPConn
	in, out transfer
}

// transfer moves bytes in one direction.
type transfer struct {
	run  func(func(fd uintptr) bool) error
	step func(fd uintptr) bool
	call uintptr // number of the system call

	mu    sync.Mutex // guards the fields below, and is held during a transfer
	bytes []byte     // to be moved
	moved int
	errno syscall.Errno
}

// withRawCalls returns a connection that does the same as c at less cost, or c if there is none.
func withRawCalls(c net.Conn) net.Conn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return c
	}
	d := &rawConn{TCPConn: t}
	d.in.run, d.in.call, d.in.step = raw.Read, syscall.SYS_READ, d.in.callOnce
	d.out.run, d.out.call, d.out.step = raw.Write, syscall.SYS_WRITE, d.out.callOnce
	return d
}

// callOnce makes one system call, and returns false if the socket is not ready.
func (t *transfer) callOnce(fd uintptr) bool {
	n, _, errno := syscall.RawSyscall(t.call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.bytes))), uintptr(len(t.bytes)))
	t.moved, t.errno = int(n), errno
	return errno != syscall.EAGAIN
}

// move moves bytes until one call has succeeded or failed.
func (t *transfer) move(b []byte) (int, error) {
	t.bytes = b
	err := t.run(t.step)
	t.bytes = nil
	switch {
	case err != nil:
		return 0, err
	case t.errno == syscall.EINTR:
		return 0, nil
	case t.errno != 0:
		return 0, t.errno
	}
	return t.moved, nil
}

// Read implements net.Conn.
func (r *rawConn) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return r.TCPConn.Read(b)
	}
	b = b[:min(len(b), rawCallSize)]
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	for again := true; again; again = r.in.errno == syscall.EINTR {
		if n, err = r.in.move(b); err != nil {
			return 0, r.wrap("read", err)
		}
	}
	if n == 0 {
		err = io.EOF
	}
	return n, err
}

// Write implements net.Conn.
func (r *rawConn) Write(b []byte) (n int, err error) {
	if len(b) > rawCallSize {
		return r.TCPConn.Write(b)
	}
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	for n < len(b) {
		moved, err := r.out.move(b[n:])
		if n += moved; err != nil {
			return n, r.wrap("write", err)
		}
	}
	return n, nil
}

// wrap turns an error of a system call into the one that net.TCPConn would return.
func (r *rawConn) wrap(op string, err error) error {
	errno, ok := err.(syscall.Errno)
	if !ok {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: r.LocalAddr(), Addr: r.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
}
