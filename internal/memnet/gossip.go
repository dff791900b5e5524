package memnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// GossipTransport is a memberlist transport over a host's sockets: UDP-like packets, and streams.
type GossipTransport struct {
	host    *Host
	port    int
	socket  *PacketConn
	accept  net.Listener
	packets chan *memberlist.Packet
	streams chan net.Conn
	ctx     context.Context // cancelled by Shutdown
	cancel  context.CancelFunc
	group   sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*GossipTransport)(nil)

// GossipTransport opens a transport at a port. The user must call Shutdown, as memberlist does.
func (h *Host) GossipTransport(port int) (*GossipTransport, error) {
	accept, err := h.Listen(port)
	if err != nil {
		return nil, err
	}

	port = accept.Addr().(*net.TCPAddr).Port
	socket, err := h.ListenPacket(port)
	if err != nil {
		accept.Close()
		return nil, err
	}

	ctx, cancel := context.WithCancel(context.Background())
	t := &GossipTransport{
		host: h, ctx: ctx, cancel: cancel, port: port, socket: socket, accept: accept,
		packets: make(chan *memberlist.Packet),
		streams: make(chan net.Conn),
	}
	t.group.Go(t.readPackets)
	t.group.Go(t.acceptStreams)

	return t, nil
}

func (t *GossipTransport) readPackets() {
	buffer := make([]byte, largestPacket)
	for {
		n, from, err := t.socket.ReadFrom(buffer)
		if err != nil {
			return
		}

		p := &memberlist.Packet{Buf: append([]byte(nil), buffer[:n]...), From: from, Timestamp: time.Now()}
		select {
		case t.packets <- p:
		case <-t.ctx.Done():
			return
		}
	}
}

func (t *GossipTransport) acceptStreams() {
	for {
		c, err := t.accept.Accept()
		if err != nil {
			return
		}
		select {
		case t.streams <- c:
		case <-t.ctx.Done():
			c.Close()
			return
		}
	}
}

// FinalAdvertiseAddr returns ip and port if they are set, and otherwise the host's.
func (t *GossipTransport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if ip == "" {
		return t.host.addr.AsSlice(), t.port, nil
	}
	parsed := net.ParseIP(ip)
	if parsed == nil {
		return nil, 0, fmt.Errorf("parse the advertised address %q: %w", ip, errors.New("not an IP address"))
	}
	if port == 0 {
		port = t.port
	}
	return parsed, port, nil
}

// WriteTo sends a packet; it never waits.
func (t *GossipTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	_, err := t.socket.WriteToAddress(b, addr)
	return time.Now(), err
}

// WriteToAddress is WriteTo; it ignores the name.
func (t *GossipTransport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// DialTimeout opens a stream. Shutdown ends it too.
func (t *GossipTransport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	return t.host.Dial(ctx, addr)
}

// DialAddressTimeout is DialTimeout; it ignores the name.
func (t *GossipTransport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// PacketCh returns the channel of arriving packets.
func (t *GossipTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh returns the channel of incoming streams.
func (t *GossipTransport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown closes both sockets and waits for the goroutines.
func (t *GossipTransport) Shutdown() error {
	t.cancel()
	err := errors.Join(t.socket.Close(), t.accept.Close())
	t.group.Wait()
	return err
}
