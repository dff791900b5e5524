package peer

import (
	"time"

	"github.com/rlnode/rlnode/internal/tick"
)

// looks is how many times silence is checked within Config.Silence.
const looks = 10

// watchAll checks every connection periodically. A late check, because this process did not run, adds no more silence
// than one in time: the others may have been sending all along.
func (p *Peers) watchAll() {
	every := p.config.Silence / looks
	var conns []*conn
	last := p.now()
	for range tick.Every(p.ctx.Done(), every) {
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
