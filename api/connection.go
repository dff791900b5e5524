package api

import (
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/rawconn"
)

const (
	// lingerTime and lingerBytes bound how long a connection lingers before it is closed, and how many bytes of further
	// input it discards meanwhile. Closing it while the caller still sends would reset it, and the caller would lose the
	// answer.
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
	// acceptWait is the first pause before accepting again after the process ran out of file descriptors.
	acceptWait = 5 * time.Millisecond
)

// Connections tracks the open connections of a listener, so that all can be closed and waited for.
type Connections struct {
	mu        sync.Mutex // guards the rest
	slots     slots
	open      map[*Connection]struct{}
	closed    bool
	closing   chan struct{}  // closed when closed becomes true
	stillOpen sync.WaitGroup // counts open
}

// NewConnections returns an empty set of connections that serves at most that many at once; 0: no bound.
func NewConnections(most int) *Connections {
	return &Connections{slots: newSlots(most), open: make(map[*Connection]struct{}), closing: make(chan struct{})}
}

// Listen wraps ln so that c tracks its connections.
func (c *Connections) Listen(ln net.Listener) net.Listener {
	return &trackedListener{Listener: ln, conns: c}
}

// CloseAll closes every connection, and every later one as it arrives.
func (c *Connections) CloseAll() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.closing)
	}
	all := slices.Collect(maps.Keys(c.open))
	c.mu.Unlock()
	for _, conn := range all {
		_ = conn.Conn.Close() // the goroutine that serves it gets an error and stops
	}
}

// CloseSilent closes the connections that have never received anything.
func (c *Connections) CloseSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		if conn.input.CompareAndSwap(inputNone, inputLate) {
			_ = conn.Conn.Close()
		}
	}
}

// The states of a connection's input. A connection that is closed because it was silent receives nothing any more: what would
// be decided could not be answered.
const (
	inputNone int32 = iota
	inputReceived
	inputLate
)

// Wait returns once the goroutines that serve the connections have closed all of them.
func (c *Connections) Wait() { c.stillOpen.Wait() }

func (c *Connections) add(conn net.Conn) *Connection {
	tracked := &Connection{Conn: rawconn.Wrap(conn), owner: c, address: addressOf(conn.RemoteAddr())}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		tracked.once.Do(func() {})
		return tracked
	}
	if !c.slots.take(tracked) {
		if displaced := c.slots.takeSpare(tracked); displaced != nil {
			_ = displaced.Conn.Close() // as in CloseAll
		}
	}
	c.open[tracked] = struct{}{}
	c.stillOpen.Add(1)
	return tracked
}

// Metrics reports how many connections of a door found no slot.
func (c *Connections) Metrics(s metrics.Sink, door string) {
	c.mu.Lock()
	overflowed := c.slots.overflowed
	c.mu.Unlock()
	s.Count("connections_beyond_total",
		"Connections beyond the bounds, in all or of one address, which are answered probes only.", overflowed, "door", door)
}

// Count returns how many connections are open, and how many of those have received anything.
func (c *Connections) Count() (open, received int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		if conn.input.Load() == inputReceived {
			received++
		}
	}
	return len(c.open), received
}

// Park frees the slot of a connection while nothing serves it.
func (c *Connections) Park(conn *Connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slots.release(conn)
}

// Resume gives a parked connection a slot again. It reports false if there is none.
func (c *Connections) Resume(conn *Connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && c.slots.take(conn)
}

func (c *Connections) remove(conn *Connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
	c.slots.release(conn)
	c.stillOpen.Done()
}

type trackedListener struct {
	net.Listener
	conns *Connections
}

// Accept waits for the next connection.
func (l *trackedListener) Accept() (net.Conn, error) {
	for wait := acceptWait; ; wait = min(2*wait, time.Second) {
		conn, err := l.Listener.Accept()
		if err == nil {
			return l.conns.add(conn), nil
		}
		// Passed on, these errors would make the server library stop accepting for good.
		if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) && !errors.Is(err, syscall.ECONNABORTED) {
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-l.conns.closing:
			return nil, net.ErrClosed
		}
	}
}

// Connection is a tracked connection. It can linger when it is closed.
type Connection struct {
	net.Conn
	owner      *Connections
	address    netip.Prefix // see addressOf
	hasSlot    bool         // holds a slot; guarded by the owner's mutex
	ProbesOnly bool         // holds a spare slot, so that only one probe is answered
	input      atomic.Int32 // whether it has received something
	linger     atomic.Bool  // Close lingers
	once       sync.Once    // runs the close
}

// Unwrap returns the connection of type T that c is or wraps; nil if there is none.
func Unwrap[T net.Conn](c net.Conn) (none T) {
	for {
		if one, ok := c.(T); ok {
			return one
		}
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return none
		}
		c = over.NetConn()
	}
}

// Read returns received bytes.
func (c *Connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.input.Load() != inputReceived && !c.input.CompareAndSwap(inputNone, inputReceived) {
		return 0, net.ErrClosed
	}
	return n, err
}

// Linger makes Close discard further input first, so that the caller can read the last answer.
func (c *Connection) Linger() { c.linger.Store(true) }

// Close closes the connection, once.
func (c *Connection) Close() (err error) {
	c.once.Do(func() {
		if c.linger.Load() {
			c.drain()
		}
		err = c.Conn.Close()
		c.owner.remove(c)
	})
	return err
}

// drain half-closes the connection and discards input until the caller closes its side.
func (c *Connection) drain() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, onlyReader{c.Conn}, lingerBytes) // an error ends the wait as well as EOF does
}

// onlyReader hides the methods of a connection with which io.Copy would use larger buffers.
type onlyReader struct{ io.Reader }
