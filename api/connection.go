package api

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A connection that is closed while its caller still sends would be reset, and the answer lost with it. So it
	// lingers: what comes is thrown away, up to these bounds.
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
)

// connections are the open connections of a listener, so that all can be closed and waited for.
type connections struct {
	mu     sync.Mutex // guards open and closed
	open   map[*connection]struct{}
	closed bool
	gone   sync.WaitGroup // of open
}

func newConnections() *connections {
	return &connections{open: make(map[*connection]struct{})}
}

// listen returns ln with its connections kept in c.
func (c *connections) listen(ln net.Listener) net.Listener {
	return &trackedListener{Listener: ln, conns: c}
}

// closeAll closes every connection, and from now on every new one.
func (c *connections) closeAll() {
	c.mu.Lock()
	c.closed = true
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
	one := &connection{Conn: conn, owner: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		one.once.Do(func() {})
		return one
	}
	c.open[one] = struct{}{}
	c.gone.Add(1)
	return one
}

func (c *connections) remove(one *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, one)
	c.gone.Done()
}

type trackedListener struct {
	net.Listener
	conns *connections
}

// Accept waits for the next connection.
func (l *trackedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.conns.add(conn), nil
}

// connection is a connection whose end can linger.
type connection struct {
	net.Conn
	owner  *connections
	heard  atomic.Bool // something came
	linger atomic.Bool // the end does
	once   sync.Once   // the end
}

// Read reads what came.
func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Load() {
		c.heard.Store(true)
	}
	return n, err
}

// Close ends the connection.
func (c *connection) Close() (err error) {
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
