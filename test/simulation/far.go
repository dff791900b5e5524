package simulation

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/limiter"
)

// Times of the network between regions.
const (
	// farWay is the least time that a message takes from one region to another; farJitter is the mean of what is added.
	farWay    = 40 * time.Millisecond
	farJitter = 3 * time.Millisecond
	// maxLate bounds the extra delay of late messages.
	maxLate = 3 * time.Second
)

// far is the network between regions. Lock its mutex after those of worlds.
type far struct {
	mu       sync.Mutex // guards the fields below
	net      network    // its nodes are the regions
	random   *rand.Rand
	lossRate float64 // fraction of messages that are lost
	lateRate float64 // fraction of messages that are late
}

// drawArrival draws the time at which a message sent now arrives in another region. ok is false if the message is lost.
func (f *far) drawArrival(now time.Duration) (at time.Duration, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at = now + farWay + time.Duration(f.random.ExpFloat64()*float64(farJitter))
	if f.random.Float64() < f.lateRate {
		at += time.Duration(f.random.Int64N(int64(maxLate)))
	}
	return at, f.random.Float64() >= f.lossRate
}

// blocked reports whether messages from a to b don't arrive now and, if so, when a notices.
func (f *far) blocked(now time.Duration, a, b int) (known time.Duration, blocked bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.net.blocked(now, a, b) {
		return 0, false
	}
	return f.net.lostAt(now, a, b), true
}

func (f *far) reachable(now time.Duration, a, b int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.net.reachable(now, a, b)
}

// sendAcross sends a message from region a to region b. Either arrive or lost runs, without a mutex; neither runs if the
// message is lost in transit, or after the end of the run.
func (g *globe) sendAcross(a, b int, arrive, lost func()) {
	at, ok := g.far.drawArrival(g.now())
	if !ok {
		return
	}

	var land func()
	land = func() {
		now := g.now()
		known, blocked := g.far.blocked(now, a, b)
		switch {
		case g.stopped.Load():
		case !blocked:
			arrive()
		case known <= now:
			lost()
		default:
			g.schedule.at(min(known, now+5*retryInterval), land)
		}
	}
	g.schedule.at(at, land)
}

// reportToPrimary sends a region's report to the leader of the primary region, and makes the region adopt the answer. The
// caller holds the region's mutex.
func (g *globe) reportToPrimary(w *World, r report) {
	primary := g.worlds[g.primaryOf(w.region)]
	nothing := func() {}
	g.sendAcross(w.region, primary.region, func() {
		primary.mu.Lock()
		news, ok := primary.answerReport(r)
		primary.mu.Unlock()

		if !ok {
			return
		}

		g.sendAcross(primary.region, w.region, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if !w.stopped {
				w.adoptNews(news)
			}
		}, nothing)
	}, nothing)
}

// farSide is a process's connection to other regions. It implements limiter.OtherRegions.
type farSide struct{ *process }

// entryNode returns an entry node of w that from can reach: from itself, if it is one, or −1 if there is none.
func (w *World) entryNode(from int) int {
	if from < w.voters() {
		return from
	}
	first := w.control.IntN(w.voters())
	for i := range w.voters() {
		if v := (first + i) % w.voters(); w.nodes[v].process.alive && w.net.reachable(w.now(), from, v) {
			return v
		}
	}
	return -1
}

// Reachable implements limiter.OtherRegions.
func (s farSide) Reachable(region string) bool {
	w := s.w
	to := w.globe.regionOf(region)
	if to < 0 || to == w.region || !w.globe.far.reachable(w.now(), w.region, to) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.alive && !w.closed && w.entryNode(s.index) >= 0
}

// farCall is a request to another region's entry nodes.
type farCall struct {
	from    *process
	to      *World
	target  *process // in the region asked
	loan    *loanRequest
	subject int // −1 if the call is not about a loan
	method  peer.Method
	body    []byte

	mu      sync.Mutex // guards the fields below
	done    func([]byte, error)
	timer   *time.Timer
	replied bool
}

// Go implements limiter.OtherRegions.
func (s farSide) Go(region string, m peer.Method, body []byte, timeout time.Duration, done func([]byte, error)) {
	if !s.Reachable(region) {
		done(nil, peer.ErrUnreachable)
		return
	}

	g := s.w.globe
	c := &farCall{from: s.process, to: g.worlds[g.regionOf(region)], method: m, body: bytes.Clone(body), done: done}
	lost := func() { c.finish(nil, peer.ErrUnreachable) }
	c.mu.Lock()
	c.timer = time.AfterFunc(timeout, func() { c.finish(nil, peer.ErrTimeout) })
	c.mu.Unlock()
	c.relay(s.w, s.index, func() {
		g.sendAcross(s.w.region, c.to.region, c.arrive, lost)
	}, lost)
}

// relay carries the call from a node to an entry node of its region, unless the node is one.
func (c *farCall) relay(w *World, index int, then, lost func()) {
	w.mu.Lock()
	from := w.nodes[index].process

	v := w.entryNode(index)
	switch {
	case v < 0:
		w.mu.Unlock()
		lost()
		return
	case v == index:
		w.mu.Unlock()
		then()
		return
	}

	w.transmitLocked(from, v, func(*process) { then() }, lost)
	w.mu.Unlock()
}

// arrive makes an entry node of the target region answer.
func (c *farCall) arrive() {
	w := c.to
	w.mu.Lock()
	v := w.control.IntN(w.voters())
	c.target = w.nodes[v].process
	serves := c.target.alive && !w.stopped && !w.closed && c.target.hasAnyRules()
	if serves {
		c.target.schedulePushLocked()
		c.loan = c.target.ownLoanRequest(c.body, c.method)
		c.subject = -1
		var r limiter.LoanRequest
		if c.method == limiter.MethodLend && wire.Decode(c.body, &r, "request") == nil {
			c.subject = w.subjectOf(&r)
		}
	}
	w.mu.Unlock()

	if !serves {
		return // the asker notices by itself
	}

	c.target.limiter.ServeFar(c.method, c.body, c)
	clear(c.body) // the body is valid only during the call
}

// Reply implements limiter.Responder.
func (c *farCall) Reply(body []byte) {
	c.to.noteLoan(c.loan, body)
	c.maybeKill(body)
	c.answer(bytes.Clone(body), nil)
}

// Fail implements limiter.Responder.
func (c *farCall) Fail(code peer.Code, detail string) {
	c.answer(nil, &peer.RemoteError{Code: code, Detail: detail})
}

func (c *farCall) answer(body []byte, err error) {
	c.mu.Lock()
	again := c.replied
	c.replied = true
	c.mu.Unlock()
	c.to.mu.Lock()
	gone := !c.target.alive || c.to.stopped
	c.to.mu.Unlock()

	if again || gone {
		return
	}

	g := c.to.globe
	g.sendAcross(c.to.region, c.from.w.region, func() {
		w := c.from.w
		w.mu.Lock()
		gone := !c.from.alive || w.stopped
		w.mu.Unlock()
		if !gone {
			c.finish(body, err)
		}
	}, func() {})
}

// finish passes the answer to the asker, once.
func (c *farCall) finish(body []byte, err error) {
	c.mu.Lock()
	done := c.done
	c.done = nil
	c.mu.Unlock()
	if done == nil {
		return
	}
	c.timer.Stop()
	c.from.schedulePush()
	done(body, err)
	clear(body) // the body is valid only until done returns
}
