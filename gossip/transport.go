package gossip

import (
	"context"
	"fmt"
	"log"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxStreams bounds the connections that others have open here; one more is closed at once. memberlist itself
	// bounds only how many of them it answers.
	maxStreams = 256
	bindTries  = 10 // to find a port that is free for both TCP and UDP
)

// sockets are the real network. Its dials end with the transport that wraps it.
type sockets struct{ *memberlist.NetTransport }

func (sockets) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// listen opens the real network for c; with port 0 it sets the port that was found.
func listen(c *Config, logger *log.Logger) (memberlist.Transport, error) {
	tries := 1
	if c.Port == 0 {
		tries = bindTries // the port that is free for TCP may be taken for UDP
	}
	var last error
	for try := 0; try < tries; try++ {
		t, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{c.BindAddr}, BindPort: c.Port, Logger: logger,
		})
		if err == nil {
			c.Port = t.GetAutoBindPort()
			return sockets{t}, nil
		}
		last = err
		if c.AnyPort && c.Port != 0 {
			c.Port, tries = 0, bindTries
		}
	}
	return nil, fmt.Errorf("listen for gossip: %w", last)
}

// transport passes everything on to another one and knows which connections are open: memberlist leaves them to
// their deadlines when it shuts down.
type transport struct {
	memberlist.Transport
	streams chan net.Conn
	ctx     context.Context // ends with Shutdown
	cancel  context.CancelFunc
	wg      sync.WaitGroup // pass

	mu       sync.Mutex
	open     map[*conn]struct{} // guarded by mu; nil once shut down
	incoming int                // guarded by mu: how many of open were accepted
}

func newTransport(t memberlist.Transport) *transport {
	w := &transport{
		Transport: t,
		streams:   make(chan net.Conn),
		open:      make(map[*conn]struct{}),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.wg.Go(w.pass)
	return w
}

// pass hands accepted connections on to memberlist.
func (t *transport) pass() {
	for {
		var c net.Conn
		select {
		case <-t.ctx.Done():
			return
		case c = <-t.Transport.StreamCh():
		}
		tracked, err := t.track(c, accepted)
		if err != nil {
			continue
		}
		select {
		case <-t.ctx.Done():
			tracked.Close()
			return
		case t.streams <- tracked:
		}
	}
}

func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	if timeout <= 0 { // to some dialers zero means for ever
		return nil, fmt.Errorf("dial %s: no time is left", addr)
	}
	if t.ctx.Err() != nil {
		return nil, ErrClosed
	}
	c, err := t.dial(addr, timeout)
	if err != nil {
		return nil, err
	}
	return t.track(c, dialed)
}

func (t *transport) dial(addr string, timeout time.Duration) (net.Conn, error) {
	s, ok := t.Transport.(sockets)
	if !ok {
		return t.Transport.DialTimeout(addr, timeout)
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	return s.dial(ctx, addr)
}

// Shutdown closes the listeners and every connection. memberlist still takes what arrives until it returns.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	open := t.open
	t.open = nil
	t.mu.Unlock()
	if open == nil {
		return nil
	}
	err := t.Transport.Shutdown()
	t.cancel()
	t.wg.Wait()
	for c := range open {
		c.Conn.Close()
	}
	return err
}

type direction uint8

const (
	dialed direction = iota
	accepted
)

// conn is a connection that is known to its transport.
type conn struct {
	net.Conn
	t   *transport
	dir direction
}

// track notes c as open, or closes it.
func (t *transport) track(c net.Conn, dir direction) (net.Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil || (dir == accepted && t.incoming >= maxStreams) {
		c.Close()
		return nil, ErrClosed
	}
	if dir == accepted {
		t.incoming++
	}
	tracked := &conn{Conn: c, t: t, dir: dir}
	t.open[tracked] = struct{}{}
	return tracked, nil
}

func (c *conn) Close() error {
	c.t.mu.Lock()
	if _, open := c.t.open[c]; open {
		delete(c.t.open, c)
		if c.dir == accepted {
			c.t.incoming--
		}
	}
	c.t.mu.Unlock()
	return c.Conn.Close()
}
