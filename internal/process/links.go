package process

import (
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// linkPorts are the ports at which nodes reach each other, by default.
var linkPorts = []struct {
	port int
	udp  bool
}{{7946, true}, {7947, false}, {7948, true}}

// Links stand between nodes, so that a test can cut one of them off without
// being root. Each node is bound to one loopback address and advertises another
// one, that of its link, which passes on what other nodes send there.
//
// A cut behaves as one in a network: neither side learns of it, packets are
// lost, and connections stall until it ends.
type Links struct {
	t     testing.TB
	group sync.WaitGroup

	mu      sync.Mutex // guards the rest
	changed *sync.Cond
	links   map[string]*link // by the address that the node is bound to
	cut     map[string]bool  // the same
	open    map[net.Conn]struct{}
	closed  bool
}

// link is the way to one node.
type link struct {
	bound, advertised string
	packets           map[int]net.PacketConn // by port
}

// NewLinks returns links between no nodes. They end with the test.
func NewLinks(t testing.TB) *Links {
	l := &Links{t: t, links: map[string]*link{}, cut: map[string]bool{}, open: map[net.Conn]struct{}{}}
	l.changed = sync.NewCond(&l.mu)
	t.Cleanup(l.close)
	return l
}

// Add begins to pass on what comes to advertised. Nodes tell each other that
// address, and need it in --join.
func (l *Links) Add(bound, advertised string) {
	l.t.Helper()
	k := &link{bound: bound, advertised: advertised, packets: map[int]net.PacketConn{}}
	for _, p := range linkPorts {
		at := net.JoinHostPort(advertised, strconv.Itoa(p.port))
		streams, err := net.Listen("tcp", at)
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { streams.Close() })
		l.group.Go(func() { l.accept(k, p.port, streams) })
		if !p.udp {
			continue
		}

		packets, err := net.ListenPacket("udp", at)
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { packets.Close() })
		k.packets[p.port] = packets
		l.group.Go(func() { l.passPackets(k, p.port, packets) })
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.links[bound] = k
}

// Cut cuts a node off from all others.
func (l *Links) Cut(bound string) { l.set(bound, true) }

// Mend ends a cut.
func (l *Links) Mend(bound string) { l.set(bound, false) }

func (l *Links) set(bound string, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.cut, bound)
	if cut {
		l.cut[bound] = true
	}
	l.changed.Broadcast()
}

// close ends all connections. The listeners are closed already.
func (l *Links) close() {
	l.mu.Lock()
	l.closed = true
	for c := range l.open {
		c.Close()
	}
	l.changed.Broadcast()
	l.mu.Unlock()

	l.group.Wait()
}

// sender returns the link of the node that sends from an address. It is nil for
// streams of gossip, which come from another one.
func (l *Links) sender(from net.Addr) *link {
	host, _, _ := net.SplitHostPort(from.String())
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.links[host]
}

// isCutLocked reports whether nothing passes between two nodes. If the sender
// is not known, it may be the one that is cut off.
func (l *Links) isCutLocked(from, to *link) bool {
	if from == nil {
		return len(l.cut) > 0
	}
	return l.cut[from.bound] || l.cut[to.bound]
}

// passPackets passes on packets. To their receiver they come from the address
// that the sender advertises.
func (l *Links) passPackets(to *link, port int, in net.PacketConn) {
	target := &net.UDPAddr{IP: net.ParseIP(to.bound), Port: port}
	buffer := make([]byte, 1<<16)
	for {
		n, source, err := in.ReadFrom(buffer)
		if err != nil {
			return // closed
		}

		from := l.sender(source)
		l.mu.Lock()
		lost := from == nil || l.isCutLocked(from, to)
		l.mu.Unlock()
		if !lost {
			_, _ = from.packets[port].WriteTo(buffer[:n], target)
		}
	}
}

// accept passes on connections.
func (l *Links) accept(to *link, port int, in net.Listener) {
	for {
		c, err := in.Accept()
		if err != nil {
			return // closed
		}
		l.group.Go(func() { l.connect(l.sender(c.RemoteAddr()), to, port, c) })
	}
}

// connect connects a caller to the node, once there is no cut.
func (l *Links) connect(from, to *link, port int, caller net.Conn) {
	defer l.forget(caller)
	if !l.track(caller) || !l.await(from, to) {
		return
	}

	dialer := net.Dialer{}
	if from != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from.advertised)}
	}

	target := net.JoinHostPort(to.bound, strconv.Itoa(port))
	node, err := dialer.Dial("tcp", target)
	for began := time.Now(); err != nil && time.Since(began) < Timeout &&
		l.await(from, to); node, err = dialer.Dial("tcp", target) {
		// The node still starts. Closing the connection would mean that it rejects
		// the caller.
		time.Sleep(20 * time.Millisecond)
	}

	if err != nil {
		return
	}

	defer l.forget(node)
	if !l.track(node) {
		return
	}

	var answers sync.WaitGroup
	answers.Go(func() { l.pass(from, to, caller, node) })
	l.pass(from, to, node, caller)
	answers.Wait()
}

// pass passes on what one end of a connection sends, and its end.
func (l *Links) pass(from, to *link, out, in net.Conn) {
	defer out.(*net.TCPConn).CloseWrite()
	buffer := make([]byte, 1<<14)

	for {
		n, err := in.Read(buffer)
		if !l.await(from, to) {
			return
		}

		if n > 0 {
			if _, failed := out.Write(buffer[:n]); failed != nil {
				in.Close()
				return
			}
		}

		if err != nil {
			return
		}
	}
}

// await waits for the end of a cut. It reports whether there is more to do.
func (l *Links) await(from, to *link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.isCutLocked(from, to) {
		l.changed.Wait()
	}
	return !l.closed
}

// track notes an open connection. It reports whether there is more to do.
func (l *Links) track(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	return !l.closed
}

func (l *Links) forget(c net.Conn) {
	c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}
