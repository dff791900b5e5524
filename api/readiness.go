package api

import (
	"sync"
	"sync/atomic"
	"time"
)

// DrainGrace is how long a node that leaves still answers at all doors, after
// its probes have begun to fail. Load balancers have this long to notice and
// turn away. Envoy, as the examples configure it, takes half a second and a
// time-out.
const DrainGrace = 2 * time.Second

// keepOpen is the first part of DrainGrace, in which connections stay open for
// a next request. Later answers carry Connection: close, so that no request
// hits a connection that is just being closed.
const keepOpen = DrainGrace / 4

// state is the stage of a node's life.
type state int

// The states, in the order in which a node passes through them.
const (
	stateStarting state = iota // checks and readiness get 503 not-ready
	stateReady                 // everything is answered
	stateDraining              // readiness gets 503 draining; checks are still decided
)

// stage is a state and its details. It is immutable.
type stage struct {
	state  state
	reason string    // for stateStarting: why the node is not ready
	since  time.Time // for stateDraining: when it began
}

// Readiness is the stage of a node's life, as probes and callers see it. A node
// never returns to an earlier stage.
type Readiness struct {
	current atomic.Pointer[stage]
	// checkReady returns why a node that was ready is not ready now. If checkReady
	// is nil, the node stays ready. A failing condition keeps load balancers away,
	// but checks are still decided.
	checkReady func() error
	// checkMember returns why the node should not decide, although it can; nil: it
	// may. See Config.CheckMember.
	checkMember func() error
	// notMemberSince is when checkMember was first seen to fail, without a success
	// since; nil: it does not fail.
	notMemberSince atomic.Pointer[time.Time]

	drain chan struct{} // closed when the node begins to drain
	once  sync.Once     // closes drain
}

func (r *Readiness) currentStage() stage {
	if c := r.current.Load(); c != nil {
		return *c
	}
	return stage{reason: "the node is starting"}
}

func (r *Readiness) advance(to stage) {
	for {
		old := r.current.Load()
		// The first Drain counts: a second one would keep connections open for
		// longer.
		if old != nil && (old.state > to.state || old.state == stateDraining) {
			return
		}
		if r.current.CompareAndSwap(old, &to) {
			return
		}
	}
}

// Explain sets the reason that callers get while the node is not ready yet,
// such as "loading counters". It has no effect after Ready.
func (r *Readiness) Explain(reason string) {
	r.advance(stage{state: stateStarting, reason: reason})
}

// Drain makes the node answer readiness probes with Draining. Checks are still decided.
func (r *Readiness) Drain() {
	// The stage comes first: a goroutine that the channel wakes must find the
	// node draining.
	r.advance(stage{state: stateDraining, since: time.Now()})
	r.once.Do(func() { close(r.drain) })
}

// Draining returns a channel that is closed when the node begins to drain.
func (r *Readiness) Draining() <-chan struct{} { return r.drain }

// StartingReason returns why the node does not decide checks yet, or "" if it does.
func (r *Readiness) StartingReason() string {
	c := r.currentStage()
	if c.state == stateStarting {
		return c.reason
	}
	return ""
}

// ChecksError returns the error with which checks are answered, or nil if the node decides them.
func (r *Readiness) ChecksError() *Error {
	if why := r.StartingReason(); why != "" {
		return &Error{Code: NotReady, Detail: "not ready: " + why}
	}
	return nil
}

// ClosesConnections reports whether connections must be closed after the next
// answer, because the node drains.
func (r *Readiness) ClosesConnections() bool {
	c := r.currentStage()
	return c.state == stateDraining && time.Since(c.since) > keepOpen
}

// TurnAwayError returns the error for a check whose caller can ask another
// node, or nil if this node decides the check. A node that is no working member
// of the cluster turns callers away once they have had DrainGrace to notice.
func (r *Readiness) TurnAwayError() *Error {
	if e := r.ChecksError(); e != nil || r.checkMember == nil {
		return e
	}
	err := r.checkMember()
	since := r.notMemberSince.Load()
	if err == nil {
		if since != nil {
			r.notMemberSince.Store(nil)
		}
		return nil
	}

	if since == nil {
		now := time.Now()
		r.notMemberSince.CompareAndSwap(nil, &now)
		return nil
	}
	if time.Since(*since) < DrainGrace {
		return nil
	}
	return &Error{Code: NotReady, Detail: "not ready: " + err.Error(), Err: err}
}

// ProbeError returns the error with which readiness probes are answered, or nil
// if the node is ready.
func (r *Readiness) ProbeError() *Error {
	if r.currentStage().state == stateDraining {
		return &Error{Code: Draining, Detail: "the node is going away; checks on open connections are still decided"}
	}
	if e := r.ChecksError(); e != nil || r.checkReady == nil {
		return e
	}
	if err := r.checkReady(); err != nil {
		return &Error{Code: NotReady, Detail: "not ready: " + err.Error(), Err: err}
	}
	return nil
}
