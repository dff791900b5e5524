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
func (r RaftLayer) Accept() (net.Conn, error) {
	select {
	case c := <-r.peers.raft:
		return c, nil
	case <-r.peers.raftDone.Done():
		return nil, net.ErrClosed
	}
}

// Close ends Accept and closes Raft's connections, in both directions.
func (r RaftLayer) Close() error {
	r.peers.endRaft()
	r.peers.closeSockets((*socket).isRaft)
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
	if r.peers.raftDone.Err() != nil {
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

// giveRaft hands a connection to Accept, and says whether there was room.
func (p *Peers) giveRaft(s *socket) bool {
	select {
	case p.raft <- s:
		return p.raftDone.Err() == nil // if not, nobody takes it any more, and the caller closes it
	default:
		return false
	}
}
