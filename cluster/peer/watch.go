package peer

import "time"

// looks is how many times silence is checked within Config.Silence.
const looks = 10

// watchAll checks every connection periodically. A late check, because this process did not run, adds no more silence
// than one in time: the others may have been sending all along.
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
			c.checkSilence(gap)
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
