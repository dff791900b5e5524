package peer

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/rlnode/rlnode/internal/rawconn"
	"github.com/rlnode/rlnode/ring"
)

// socket is a network connection, which Peers.Close closes.
type socket struct {
	net.Conn       // raw, or TLS on top of it once that is established
	raw            net.Conn
	handshakeDone  atomic.Bool // the handshake is complete, so the fields that are set before may be read
	peers          *Peers
	accepted       bool
	tlsConfig      *tls.Config // used for the handshake; nil without TLS. Set before handshakeDone
	kind           connKind    // set before handshakeDone
	remote         Identity    // set before handshakeDone
	version        uint8       // of the protocol that both ends use. Set before handshakeDone
	relay          ring.NodeID // the relay, if this node dialled through a tunnel; zero otherwise
	tunnelled      bool        // the remote connected through a tunnel. Set before handshakeDone
	far            bool        // accepted from another region; guarded by Peers.mu
	closeOnce      sync.Once
	closeWriteOnce sync.Once // for closeWrite
}

// Close closes the connection and removes it from Peers. It closes the raw
// connection below TLS, because TLS would first wait to send its closing alert.
func (s *socket) Close() (err error) {
	s.closeOnce.Do(func() {
		s.peers.unregister(s)
		err = s.raw.Close()
	})
	return err
}

// startTLS does the TLS handshake. side is tls.Server or tls.Client.
func (s *socket) startTLS(side func(net.Conn, *tls.Config) *tls.Conn, config *tls.Config) error {
	c := side(s.Conn, config)
	if err := c.Handshake(); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	s.Conn = c
	s.tlsConfig = config
	return nil
}

// verify returns an error if the current credentials do not accept the remote.
func (s *socket) verify(remote Identity) error {
	if c, ok := s.Conn.(*tls.Conn); ok {
		return s.peers.config.TLS.Verify(c.ConnectionState(), remote.Node)
	}
	return nil
}

// hasCurrentCredentials reports whether s was made with the current
// credentials.
func (s *socket) hasCurrentCredentials() bool {
	c, ok := s.Conn.(*tls.Conn)
	return !ok || s.peers.config.TLS.Current(c.ConnectionState(), s.tlsConfig)
}

// closeWrite tells the remote that no more data follows, if the socket can.
func (s *socket) closeWrite() {
	s.closeWriteOnce.Do(func() {
		if c, ok := s.raw.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite() // if it fails, the remote notices at Close
		}
	})
}

// discard makes Close drop data that is written but not yet sent. Once the
// network works again, this data would arrive after that of a newer connection.
func (s *socket) discard() {
	switch c := s.raw.(type) {
	case *socket: // a tunnel
		c.discard()
	case interface{ SetLinger(seconds int) error }:
		_ = c.SetLinger(0) // if it fails, the data arrives late
	}
}

// isRaft reports whether this is one of Raft's connections, past its handshake.
func (s *socket) isRaft() bool { return s.handshakeDone.Load() && s.kind == kindRaft }

// register makes s the socket of a connection, and adds s to Peers. If there
// are too many connections or Close has begun, it closes the connection.
func (p *Peers) register(raw net.Conn, s *socket) error {
	s.Conn = rawconn.Wrap(raw)
	s.raw = raw
	s.peers = p

	p.mu.Lock()
	var err error
	switch {
	case p.closed:
		err = ErrClosed
	case s.accepted && p.count(func(s *socket) bool { return s.accepted }) >= maxAccepted:
		err = errTooManyAccepted
	default:
		p.sockets[s] = struct{}{}
	}
	p.mu.Unlock()

	// This needs mu to be free: below a tunnel is a socket, and its Close takes mu.
	if err != nil {
		raw.Close()
	}
	return err
}

var errTooManyAccepted = fmt.Errorf("there are too many connections already, %d", maxAccepted)

// countFar marks an accepted socket as coming from another region. It returns
// false if there are too many of these.
func (p *Peers) countFar(s *socket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.far = p.count(func(s *socket) bool { return s.far }) < maxFar
	return s.far
}

// The caller of count must hold mu.
func (p *Peers) count(which func(*socket) bool) (n int) {
	for s := range p.sockets {
		if which(s) {
			n++
		}
	}
	return n
}

func (p *Peers) unregister(s *socket) {
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

	// The sockets are closed without mu, which Close takes.
	for _, s := range chosen {
		s.Close()
	}
}
