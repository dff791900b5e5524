package api

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/internal/rawconn"
)

const (
	// lingerTime and lingerBytes bound how long a connection lingers before it is
	// closed, and how many bytes of further input it discards meanwhile. Closing it
	// while the caller still sends would reset it, and the caller would lose the
	// answer.
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
	// strangerLinger bounds how long a stranger's connection lingers. It is short,
	// because the stranger holds a seat meanwhile.
	strangerLinger = 500 * time.Millisecond
)

// strangerRequests is how many requests a stranger's connection may make. The
// stranger gets only answers to probes and refusals, however many requests it
// sends ahead.
const strangerRequests = 16

// Connection is a tracked connection. It can linger when it is closed.
type Connection struct {
	net.Conn
	tryWriter   rawconn.TryWriter   // Conn, if it can write without waiting; otherwise nil
	waitCounter rawconn.WaitCounter // Conn, if it counts its waits; otherwise nil

	owner       *Connections
	address     netip.Prefix // see addressOf
	hasSeat     bool         // holds a seat; guarded by the owner's mutex
	interrupter Interrupter  // guarded by the owner's mutex; nil until its door has begun with it
	ProbesOnly  bool         // holds a spare seat, so that only one probe is answered
	trusted     atomic.Bool  // has shown a valid token; changed under the owner's mutex
	inputState  atomic.Int32 // the state of its input, such as inputReceived
	linger      atomic.Bool  // Close lingers
	once        sync.Once    // runs the close

	requests      atomic.Int32 // how many it has made as a stranger
	keepsIdle     atomic.Bool  // CloseIdle leaves it open
	closedForRoom atomic.Bool  // the budget has closed it
	// waitingSince is when the connection began to wait for its caller, in
	// nanoseconds since its owner began; 0: it does not wait, and is not
	// displaced.
	waitingSince atomic.Int64
	// writeDeadline is what SetWriteDeadline was called with, in nanoseconds since
	// its owner began; 0: none.
	writeDeadline atomic.Int64
	ahead         ahead
}

// displacedMark is the waitingSince of a connection that has lost its seat.
const displacedMark = -1

// The states of a connection's input. After a silent connection has been
// closed, its input is discarded, because a decision could not be answered.
const (
	inputNone int32 = iota
	inputReceived
	inputLate
)

// BeginWait notes that c waits for its caller, since now.
func (c *Connection) BeginWait(now time.Time) {
	// A plain store could undo a displacement that comes in between. The node
	// would then decide a request that it can't answer.
	if since := c.waitingSince.Load(); since != displacedMark {
		c.waitingSince.CompareAndSwap(since, c.owner.sinceBegan(now))
	}
}

// BeginAnswer notes that c's caller waits for an answer, so that c must not be
// displaced. It reports false if c has been displaced already: its caller would
// not get the answer.
func (c *Connection) BeginAnswer() bool {
	if !c.trusted.Load() {
		c.requests.Add(1)
	}
	// Only a displacement changes the value in between, so a failed swap means
	// that c was displaced.
	since := c.waitingSince.Load()
	return since != displacedMark && c.waitingSince.CompareAndSwap(since, 0)
}

// HasUsedUpRequests reports whether c must be closed after the next answer: it
// has asked too often without a valid token.
func (c *Connection) HasUsedUpRequests() bool {
	return c.requests.Load() > strangerRequests && c.IsStranger()
}

// KeepIdle makes CloseIdle leave c open.
func (c *Connection) KeepIdle() { c.keepsIdle.Store(true) }

// Trust notes that c's caller has shown a valid token.
func (c *Connection) Trust() {
	if c.trusted.Load() {
		return
	}
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	c.owner.seats.trust(c)
}

// IsStranger reports whether c should have shown a valid token, and has not.
func (c *Connection) IsStranger() bool { return !c.trusted.Load() && c.owner.needTokens() }

// IdleTimeout returns how long c may wait for the next request. usual is its
// door's idle timeout.
func (c *Connection) IdleTimeout(usual time.Duration) time.Duration {
	if c.IsStranger() {
		return min(usual, strangerIdle)
	}
	return usual
}

// Unwrap returns the connection of type T that c is or wraps; nil if there is none.
func Unwrap[T net.Conn](c net.Conn) (zero T) {
	for {
		if conn, ok := c.(T); ok {
			return conn
		}
		wrapper, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return zero
		}
		c = wrapper.NetConn()
	}
}

// Read returns received bytes.
func (c *Connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.NoteInput() {
		return 0, net.ErrClosed
	}
	return n, err
}

// NoteInput notes that something was received. Code that reads from Conn itself
// must call it. It reports false if the connection was closed because it was
// silent.
func (c *Connection) NoteInput() bool {
	// Nearly every input is a later one, and a plain load is cheaper than a swap.
	if c.inputState.Load() == inputReceived || c.inputState.CompareAndSwap(inputNone, inputReceived) {
		return true
	}
	// Another goroutine noted the first input in between, or closed the connection.
	return c.inputState.Load() == inputReceived
}

// Descriptor returns c's file descriptor, or -1 if it is unknown. The caller
// may poll it while c is open. If c is closed meanwhile, the number may be
// reused: a wrong result must do no harm.
func (c *Connection) Descriptor() int {
	file, ok := c.Conn.(syscall.Conn)
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

// Linger makes Close discard further input first, so that the caller can read the last answer.
func (c *Connection) Linger() { c.linger.Store(true) }

// drop closes the connection under the goroutine that serves it, which gets an
// error and calls Close.
func (c *Connection) drop() { _ = c.Conn.Close() }

// Close closes the connection, once.
func (c *Connection) Close() (err error) {
	c.once.Do(func() {
		if c.linger.Load() {
			c.drain()
		}
		err = c.Conn.Close()
		// This comes last: Wait promises that all connections are closed.
		c.owner.remove(c)
	})
	return err
}

// drain half-closes the connection and discards input until the caller closes its side.
func (c *Connection) drain() {
	c.BeginWait(time.Now()) // from now on it may be displaced
	wait := lingerTime
	if c.IsStranger() {
		wait = strangerLinger
	}

	halfCloser, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || halfCloser.CloseWrite() != nil || c.Conn.SetReadDeadline(time.Now().Add(wait)) != nil {
		return
	}
	// An error ends the wait as well as EOF does.
	_, _ = io.CopyN(io.Discard, onlyReader{c.Conn}, lingerBytes)
}

// onlyReader hides the methods of a connection with which io.Copy would use larger buffers.
type onlyReader struct{ io.Reader }
