package peer

import (
	"net"
	"sync"
	"sync/atomic"
)

// socket is a connection that Close of Peers closes too.
type socket struct {
	net.Conn // raw, or TLS on top of it once that is made
	raw      net.Conn
	peers    *Peers
	accepted bool
	kind     kind        // set before anyone else gets the socket
	remote   Identity    // set before anyone else gets the socket
	used     atomic.Bool // a stream has begun
	raft     atomic.Bool // it is Raft's
	far      bool        // guarded by Peers.mu: it is one of Peers.far
	once     sync.Once
}

// socketAddr lets gRPC's handler find the socket again.
type socketAddr struct {
	net.Addr
	socket *socket
}

// RemoteAddr is that of the connection below.
func (s *socket) RemoteAddr() net.Addr { return socketAddr{s.raw.RemoteAddr(), s} }

// Close closes the connection, and forgets it. It closes the one below TLS: TLS would wait to say goodbye.
func (s *socket) Close() (err error) {
	s.once.Do(func() {
		s.peers.forget(s)
		err = s.raw.Close()
	})
	return err
}

// discard has Close forget what was written and not sent. It would come late, when the way is free again, and behind what was
// sent over a newer connection.
func (s *socket) discard() {
	if c, ok := s.raw.(interface{ SetLinger(seconds int) error }); ok {
		_ = c.SetLinger(0) // then it comes late
	}
}

// remember takes note of a socket, unless it is one too many or Close has begun.
func (p *Peers) remember(s *socket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || s.accepted && p.arrived == mostAccepted {
		return false
	}
	if s.accepted {
		p.arrived++
	}
	p.sockets[s] = struct{}{}
	return true
}

// countFar takes note that a socket that was accepted comes from another region, unless it is one too many.
func (p *Peers) countFar(s *socket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.sockets[s]; !ok || p.far == mostFar {
		return false
	}
	p.far++
	s.far = true
	return true
}

func (p *Peers) forget(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.sockets[s]; ok && s.accepted {
		p.arrived--
		if s.far {
			p.far--
		}
	}
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
