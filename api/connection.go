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
)

const (
	// If a connection is closed while its caller still sends, it is reset, and the caller loses the answer. So the
	// connection lingers: further input is discarded, up to these bounds.
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
	// acceptWait is how long to wait, at first, before accepting again when the process may open no more files.
	acceptWait = 5 * time.Millisecond
)

// connections tracks the open connections of a listener, so that all can be closed and waited for.
type connections struct {
	began time.Time
	// slack is how late deadlines may fire; 0: they are set at once and exactly, even for a read or write in progress.
	slack time.Duration
	// quick, if not nil, answers input that was read between two requests. If it reports false, the reader gets the input.
	quick func(*connection, []byte) (bool, error)
	// framed means that requests arrive in plain text and are parsed strictly.
	framed bool

	mu     sync.Mutex // guards the rest
	places places
	open   map[*connection]struct{}
	closed bool
	over   chan struct{}  // closed when closed becomes true
	gone   sync.WaitGroup // counts open
}

func newConnections(slack time.Duration, most int) *connections {
	return &connections{began: time.Now(), slack: slack, places: newPlaces(most), open: make(map[*connection]struct{}), over: make(chan struct{})}
}

// listen wraps ln so that c tracks its connections.
func (c *connections) listen(ln net.Listener) net.Listener {
	return &trackedListener{Listener: ln, conns: c}
}

// closeAll closes every connection, and from then on every new one.
func (c *connections) closeAll() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.over)
	}
	all := make([]*connection, 0, len(c.open))
	for one := range c.open {
		all = append(all, one)
	}
	c.mu.Unlock()
	for _, one := range all {
		_ = one.Conn.Close() // its user sees the error and stops
	}
}

// closeSilent closes the connections on which nothing was ever received.
func (c *connections) closeSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for one := range c.open {
		if !one.heard.Load() {
			_ = one.Conn.Close()
		}
	}
}

// wait returns once every connection has been closed by its user.
func (c *connections) wait() { c.gone.Wait() }

func (c *connections) add(conn net.Conn) *connection {
	one := &connection{Conn: conn, owner: c, address: addressOf(conn.RemoteAddr())}
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

// beyond returns how many connections have found no place so far.
func (c *connections) beyond() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.places.beyond
}

// park frees the place of a connection that nothing serves for now.
func (c *connections) park(one *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places.leave(one)
}

// resume gives a parked connection a place again. It reports false if there is none.
func (c *connections) resume(one *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && c.places.take(one)
}

func (c *connections) remove(one *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, one)
	c.places.leave(one)
	c.gone.Done()
}

type trackedListener struct {
	net.Listener
	conns *connections
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

// connection is a connection that can linger when it is closed.
type connection struct {
	net.Conn
	owner   *connections
	address netip.Prefix // see addressOf
	placed  bool         // it holds a place; guarded by the owner's mutex
	spare   bool         // it holds a spare place and gets one probe answered
	heard   atomic.Bool  // something was received
	linger  atomic.Bool  // closing it lingers
	once    sync.Once    // runs the close

	reading, writing deadline // used only if the owner has slack

	// between is true while the library waits for the next request and has read none of it. Only the goroutine that serves
	// the connection uses it.
	between bool
	frame   framing
	head    quickHead    // of the last request that was answered the quick way
	work    atomic.Int32 // the state of the quick way
}

// The states of the quick way on a connection.
const (
	workNone   int32 = iota
	workAnswer       // a request is being answered
	workLast         // a request is being answered, and the connection closes after it
	workClosed       // the connection is closed
)

// begin starts an answer of the quick way. It reports false if the connection is closed.
func (c *connection) begin() bool { return c.work.CompareAndSwap(workNone, workAnswer) }

// ending reports whether the answer in progress is the last one.
func (c *connection) ending() bool { return c.work.Load() == workLast }

// end finishes an answer. It closes the connection and reports true if Close was called in the meantime.
func (c *connection) end() bool {
	if c.work.CompareAndSwap(workAnswer, workNone) {
		return false
	}
	c.work.Store(workClosed)
	_ = c.shut() // no one is left to handle the error
	return true
}

// Close closes the connection, at once or after the answer in progress.
func (c *connection) Close() error {
	for !c.work.CompareAndSwap(workNone, workClosed) {
		if c.work.CompareAndSwap(workAnswer, workLast) {
			return nil
		}
		switch c.work.Load() {
		case workLast:
			return nil
		case workClosed:
			return c.shut()
		}
	}
	return c.shut()
}

// SetDeadline bounds the next reads and writes.
func (c *connection) SetDeadline(t time.Time) error {
	if c.owner.slack == 0 {
		return c.Conn.SetDeadline(t)
	}
	c.reading.ask(t, c.owner.began)
	c.writing.ask(t, c.owner.began)
	return nil
}

// SetReadDeadline bounds the next reads.
func (c *connection) SetReadDeadline(t time.Time) error {
	if c.owner.slack == 0 {
		return c.Conn.SetReadDeadline(t)
	}
	c.reading.ask(t, c.owner.began)
	return nil
}

// SetWriteDeadline bounds the next writes.
func (c *connection) SetWriteDeadline(t time.Time) error {
	if c.owner.slack == 0 {
		return c.Conn.SetWriteDeadline(t)
	}
	c.writing.ask(t, c.owner.began)
	return nil
}

// Write sends b.
func (c *connection) Write(b []byte) (int, error) {
	if slack := c.owner.slack; slack > 0 {
		if t, moves := c.writing.next(c.owner.began, slack); moves {
			if err := c.Conn.SetWriteDeadline(t); err != nil {
				return 0, err
			}
		}
	}
	return c.Conn.Write(b)
}

// Read returns received bytes, except for requests that the quick way answers itself.
func (c *connection) Read(b []byte) (int, error) {
	if c.frame.err != nil {
		return 0, c.frame.err
	}
	for {
		n, err := c.receive(b)
		if n == 0 || err != nil || !c.between || c.owner.quick == nil {
			return c.follow(b[:n], err)
		}
		done, err := c.owner.quick(c, b[:n])
		if err != nil {
			return 0, err
		}
		if !done {
			return c.follow(b[:n], nil)
		}
	}
}

// follow turns b and err, as read from the connection below, into Read's result. It checks the framing if framed is
// set.
func (c *connection) follow(b []byte, err error) (int, error) {
	if !c.owner.framed {
		return len(b), err
	}
	return c.frame.filter(b, err)
}

// receive reads from the connection below.
func (c *connection) receive(b []byte) (int, error) {
	if slack := c.owner.slack; slack > 0 {
		if t, moves := c.reading.next(c.owner.began, slack); moves {
			if err := c.Conn.SetReadDeadline(t); err != nil {
				return 0, err
			}
		}
	}
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Load() {
		c.heard.Store(true)
	}
	return n, err
}

// shut closes the connection, once.
func (c *connection) shut() (err error) {
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
func (c *connection) drain() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, onlyReader{c.Conn}, lingerBytes) // only its end matters, however it ends
}

// onlyReader keeps io.Copy away from shortcuts that need larger buffers.
type onlyReader struct{ io.Reader }
