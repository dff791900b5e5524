package memnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// waitingToBeAccepted bounds the connections that a listener keeps for Accept;
	// dials wait for room.
	waitingToBeAccepted = 128
	// maxDialTime bounds a dial whose context has no deadline.
	maxDialTime = 30 * time.Second
)

// Host is a machine on the network.
type Host struct {
	net  *Net
	ip   string
	addr netip.Addr

	// Guarded by the mutex of net.
	dead      bool
	listeners map[int]*Listener
	sockets   map[int]*PacketConn
	port      int // the last port picked for a dial or a listener
}

// IP returns the host's address.
func (h *Host) IP() string { return h.ip }

func (h *Host) portLocked() int {
	h.port++
	return h.port
}

func (h *Host) tcp(port int) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.addr, uint16(port)))
}

// Listen starts a listener; port 0 picks any.
func (h *Host) Listen(port int) (net.Listener, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()

	if h.dead {
		return nil, fmt.Errorf("listen at %s: %w", h.ip, syscall.ENETDOWN)
	}

	if port == 0 {
		port = h.portLocked()
	}

	if h.listeners[port] != nil {
		return nil, fmt.Errorf("listen at %s:%d: %w", h.ip, port, syscall.EADDRINUSE)
	}

	l := &Listener{host: h, port: port, conns: make(chan *Conn, waitingToBeAccepted), closed: make(chan struct{})}
	h.listeners[port] = l
	h.net.wakeLocked()
	return l, nil
}

// Listener is a net.Listener of a host.
type Listener struct {
	host   *Host
	port   int
	conns  chan *Conn
	closed chan struct{}
	once   sync.Once
}

// Accept waits for a connection; at a frozen host it waits until the host thaws.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		n := l.host.net
		n.mu.Lock()
		frozen := n.isFrozenLocked(l.host.ip)
		changed := n.changed
		n.mu.Unlock()
		conns := l.conns
		if frozen {
			conns = nil
		}

		select {
		case <-l.closed:
			return nil, net.ErrClosed
		case <-changed:
		case c := <-conns:
			return c, nil
		}
	}
}

// Close ends the listener, and closes connections that were not accepted.
func (l *Listener) Close() error {
	l.once.Do(func() {
		n := l.host.net
		n.mu.Lock()
		delete(l.host.listeners, l.port)
		close(l.closed)
		n.mu.Unlock()

		for {
			select {
			case c := <-l.conns:
				c.Close()
			default:
				return
			}
		}
	})
	return nil
}

// Addr returns a *net.TCPAddr.
func (l *Listener) Addr() net.Addr { return l.host.tcp(l.port) }

// Dial connects to "ip:port". If the host doesn't exist or the link is cut, it
// waits until ctx ends. A host without a listener at port refuses.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, maxDialTime)
	defer cancel()
	c, err := h.dial(ctx, to.Addr().String(), int(to.Port()))
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	return c, nil
}

func (h *Host) dial(ctx context.Context, ip string, port int) (*Conn, error) {
	n := h.net
	for {
		n.mu.Lock()
		dead := h.dead
		delay := n.delayLocked(h.ip, ip)
		changed := n.changed
		open := n.hosts[ip] != nil && !n.isCutOffLocked(h.ip, ip) && !n.isCutOffLocked(ip, h.ip) &&
			!n.isFrozenLocked(h.ip)
		n.mu.Unlock()

		if dead {
			return nil, syscall.ENETDOWN
		}

		if !open {
			if err := waitFor(ctx, changed); err != nil {
				return nil, err
			}
			continue
		}

		if delay > 0 {
			if err := sleep(ctx, 2*delay); err != nil {
				return nil, err
			}
		} else if err := ctx.Err(); err != nil {
			return nil, asNetTimeout(err)
		}

		c, retry, err := h.connect(ip, port)
		switch {
		case err != nil || c != nil:
			return c, err
		case retry: // the listener has no room
			if err := sleep(ctx, max(delay, time.Millisecond)); err != nil {
				return nil, err
			}
		}
	}
}

// connect makes both ends. If the listener has no room, retry is true. A nil
// Conn without an error means that the path has been cut meanwhile.
func (h *Host) connect(ip string, port int) (c *Conn, retry bool, err error) {
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()

	other := n.hosts[ip]
	if h.dead || other == nil || n.isCutOffLocked(h.ip, ip) || n.isCutOffLocked(ip, h.ip) || n.isFrozenLocked(h.ip) {
		return nil, false, nil
	}

	l := other.listeners[port]
	if l == nil {
		return nil, false, syscall.ECONNREFUSED
	}
	if len(l.conns) == cap(l.conns) {
		return nil, true, nil
	}

	near, far := n.streamLocked(h, other, h.portLocked(), port)
	l.conns <- far // has room: only connect sends, with the mutex held
	return near, false, nil
}

func waitFor(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return asNetTimeout(ctx.Err())
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return asNetTimeout(ctx.Err())
	}
}

// asNetTimeout makes a deadline error look like one of package net.
func asNetTimeout(err error) error {
	if err == context.DeadlineExceeded {
		return os.ErrDeadlineExceeded
	}
	return err
}
