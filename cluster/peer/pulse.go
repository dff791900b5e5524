package peer

import "time"

// beats is how many heartbeats an end sends within the time after which silence counts.
const beats = 5

// pulse sends the heartbeats of all connections, and looks which of them are silent. All beat at once, so that a node at
// rest wakes up once for all of them, and so does each of the others.
//
// A late look, because this process did not run, adds no more silence than one in time: the others may have been sending all
// along.
func (p *Peers) pulse() {
	every := p.interval()
	timer := time.NewTimer(every)
	defer timer.Stop()
	var conns []*conn
	last := p.now()
	for {
		select {
		case <-timer.C:
		case <-p.ctx.Done():
			return
		}
		now := p.now()
		gap := min(time.Duration(now-last), every)
		last = now
		p.mu.Lock()
		for c := range p.conns {
			conns = append(conns, c)
		}
		p.mu.Unlock()
		wait := every
		for _, c := range conns {
			wait = min(wait, c.checkSilence(now, gap))
			c.beat(now, earlyPulse)
		}
		clear(conns)
		conns = conns[:0]
		timer.Reset(wait)
	}
}

// interval is the time between two pulses.
func (p *Peers) interval() time.Duration { return min(p.config.Silence, farSilence) / beats }

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
