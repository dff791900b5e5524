package peer

import "time"

const (
	// renewTime is how long a connection may go on whose credentials are no longer good at one end: the other end, or
	// this one, replaces it meanwhile.
	renewTime = 10 * time.Second
	// renewInterval is how often this end tries.
	renewInterval = 2 * time.Second
)

// Renew follows a change of the credentials. Connections that this node has dialled are replaced where they were made with
// others than those in force, without a gap for calls; Raft dials anew. Those whose remote would not be let in any more are
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
