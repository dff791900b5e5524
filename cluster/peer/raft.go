package peer

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// RaftLayer provides Raft's connections: it is a net.Listener for incoming
// ones, and has Dial for outgoing ones.
type RaftLayer struct{ peers *Peers }

// Raft returns Raft's layer. There is only one.
func (p *Peers) Raft() RaftLayer { return RaftLayer{p} }

// RaftAddress returns an address for Dial that names the node expected there.
// Without the name, a node that got the address of another one would be taken
// for it, and its vote would count twice.
func RaftAddress(node ring.NodeID, address string) string { return node.String() + "@" + address }

// Accept waits for an incoming connection.
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

// Addr returns the address of the peer port.
func (r RaftLayer) Addr() net.Addr { return r.peers.listener.Addr() }

// Dial connects to Raft on the node at an address: host:port, or the result of
// RaftAddress. It uses the path of calls to the node. A timeout of 0 means 2 s.
func (r RaftLayer) Dial(address string, timeout time.Duration) (net.Conn, error) {
	p := r.peers
	expected := func(Identity) error { return nil }

	var id ring.NodeID
	node, rest, namesNode := strings.Cut(address, "@")
	if namesNode {
		var err error
		id, err = ring.ParseNodeID(node)
		if err != nil {
			return nil, err
		}
		address = rest
		expected = func(remote Identity) error { return expectNode(id, remote) }
	}

	if timeout <= 0 {
		timeout = handshakeTime
	}

	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()

	// If one tunnel has ended and the next is not open yet, Dial would take the
	// direct path, which may be silent. Raft would wait long on it.
	p.AwaitPath(ctx, id)

	dial := func() (*socket, error) { return p.dial(ctx, address, kindRaft, expected) }
	links := *p.links.Load()
	if via, ok := p.Via(id); ok && links[via] != nil && links[id] != nil {
		dial = func() (*socket, error) { return p.dialVia(ctx, links[via], links[id], kindRaft) }
	}

	s, err := dial()
	if err != nil {
		return nil, err
	}

	// RaftLayer.Close ends Raft first, and then closes the sockets that are past
	// their handshakes. It may have missed this socket.
	if p.raftDone.Err() != nil {
		s.Close()
		return nil, net.ErrClosed
	}
	return s, nil
}

// offerToRaft hands a connection to Accept. If it fails, with ErrBusy or
// ErrClosed, the caller must close the connection.
func (p *Peers) offerToRaft(s *socket) error {
	err := ErrBusy
	select {
	case p.raft <- s:
		err = nil
	default:
	}
	if p.raftDone.Err() != nil { // Raft accepts no more
		return ErrClosed
	}
	return err
}
