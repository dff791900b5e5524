package peer

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/rlnode/rlnode/ring"
)

// socket is a connection that Close of Peers closes too.
type socket struct {
	net.Conn  // raw, or TLS on top of it once that is made
	raw       net.Conn
	greeted   atomic.Bool // the handshake is over: all below that is set before that may be read
	peers     *Peers
	accepted  bool
	secure    *tls.Config // what the handshake was made with; nil without TLS. Set before greeted
	kind      kind        // set before greeted
	remote    Identity    // set before greeted
	version   uint8       // of the protocol, that both ends go by. Set before greeted
	via       ring.NodeID // the relay of a tunnel that this node has dialled; zero: none
	tunnelled bool        // the remote came by a tunnel. Set before greeted
	far       bool        // guarded by Peers.mu: it was accepted from another region
	once      sync.Once
	half      sync.Once // closeWrite
}

// Close closes the connection, and forgets it. It closes the one below TLS: TLS would wait to say goodbye.
func (s *socket) Close() (err error) {
	s.once.Do(func() {
		s.peers.forget(s)
		err = s.raw.Close()
	})
	return err
}

// startTLS shakes hands in TLS. side is tls.Server or tls.Client.
func (s *socket) startTLS(side func(net.Conn, *tls.Config) *tls.Conn, config *tls.Config) error {
	c := side(s.Conn, config)
	if err := c.Handshake(); err != nil {
		return fmt.Errorf("shake hands in TLS: %w", err)
	}
	s.Conn, s.secure = c, config
	return nil
}

// verify says what is wrong with the remote's credentials, as they count now.
func (s *socket) verify(remote Identity) error {
	if c, ok := s.Conn.(*tls.Conn); ok {
		return s.peers.config.TLS.Verify(c.ConnectionState(), remote.Node)
	}
	return nil
}

// current says whether the connection stands on the credentials that are in force.
func (s *socket) current() bool {
	c, ok := s.Conn.(*tls.Conn)
	return !ok || s.peers.config.TLS.Current(c.ConnectionState(), s.secure)
}

// closeWrite tells the remote that nothing more comes, once, where that can be told.
func (s *socket) closeWrite() {
	s.half.Do(func() {
		if c, ok := s.raw.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite() // then the remote finds out when it is closed
		}
	})
}

// discard has Close forget what was written and not sent. It would come late, when the way is free again, and behind what was
// sent over a newer connection.
func (s *socket) discard() {
	switch c := s.raw.(type) {
	case *socket: // a tunnel
		c.discard()
	case interface{ SetLinger(seconds int) error }:
		_ = c.SetLinger(0) // then it comes late
	}
}

// isRaft reports whether the connection is Raft's, once it may be used.
func (s *socket) isRaft() bool { return s.greeted.Load() && s.kind == kindRaft }

// remember takes note of a connection as s, or closes it if it is one too many or Close has begun.
func (p *Peers) remember(raw net.Conn, s *socket) error {
	s.Conn, s.raw, s.peers = raw, raw, p
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		raw.Close()
		return ErrClosed
	case s.accepted && p.countLocked(func(s *socket) bool { return s.accepted }) >= mostAccepted:
		raw.Close()
		return errManyAccepted
	}
	p.sockets[s] = struct{}{}
	return nil
}

var errManyAccepted = fmt.Errorf("there are too many, %d", mostAccepted)

// countFar takes note that a socket that was accepted comes from another region, unless it is one too many.
func (p *Peers) countFar(s *socket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.far = p.countLocked(func(s *socket) bool { return s.far }) < mostFar
	return s.far
}

func (p *Peers) countLocked(which func(*socket) bool) (n int) {
	for s := range p.sockets {
		if which(s) {
			n++
		}
	}
	return n
}

func (p *Peers) forget(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sockets, s)
}

func (p *Peers) closeSockets(which func(*socket) bool) {
	p.mu.Lock()
	var chosen []*socket
	for s := range p.sockets {
		if which(s) {
			chosen = append(chosen, s)
		}
	}
	p.mu.Unlock()
	for _, s := range chosen {
		s.Close()
	}
}
