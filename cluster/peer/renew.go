package peer

import "time"

const (
	// renewTime is how long a connection may last whose credentials are no longer valid at one end; meanwhile one of the
	// ends replaces it.
	renewTime = 10 * time.Second
	// renewInterval is how often this end tries to replace it.
	renewInterval = 2 * time.Second
)

// Renew applies a change of the credentials. Connections that this node dialled with other credentials than those now in
// force are replaced, without a gap for calls; Raft redials. Connections whose remote would no longer be accepted are
// closed after ten seconds. Renew returns at once.
func (p *Peers) Renew() {
	p.closeSockets(func(s *socket) bool { return s.isRaft() && !s.accepted && !s.current() })
	p.spawn(func() {
		for range renewTime / renewInterval {
			for _, l := range *p.links.Load() {
				l.renew(l.ctx)
			}
			sleep(p.ctx, renewInterval)
		}
		p.closeSockets(func(s *socket) bool { return s.greeted.Load() && s.verify(s.remote) != nil })
	})
}
