package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxStreams bounds the accepted connections that are open; further ones are
	// closed at once. memberlist itself bounds only the number that it answers.
	maxStreams = 256
	// maxStreamsFrom bounds the open connections from one address, so that it
	// can't keep out all others.
	maxStreamsFrom = maxStreams * 3 / 4
	// streamRoom is the memory in bytes that each accepted connection may use to
	// receive a message. What connections need beyond it comes from sharedRoom,
	// which is enough for four of the largest messages, or for two encrypted ones.
	streamRoom = 64 << 10
	sharedRoom = 4 * maxStream
	// maxSyncs bounds the lists that memberlist reads and answers at once: an
	// answer is as long as this node's own list, even if the request is short.
	// Further lists wait, at most for syncWait.
	maxSyncs = 16
	syncWait = 2 * time.Second

	bindTries = 10 // tries to find a port that is free for both TCP and UDP
)

// sockets is the real network. Its Shutdown cancels dials.
type sockets struct {
	*memberlist.NetTransport
	ctx context.Context
	end context.CancelFunc
}

func (s sockets) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	return d.DialContext(s.ctx, "tcp", addr)
}

func (s sockets) Shutdown() error {
	s.end()
	return s.NetTransport.Shutdown()
}

// listen opens the real network for c. If it picks a port, it sets c.Port to it.
func listen(c *Config, logger *log.Logger) (memberlist.Transport, error) {
	for try := 1; ; try++ {
		t, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{c.BindAddr}, BindPort: c.Port, Logger: logger,
		})
		if err == nil {
			c.Port = t.GetAutoBindPort()
			ctx, end := context.WithCancel(context.Background())
			return sockets{t, ctx, end}, nil
		}

		if c.AnyPort {
			c.Port = 0
		}
		// Only a picked port is worth another try: one that is free for TCP may be taken
		// for UDP.
		if c.Port != 0 || try == bindTries {
			return nil, fmt.Errorf("listen for gossip: %w", err)
		}
	}
}

// transport wraps another transport, and inspects all incoming messages before
// memberlist gets them. It tracks open connections and closes them at Shutdown;
// memberlist would leave them to their deadlines.
type transport struct {
	memberlist.Transport
	inspector *inspector
	// refused records a dropped message. It must not block.
	refused func(from net.Addr, err error)
	packets chan *memberlist.Packet
	streams chan net.Conn
	syncs   chan struct{}   // one element for each list that memberlist is reading and answering
	ctx     context.Context // ends when Shutdown begins
	cancel  context.CancelFunc
	down    chan struct{} // closed when the wrapped transport has ended
	done    chan struct{} // closed when forward has ended

	mu          sync.Mutex         // guards the fields below
	open        map[*conn]struct{} // nil once shut down
	sharedInUse int                // bytes of sharedRoom in use
}

func newTransport(inner memberlist.Transport, in *inspector, refused func(net.Addr, error)) *transport {
	t := &transport{
		Transport: inner,
		inspector: in,
		refused:   refused,
		packets:   make(chan *memberlist.Packet),
		streams:   make(chan net.Conn),
		syncs:     make(chan struct{}, maxSyncs),
		down:      make(chan struct{}),
		done:      make(chan struct{}),
		open:      make(map[*conn]struct{}),
	}

	t.ctx, t.cancel = context.WithCancel(context.Background())
	go t.forward()
	return t
}

// forward forwards packets and accepted connections to memberlist. During
// Shutdown, it drops them: the wrapped transport waits until somebody has
// received everything from its channels.
func (t *transport) forward() {
	defer close(t.done)

	for {
		select {
		case <-t.down:
			return
		case p := <-t.Transport.PacketCh():
			buf, err := t.inspector.inspectPacket(p.Buf, p.From)
			if err != nil {
				t.refused(p.From, err)
				continue
			}

			select {
			case <-t.ctx.Done():
			case t.packets <- &memberlist.Packet{Buf: buf, From: p.From, Timestamp: p.Timestamp}:
			}
		case c := <-t.Transport.StreamCh():
			tracked, err := t.track(c, accepted)
			if err != nil {
				continue
			}
			select {
			case <-t.ctx.Done():
				tracked.Close()
			case t.streams <- tracked:
			}
		}
	}
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	if timeout <= 0 { // zero means no limit to some dialers
		return nil, fmt.Errorf("dial %s: no time is left", addr)
	}
	if t.ctx.Err() != nil {
		return nil, ErrClosed
	}

	c, err := t.Transport.DialTimeout(addr, timeout)
	if err != nil {
		return nil, err
	}
	return t.track(c, dialed)
}

// Shutdown closes the listeners and every connection.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	// From here on, track takes no connection, so none is missed below.
	open := t.open
	t.open = nil
	t.mu.Unlock()

	if open == nil {
		return nil
	}

	t.cancel()
	err := t.Transport.Shutdown()
	close(t.down)
	<-t.done

	for c := range open {
		c.Conn.Close()
	}

	return err
}

// direction says which end opened a connection.
type direction uint8

const (
	dialed direction = iota
	accepted
)

// conn is a connection that its transport tracks. It yields one inspected
// message to its reader, and no more.
type conn struct {
	net.Conn
	transport *transport
	dir       direction
	from      string // IP of the remote, if accepted

	once    sync.Once
	message *bytes.Reader // set by once
	err     error         // set by once

	reserved    int  // guarded by t.mu: bytes of memory reserved for the message
	hasSyncTurn bool // guarded by t.mu: holds an element of t.syncs
}

// track registers c as open. If the transport is shut down, or there are too
// many accepted connections, it closes c and returns ErrClosed.
func (t *transport) track(c net.Conn, dir direction) (net.Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	tracked := &conn{Conn: c, transport: t, dir: dir}
	if dir == accepted {
		tracked.from, _, _ = net.SplitHostPort(c.RemoteAddr().String())
	}

	acceptedCount, fromSame := 0, 0
	for other := range t.open {
		if dir == accepted && other.dir == accepted {
			acceptedCount++
			if other.from == tracked.from {
				fromSame++
			}
		}
	}

	if t.open == nil || acceptedCount >= maxStreams || fromSame >= maxStreamsFrom {
		c.Close()
		return nil, ErrClosed
	}

	t.open[tracked] = struct{}{}
	return tracked, nil
}

// Read returns bytes of the message. The first Read receives and inspects the
// whole message, within the deadline that memberlist has set.
func (cn *conn) Read(p []byte) (int, error) {
	cn.once.Do(func() {
		var body []byte
		body, cn.err = cn.receive()
		if cn.err == nil {
			cn.message = bytes.NewReader(body)
			return
		}

		_, isRefusal := errors.AsType[refusal](cn.err)
		if isRefusal {
			cn.transport.refused(cn.RemoteAddr(), cn.err)
		}
	})

	if cn.err != nil {
		return 0, cn.err
	}
	return cn.message.Read(p)
}

// receive returns the message of the connection. If the remote dialled this
// node and sends too little or too slowly, the error is a refusal. If this node
// dialled the remote, which ends the connection at once, it is errNoAnswer.
func (cn *conn) receive() ([]byte, error) {
	body, err := cn.transport.inspector.inspectStream(cn.Conn, cn.dir, cn.reserve)
	_, isRefusal := errors.AsType[refusal](err)
	ended := errors.Is(err, io.EOF)
	switch {
	case err == nil && cn.dir == accepted && body[0] == pushPullMsg:
		err = cn.awaitSyncTurn()
	case cn.dir == dialed && (ended || errors.Is(err, syscall.ECONNRESET)):
		err = errNoAnswer
	case err == nil || isRefusal || cn.dir == dialed || ended || errors.Is(err, net.ErrClosed):
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errTooSlow
	default:
		err = errCutShort
	}
	return body, err
}

// errNoAnswer is the error of a dial whose remote refuses this node. The remote
// logs the reason, but does not send it.
var errNoAnswer = errors.New("it closes this node's connections without an answer: " +
	"check that this is its gossip port, and that both have the same cluster secret")

// reserve raises the memory reserved for the message to a total of bytes.
func (cn *conn) reserve(bytes int) error {
	cn.transport.mu.Lock()
	defer cn.transport.mu.Unlock()

	if _, open := cn.transport.open[cn]; !open {
		return net.ErrClosed
	}

	more := max(0, bytes-streamRoom) - max(0, cn.reserved-streamRoom)
	if cn.transport.sharedInUse+more > sharedRoom {
		return errNoRoom
	}

	cn.reserved = bytes
	cn.transport.sharedInUse += more
	return nil
}

// awaitSyncTurn waits until memberlist may read and answer the connection's
// list: at most maxSyncs at once.
func (cn *conn) awaitSyncTurn() error {
	select {
	case cn.transport.syncs <- struct{}{}:
	case <-cn.transport.ctx.Done():
		return ErrClosed
	case <-time.After(syncWait):
		return errNoRoom
	}

	cn.transport.mu.Lock()
	defer cn.transport.mu.Unlock()
	if _, open := cn.transport.open[cn]; !open {
		// Close came first, and had no turn to give back.
		<-cn.transport.syncs
		return net.ErrClosed
	}

	cn.hasSyncTurn = true
	return nil
}

// Write closes the connection if it fails, because memberlist leaks a
// connection on which it can't send a label.
func (cn *conn) Write(b []byte) (int, error) {
	n, err := cn.Conn.Write(b)
	if err != nil {
		cn.Close()
	}
	return n, err
}

func (cn *conn) Close() error {
	cn.transport.mu.Lock()
	if _, open := cn.transport.open[cn]; open {
		delete(cn.transport.open, cn)
		cn.transport.sharedInUse -= max(0, cn.reserved-streamRoom)
		if cn.hasSyncTurn {
			<-cn.transport.syncs
		}
	}
	cn.transport.mu.Unlock()
	return cn.Conn.Close()
}
