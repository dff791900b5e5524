package peer

import "time"

// looks is how often silence is looked for during the time that makes it.
const looks = 10

// watchAll looks at every connection, again and again. A look that comes late, because this process did not run, counts
// no more than one in time: the others may have sent all the while.
func (p *Peers) watchAll() {
	every := p.config.Silence / looks
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var conns []*conn
	for last := p.now(); ; {
		select {
		case <-p.ctx.Done():
			return
		case <-ticker.C:
		}
		now := p.now()
		gap := min(time.Duration(now-last), every)
		last = now
		p.mu.Lock()
		for c := range p.conns {
			conns = append(conns, c)
		}
		p.mu.Unlock()
		for _, c := range conns {
			c.look(gap)
		}
		clear(conns)
		conns = conns[:0]
	}
}

func (p *Peers) watch(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
}

func (p *Peers) unwatch(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}
