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
func (pc *PacketConn) WriteTo(b []byte, to net.Addr) (int, error) {
	return pc.WriteToAddress(b, to.String())
}

// WriteToAddress is WriteTo with an address "ip:port".
func (pc *PacketConn) WriteToAddress(b []byte, address string) (int, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return 0, fmt.Errorf("send to %s: %w", address, err)
	}
	if len(b) > largestPacket {
		return 0, syscall.EMSGSIZE
	}
	if pc.isClosed() {
		return 0, net.ErrClosed
	}

	n := pc.host.net
	from := pc.host.ip
	ip := to.Addr().String()
	n.mu.Lock()
	defer n.mu.Unlock()

	other := n.hosts[ip]
	if other == nil || n.isCutOffLocked(from, ip) || n.isFrozenLocked(from) {
		return len(b), nil
	}

	if s := other.sockets[int(to.Port())]; s != nil {
		s.deliver(packet{data: append([]byte(nil), b...),
			from: net.UDPAddrFromAddrPort(netip.AddrPortFrom(pc.host.addr, uint16(pc.port))),
			at:   time.Now().Add(n.delayLocked(from, ip))})
	}

	return len(b), nil
}

func (pc *PacketConn) deliver(p packet) {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	if !pc.closed && len(pc.packets) < waitingPackets {
		pc.packets = append(pc.packets, p)
		pc.changedLocked()
	}
}

func (pc *PacketConn) changedLocked() {
	if pc.waiting != nil {
		close(pc.waiting)
		pc.waiting = nil
	}
}

func (pc *PacketConn) isClosed() bool {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	return pc.closed
}

// ReadFrom waits for a packet. At a frozen host it waits until the host thaws.
func (pc *PacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n := pc.host.net
		n.mu.Lock()
		frozen := n.isFrozenLocked(pc.host.ip)
		changed := n.changed
		n.mu.Unlock()
		p, waiting, until, err := pc.take(frozen)
		if err != nil {
			return 0, nil, &net.OpError{Op: "read", Net: "udp", Source: pc.LocalAddr(), Err: err}
		}
		if waiting == nil {
			return copy(b, p.data), p.from, nil
		}

		pc.wait(waiting, changed, until)
	}
}

// take returns the oldest packet that has arrived or, without one, the channel
// and the time to wait for.
func (pc *PacketConn) take(frozen bool) (p packet, waiting <-chan struct{}, until time.Time, err error) {
	pc.mu.Lock()
	defer pc.mu.Unlock()

	now := time.Now()
	switch {
	case pc.closed:
		return p, nil, until, net.ErrClosed
	case pc.read.over(now):
		return p, nil, until, os.ErrDeadlineExceeded
	}

	until = pc.read.at
	if len(pc.packets) > 0 && !frozen {
		p = pc.packets[0]
		if !now.Before(p.at) {
			pc.packets = pc.packets[1:]
			return p, nil, until, nil
		}
		if until.IsZero() || p.at.Before(until) {
			until = p.at
		}
	}

	if pc.waiting == nil {
		pc.waiting = make(chan struct{})
	}

	return packet{}, pc.waiting, until, nil
}

func (pc *PacketConn) wait(waiting, changed <-chan struct{}, until time.Time) {
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
func (pc *PacketConn) Close() error {
	n := pc.host.net
	n.mu.Lock()
	if pc.host.sockets[pc.port] == pc {
		delete(pc.host.sockets, pc.port)
	}
	n.mu.Unlock()
	pc.mu.Lock()
	defer pc.mu.Unlock()
	pc.closed = true
	pc.packets = nil
	pc.changedLocked()
	return nil
}

// LocalAddr returns a *net.UDPAddr.
func (pc *PacketConn) LocalAddr() net.Addr {
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(pc.host.addr, uint16(pc.port)))
}

// SetDeadline is SetReadDeadline: writes never wait.
func (pc *PacketConn) SetDeadline(t time.Time) error { return pc.SetReadDeadline(t) }

// SetWriteDeadline does nothing: writes never wait.
func (pc *PacketConn) SetWriteDeadline(time.Time) error { return nil }

// SetReadDeadline sets the deadline of ReadFrom.
func (pc *PacketConn) SetReadDeadline(t time.Time) error {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	pc.read.at = t
	pc.changedLocked()
	return nil
}
