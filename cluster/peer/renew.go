package peer

import "time"

const (
	// renewTime is how long a connection may last after the credentials of one end
	// have become outdated. By then, one of the ends should have replaced it.
	renewTime = 10 * time.Second
	// renewInterval is the time between two attempts of this end to replace it.
	renewInterval = 2 * time.Second
)

// Renew applies a change of the credentials. Connections that this node dialled
// with earlier credentials are replaced, without a gap for calls; Raft dials
// again. Connections whose remote the current credentials do not accept are
// closed after ten seconds. Renew returns at once.
func (p *Peers) Renew() {
	p.closeSockets(func(s *socket) bool { return s.isRaft() && !s.accepted && !s.hasCurrentCredentials() })
	p.spawn(func() {
		for range renewTime / renewInterval {
			for _, l := range *p.links.Load() {
				l.renew(l.ctx)
			}
			sleep(p.ctx, renewInterval)
		}
		p.closeSockets(func(s *socket) bool { return s.handshakeDone.Load() && s.verify(s.remote) != nil })
	})
}
