package simulation

import (
	"bytes"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/ring"
)

// message is a message in transit. Either arrive or lost runs, without the mutex. After the end of the run, neither does.
type message struct {
	w        *World
	from     *process
	to, boot int
	arrive   func(*process)
	lost     func()
}

// transmit sends a message to the current process of a node. The caller must not hold the mutex.
func (w *World) transmit(from *process, to int, arrive func(*process), lost func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.transmitLocked(from, to, arrive, lost)
}

func (w *World) transmitLocked(from *process, to int, arrive func(*process), lost func()) {
	now := w.now()
	l := &message{w: w, from: from, to: to, boot: w.nodes[to].process.boot, arrive: arrive, lost: lost}
	at := w.net.drawArrival(now, from.index, to)
	w.schedule.at(at, l.deliver)
}

// deliver delivers a message. If the link is cut, it retries, like a TCP connection, until the sender notices the cut.
func (l *message) deliver() {
	w := l.w
	w.mu.Lock()

	now, target := w.now(), w.nodes[l.to].process
	switch {
	case w.stopped:
		w.mu.Unlock()
		return
	case target.boot != l.boot:
		w.mu.Unlock()
		l.lost()
		return
	case w.net.blocked(now, l.from.index, l.to) || !target.alive:
		known := w.net.lostAt(now, l.from.index, l.to)
		w.mu.Unlock()
		if known <= now {
			l.lost()
		} else {
			w.schedule.at(min(known, now+retryInterval), l.deliver)
		}
		return
	}
	w.mu.Unlock()
	l.arrive(target)
}

// call is a request to another limiter.
type call struct {
	from    *process
	to      int
	method  peer.Method
	body    []byte
	done    func([]byte, error) // guarded by the world's mutex; nil once finish has taken it
	timer   *time.Timer
	target  *process
	replied bool // guarded by the world's mutex
	loan    *loanRequest
}

// Reachable implements limiter.Peers.
func (p *process) Reachable(to ring.NodeID) bool {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	return p.alive && w.net.reachable(w.now(), p.index, indexOf(to))
}

// PathUnsure implements limiter.Peers.
func (p *process) PathUnsure(ring.NodeID) bool { return false }

// Go implements limiter.Peers.
func (p *process) Go(to ring.NodeID, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error)) {
	w := p.w
	c := &call{from: p, to: indexOf(to), method: m, body: bytes.Clone(body), done: done}
	if !p.Reachable(to) {
		done(nil, peer.ErrUnreachable)
		return
	}
	w.mu.Lock()
	w.pending[c] = struct{}{}
	c.timer = time.AfterFunc(timeout, func() { c.finish(nil, peer.ErrTimeout) })
	w.mu.Unlock()
	w.transmit(p, c.to, c.serve, func() { c.finish(nil, peer.ErrUnreachable) })
}

// Send implements limiter.Peers.
func (p *process) Send(to ring.NodeID, m peer.Method, body []byte) error {
	if !p.Reachable(to) {
		return peer.ErrUnreachable
	}
	c := &call{from: p, to: indexOf(to), method: m, body: bytes.Clone(body), replied: true}
	p.w.transmit(p, c.to, c.serve, func() {})
	return nil
}

// serve makes the target's limiter answer.
func (c *call) serve(target *process) {
	c.target = target
	target.schedulePush()
	if c.method == limiter.MethodLend {
		target.w.mu.Lock()
		c.loan = target.ownLoanRequest(c.body, c.method)
		target.w.mu.Unlock()
	}
	target.limiter.ServeNear(c.from.id, c.method, c.body, c)
	clear(c.body) // the body is valid only during the call
}

var _ limiter.Responder = (*call)(nil)

// Reply implements limiter.Responder.
func (c *call) Reply(body []byte) {
	c.from.w.noteLoan(c.loan, body)
	c.answer(bytes.Clone(body), nil)
}

// Fail implements limiter.Responder.
func (c *call) Fail(code peer.Code, detail string) {
	c.answer(nil, &peer.RemoteError{Code: code, Detail: detail})
}

func (c *call) answer(body []byte, err error) {
	w := c.from.w
	w.mu.Lock()

	if c.replied || !c.target.alive || w.stopped {
		w.mu.Unlock()
		return
	}

	c.replied = true
	w.mu.Unlock()
	w.transmit(c.target, c.from.index, func(p *process) {
		if p == c.from {
			c.finish(body, err)
		}
	}, func() {}) // the asker notices by itself
}

// finish passes the answer to the asker, once.
func (c *call) finish(body []byte, err error) {
	w := c.from.w
	w.mu.Lock()
	done := c.done
	c.done = nil
	delete(w.pending, c)
	w.mu.Unlock()
	if done == nil {
		return
	}
	c.timer.Stop()
	done(body, err)
	clear(body) // the body is valid only until done returns
}

// failCalls fails each pending call that a fault affects, at the time at which its asker notices. The caller holds the
// mutex.
func (w *World) failCalls(f *fault) {
	now := w.now()
	for c := range w.pending {
		if !f.touches(c.from.index, c.to) {
			continue
		}
		at := w.net.noticedAt(f, c.from.index, c.to)
		w.schedule.at(max(at, now), func() {
			if at < f.until {
				c.finish(nil, peer.ErrUnreachable)
			}
		})
	}
}
