package peer

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// RaftLayer is the way Raft's connections take: a net.Listener for those that come in, and Dial.
type RaftLayer struct{ peers *Peers }

// Raft gives Raft's layer; there is one.
func (p *Peers) Raft() RaftLayer { return RaftLayer{p} }

// RaftAddress is an address for Dial that says which node must be there. Without that, a node that has got the address of
// another one would be taken for it, and its vote counted twice.
func RaftAddress(node ring.NodeID, address string) string { return node.String() + "@" + address }

// Accept waits for a connection.
func (r RaftLayer) Accept() (net.Conn, error) { return r.peers.raft.Accept() }

// Close ends Accept and closes Raft's connections, in both directions.
func (r RaftLayer) Close() error {
	r.peers.raft.close()
	r.peers.closeSockets(func(s *socket) bool { return s.raft.Load() })
	return nil
}

// Addr is the address of the peer port.
func (r RaftLayer) Addr() net.Addr { return r.peers.listener.Addr() }

// Dial connects to the Raft of the node at an address, host:port or as RaftAddress makes them.
func (r RaftLayer) Dial(address string, timeout time.Duration) (net.Conn, error) {
	expected := func(Identity) error { return nil }
	var l *link
	if node, rest, ok := strings.Cut(address, "@"); ok {
		id, err := ring.ParseNodeID(node)
		if err != nil {
			return nil, err
		}
		address = rest
		expected = func(remote Identity) error { return expectNode(id, remote) }
		l = (*r.peers.links.Load())[id]
	}
	if timeout <= 0 {
		timeout = handshakeTime
	}
	ctx, cancel := context.WithTimeout(r.peers.ctx, timeout)
	defer cancel()
	s, err := r.peers.dialRaft(ctx, l, address, expected)
	if err != nil {
		return nil, err
	}
	s.raft.Store(true)
	if r.peers.raft.closed.Err() != nil {
		s.Close()
		return nil, net.ErrClosed
	}
	return s, nil
}

// dialRaft takes the path that calls take to the node of l, if that is known.
func (p *Peers) dialRaft(ctx context.Context, l *link, address string, expected func(Identity) error) (*socket, error) {
	if l != nil {
		if c := l.current(); c != nil && !c.socket.via.IsZero() {
			if relay := (*p.links.Load())[c.socket.via]; relay != nil {
				return p.dialVia(ctx, relay, l, kindRaft)
			}
		}
	}
	return p.dial(ctx, address, kindRaft, expected)
}

// raftListener is the listener that gives accepted connections to Raft.
type raftListener struct {
	addr   net.Addr
	conns  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func newRaftListener(addr net.Addr, waiting int) *raftListener {
	ctx, cancel := context.WithCancel(context.Background())
	return &raftListener{addr: addr, conns: make(chan net.Conn, waiting), closed: ctx, close: cancel}
}

// give says whether there was room.
func (h *raftListener) give(c net.Conn) bool {
	if h.closed.Err() != nil {
		return false
	}
	select {
	case h.conns <- c:
		return h.closed.Err() == nil // if not, nobody takes it any more, and the caller closes it
	default:
		return false
	}
}

func (h *raftListener) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed.Done():
		return nil, net.ErrClosed
	}
}

func (h *raftListener) Close() error {
	h.close()
	return nil
}

func (h *raftListener) Addr() net.Addr { return h.addr }
