package api

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/internal/figures"
)

const (
	// lingerTime and lingerBytes bound how long a connection lingers before it is closed, and how many bytes of further
	// input it discards meanwhile. Closed while its caller still sends, it would be reset, and the caller would lose the
	// answer.
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
	// acceptWait is how long to wait, at first, before accepting again when the process may open no more files.
	acceptWait = 5 * time.Millisecond
)

// Connections tracks the open connections of a listener, so that all can be closed and waited for.
type Connections struct {
	mu     sync.Mutex // guards the rest
	places places
	open   map[*Connection]struct{}
	closed bool
	over   chan struct{}  // closed when closed becomes true
	gone   sync.WaitGroup // counts open
}

// NewConnections tracks connections of which at most so many are served at once; 0: no bound.
func NewConnections(most int) *Connections {
	return &Connections{places: newPlaces(most), open: make(map[*Connection]struct{}), over: make(chan struct{})}
}

// Listen wraps ln so that c tracks its connections.
func (c *Connections) Listen(ln net.Listener) net.Listener {
	return &trackedListener{Listener: ln, conns: c}
}

// CloseAll closes every connection, and from then on every new one.
func (c *Connections) CloseAll() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.over)
	}
	all := make([]*Connection, 0, len(c.open))
	for one := range c.open {
		all = append(all, one)
	}
	c.mu.Unlock()
	for _, one := range all {
		_ = one.Conn.Close() // its user sees the error and stops
	}
}

// CloseSilent closes the connections on which nothing was ever received.
func (c *Connections) CloseSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for one := range c.open {
		if !one.heard.Load() {
			_ = one.Conn.Close()
		}
	}
}

// Wait returns once every connection has been closed by its user.
func (c *Connections) Wait() { c.gone.Wait() }

func (c *Connections) add(conn net.Conn) *Connection {
	one := &Connection{Conn: conn, owner: c, address: addressOf(conn.RemoteAddr())}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		one.once.Do(func() {})
		return one
	}
	if !c.places.take(one) {
		if before := c.places.takeSpare(one); before != nil {
			_ = before.Conn.Close() // its user sees the error and stops
		}
	}
	c.open[one] = struct{}{}
	c.gone.Add(1)
	return one
}

// Figures shows how many connections of a door have found no place.
func (c *Connections) Figures(s figures.Sink, door string) {
	c.mu.Lock()
	beyond := c.places.beyond
	c.mu.Unlock()
	s.Count("connections_beyond_total",
		"Connections beyond the bounds, in all or of one address, which are answered probes only.", beyond, "door", door)
}

// Count returns how many connections are open, and on how many of those something was received.
func (c *Connections) Count() (open, heard int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for one := range c.open {
		if one.heard.Load() {
			heard++
		}
	}
	return len(c.open), heard
}

// Park frees the place of a connection that nothing serves for now.
func (c *Connections) Park(one *Connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places.leave(one)
}

// Resume gives a parked connection a place again. It reports false if there is none.
func (c *Connections) Resume(one *Connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && c.places.take(one)
}

func (c *Connections) remove(one *Connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, one)
	c.places.leave(one)
	c.gone.Done()
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
		// On these errors the library would stop listening for good.
		if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) && !errors.Is(err, syscall.ECONNABORTED) {
			return nil, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-l.conns.over:
			timer.Stop()
			return nil, net.ErrClosed
		}
	}
}

// Connection is a connection that can linger when it is closed.
type Connection struct {
	net.Conn
	owner   *Connections
	address netip.Prefix // see addressOf
	placed  bool         // it holds a place; guarded by the owner's mutex
	Spare   bool         // it holds a spare place and gets one probe answered
	heard   atomic.Bool  // something was received
	linger  atomic.Bool  // closing it lingers
	once    sync.Once    // runs the close
}

// Unwrap returns the connection of type T that c is or is based on; nil: none.
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
	if n > 0 && !c.heard.Load() {
		c.heard.Store(true)
	}
	return n, err
}

// Linger makes Close discard further input first, such that the caller can read the last answer.
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
	_, _ = io.CopyN(io.Discard, onlyReader{c.Conn}, lingerBytes) // only its end matters, however it ends
}

// onlyReader keeps io.Copy away from shortcuts that need larger buffers.
type onlyReader struct{ io.Reader }
