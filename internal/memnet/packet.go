package memnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// waitingPackets bounds the packets that a socket keeps; more are lost.
	waitingPackets = 1024
	// largestPacket is UDP's maximum, in bytes.
	largestPacket = 65507
)

// PacketConn is a packet socket, a net.PacketConn.
type PacketConn struct {
	host *Host
	port int

	mu      sync.Mutex // guards the rest
	packets []packet   // oldest first
	closed  bool
	read    deadline
	waiting chan struct{} // closed when anything changes; nil if no one waits
}

type packet struct {
	data []byte
	from *net.UDPAddr
	at   time.Time
}

// ListenPacket opens a socket; port 0 picks any.
func (h *Host) ListenPacket(port int) (*PacketConn, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()

	if h.dead {
		return nil, fmt.Errorf("listen for packets at %s: %w", h.ip, syscall.ENETDOWN)
	}

	if port == 0 {
		port = h.portLocked()
	}

	if h.sockets[port] != nil {
		return nil, fmt.Errorf("listen for packets at %s:%d: %w", h.ip, port, syscall.EADDRINUSE)
	}

	c := &PacketConn{host: h, port: port}
	h.sockets[port] = c
	return c, nil
}

// WriteTo sends a packet. The packet is lost if the path is cut, there is no
// listener or the socket is full. WriteTo never waits.
func (c *PacketConn) WriteTo(b []byte, to net.Addr) (int, error) {
	return c.WriteToAddress(b, to.String())
}

// WriteToAddress is WriteTo with an address "ip:port".
func (c *PacketConn) WriteToAddress(b []byte, address string) (int, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return 0, fmt.Errorf("send to %s: %w", address, err)
	}
	if len(b) > largestPacket {
		return 0, syscall.EMSGSIZE
	}
	if c.isClosed() {
		return 0, net.ErrClosed
	}

	n, from, ip := c.host.net, c.host.ip, to.Addr().String()
	n.mu.Lock()
	defer n.mu.Unlock()

	other := n.hosts[ip]
	if other == nil || n.isCutOffLocked(from, ip) || n.isFrozenLocked(from) {
		return len(b), nil
	}

	if s := other.sockets[int(to.Port())]; s != nil {
		s.deliver(packet{data: append([]byte(nil), b...),
			from: net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.host.addr, uint16(c.port))),
			at:   time.Now().Add(n.delayLocked(from, ip))})
	}

	return len(b), nil
}

func (c *PacketConn) deliver(p packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && len(c.packets) < waitingPackets {
		c.packets = append(c.packets, p)
		c.changedLocked()
	}
}

func (c *PacketConn) changedLocked() {
	if c.waiting != nil {
		close(c.waiting)
		c.waiting = nil
	}
}

func (c *PacketConn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// ReadFrom waits for a packet. At a frozen host it waits until the host thaws.
func (c *PacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n := c.host.net
		n.mu.Lock()
		frozen, changed := n.isFrozenLocked(c.host.ip), n.changed
		n.mu.Unlock()
		p, waiting, until, err := c.take(frozen)
		if err != nil {
			return 0, nil, &net.OpError{Op: "read", Net: "udp", Source: c.LocalAddr(), Err: err}
		}
		if waiting == nil {
			return copy(b, p.data), p.from, nil
		}

		c.wait(waiting, changed, until)
	}
}

// take returns the oldest packet that has arrived or, without one, the channel
// and the time to wait for.
func (c *PacketConn) take(frozen bool) (p packet, waiting <-chan struct{}, until time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := time.Now()
	switch {
	case c.closed:
		return p, nil, until, net.ErrClosed
	case c.read.over(now):
		return p, nil, until, os.ErrDeadlineExceeded
	}

	until = c.read.at
	if len(c.packets) > 0 && !frozen {
		p = c.packets[0]
		if !now.Before(p.at) {
			c.packets = c.packets[1:]
			return p, nil, until, nil
		}
		if until.IsZero() || p.at.Before(until) {
			until = p.at
		}
	}

	if c.waiting == nil {
		c.waiting = make(chan struct{})
	}

	return packet{}, c.waiting, until, nil
}

func (c *PacketConn) wait(waiting, changed <-chan struct{}, until time.Time) {
	if until.IsZero() {
		select {
		case <-waiting:
		case <-changed:
		}
		return
	}

	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()

	select {
	case <-waiting:
	case <-changed:
	case <-timer.C:
	}
}

// Close closes the socket.
func (c *PacketConn) Close() error {
	n := c.host.net
	n.mu.Lock()
	if c.host.sockets[c.port] == c {
		delete(c.host.sockets, c.port)
	}
	n.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.packets = nil
	c.changedLocked()
	return nil
}

// LocalAddr returns a *net.UDPAddr.
func (c *PacketConn) LocalAddr() net.Addr {
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.host.addr, uint16(c.port)))
}

// SetDeadline is SetReadDeadline: writes never wait.
func (c *PacketConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline does nothing: writes never wait.
func (c *PacketConn) SetWriteDeadline(time.Time) error { return nil }

// SetReadDeadline sets the deadline of ReadFrom.
func (c *PacketConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read.at = t
	c.changedLocked()
	return nil
}
