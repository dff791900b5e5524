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
	// A connection that is closed while its caller still sends would be reset, and the answer lost with it. So it
	// lingers: what comes is thrown away, up to these bounds.
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
	// acceptWait is how long no connection is taken, at first, when the process may open no more files.
	acceptWait = 5 * time.Millisecond
)

// connections are the open connections of a listener, so that all can be closed and waited for.
type connections struct {
	began time.Time
	// slack is how late deadlines may be; 0: they are set at once and exactly, also for a read or write under way.
	slack time.Duration
	// quick, if it is not nil, answers what was read of a connection between two requests. Where it reports false, whoever
	// reads gets it.
	quick func(*connection, []byte) (bool, error)
	// framed: requests come in the clear, and are read strictly.
	framed bool

	mu     sync.Mutex // guards what follows
	places places
	open   map[*connection]struct{}
	closed bool
	over   chan struct{}  // closed with closed
	gone   sync.WaitGroup // of open
}

func newConnections(slack time.Duration, most int) *connections {
	return &connections{began: time.Now(), slack: slack, places: newPlaces(most), open: make(map[*connection]struct{}), over: make(chan struct{})}
}

// listen returns ln with its connections kept in c.
func (c *connections) listen(ln net.Listener) net.Listener {
	return &trackedListener{Listener: ln, conns: c}
}

// closeAll closes every connection, and from now on every new one.
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
		_ = one.Conn.Close() // whoever uses it sees the error and ends
	}
}

// closeSilent closes the connections over which nothing ever came.
func (c *connections) closeSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for one := range c.open {
		if !one.heard.Load() {
			_ = one.Conn.Close()
		}
	}
}

// wait returns when every connection has been closed by its user.
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
			_ = before.Conn.Close() // whoever uses it sees the error and ends
		}
	}
	c.open[one] = struct{}{}
	c.gone.Add(1)
	return one
}

// beyond is how many connections found no place so far.
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

// resume gives a parked connection a place again. It reports false where there is none.
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
		// The library would stop listening for good.
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

// connection is a connection whose end can linger.
type connection struct {
	net.Conn
	owner   *connections
	address netip.Prefix // see addressOf
	placed  bool         // it has a place; guarded by the owner's mutex
	spare   bool         // it has a spare one, and is answered one probe
	heard   atomic.Bool  // something came
	linger  atomic.Bool  // the end does
	once    sync.Once    // the end

	reading, writing deadline // only where the owner has slack

	// between: the library waits for the next request, and has nothing of it. Whoever serves the connection has it alone.
	between bool
	frame   framing
	head    quickHead    // of the last request that was answered the quick way
	work    atomic.Int32 // what the quick way does with it
}

// What the quick way does with a connection.
const (
	workNone   int32 = iota
	workAnswer       // it answers a request
	workLast         // it answers one, and then closes the connection
	workClosed       // the connection is closed
)

// begin begins an answer of the quick way. It reports false if the connection is closed.
func (c *connection) begin() bool { return c.work.CompareAndSwap(workNone, workAnswer) }

// ending reports whether the answer that was begun is the last one.
func (c *connection) ending() bool { return c.work.Load() == workLast }

// end ends an answer, and reports whether the connection with it, since somebody wanted to close it meanwhile.
func (c *connection) end() bool {
	if c.work.CompareAndSwap(workAnswer, workNone) {
		return false
	}
	c.work.Store(workClosed)
	_ = c.shut() // nobody waits for what it says
	return true
}

// Close ends the connection, at once or behind the answer that is under way.
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

// SetDeadline is until when the next reads and writes may take.
func (c *connection) SetDeadline(t time.Time) error {
	if c.owner.slack == 0 {
		return c.Conn.SetDeadline(t)
	}
	c.reading.ask(t, c.owner.began)
	c.writing.ask(t, c.owner.began)
	return nil
}

// SetReadDeadline is until when the next reads may take.
func (c *connection) SetReadDeadline(t time.Time) error {
	if c.owner.slack == 0 {
		return c.Conn.SetReadDeadline(t)
	}
	c.reading.ask(t, c.owner.began)
	return nil
}

// SetWriteDeadline is until when the next writes may take.
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

// Read reads what came, but for what is answered at once.
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

// follow is what Read returns, where the requests are followed, that got b and err from below.
func (c *connection) follow(b []byte, err error) (int, error) {
	if !c.owner.framed {
		return len(b), err
	}
	return c.frame.filter(b, err)
}

// receive reads what came.
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

// drain tells the caller that nothing more comes, and reads on until it has understood.
func (c *connection) drain() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, onlyReader{c.Conn}, lingerBytes) // its end, in whatever way, is what is waited for
}

// onlyReader keeps io.Copy from looking for faster ways that need more room.
type onlyReader struct{ io.Reader }
