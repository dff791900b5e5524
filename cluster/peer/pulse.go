package peer

import (
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
)

// beatsPerSilence is the number of heartbeats that an end sends within the time
// after which silence counts.
const beatsPerSilence = 5

// pulse sends the heartbeats of all connections at once, and checks which of
// them are silent. An incoming heartbeat brings the next pulse forward. So idle
// nodes wake up together, and once for all their connections. A node that a
// heartbeat has woken waits a little longer until its next pulse, so that the
// same node comes first again.
func (p *Peers) pulse() {
	every := p.interval()
	wait := every

	timer := time.NewTimer(wait)
	defer timer.Stop()

	var conns []*conn
	last := p.now()

	for {
		next := every
		select {
		case <-timer.C:
		case <-p.pulseNow:
			next += every / 5
		case <-p.ctx.Done():
			return
		}

		p.checkStall()
		now := p.now()
		gap := countedSilence(time.Duration(now-last), wait, every)
		last = now

		p.mu.Lock()
		conns = slices.AppendSeq(conns, maps.Keys(p.conns))
		pulsed := p.pulsed
		p.pulsed = nil
		p.mu.Unlock()

		if pulsed != nil {
			close(pulsed)
		}

		for _, c := range conns {
			next = min(next, c.checkSilence(now, gap))
			c.sendHeartbeat(now)
		}

		p.compareClocks()

		// Ended connections must not stay in memory until the next pulse.
		clear(conns)
		conns = conns[:0]

		wait = next
		timer.Reset(wait)
	}
}

// countedSilence returns how much silence a check adds. passed is the time
// since the last check, and wait the time that was planned. If the check is
// late by more than half of every, this process did not run, and other nodes
// may have been sending all along: then at most half of every counts.
func countedSilence(passed, wait, every time.Duration) time.Duration {
	if passed-wait > every/2 {
		return min(wait, every/2)
	}
	return min(passed, wait)
}

// interval returns the time between two pulses.
func (p *Peers) interval() time.Duration { return min(p.config.Silence, farSilence) / beatsPerSilence }

// advancePulse brings the next pulse forward because a heartbeat has arrived
// over c, unless this node has just sent its own over c, or c is far.
func (p *Peers) advancePulse(c *conn) {
	if c.socket.kind != kindFar && c.isBeatDue(p.now()) {
		wake.Signal(p.pulseNow)
	}
}

// Pulse returns a channel that is closed at the next pulse. Work that is done
// at a pulse does not wake an idle node once more.
func (p *Peers) Pulse() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pulsed == nil {
		p.pulsed = make(chan struct{})
	}
	return p.pulsed
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
