package api

import (
	"sync/atomic"
	"time"
)

// stayOpen is how long after the node began to drain connections are kept open for the next request. Later answers
// say that they are the last, so that no request meets a connection that is just being closed.
const stayOpen = 500 * time.Millisecond

// state is how far a node is in its life.
type state int

// The states, in the order in which a node passes through them.
const (
	stateStarting state = iota // checks and readiness are 503 not-ready
	stateReady                 // everything is answered
	stateDraining              // readiness is 503 draining, checks are still decided
)

// condition is a state and what to say about it. It is immutable.
type condition struct {
	state  state
	reason string    // why stateStarting is not over
	since  time.Time // of stateDraining
}

// readiness holds the present condition. A state never goes back.
type readiness struct {
	at atomic.Pointer[condition]
	// condition is why a node that has been ready is not so now; nil: it always is. It keeps load balancers away;
	// checks are decided all the same.
	condition func() error
}

func (r *readiness) load() condition {
	if c := r.at.Load(); c != nil {
		return *c
	}
	return condition{reason: "the node is starting"}
}

func (r *readiness) advance(to condition) {
	for {
		old := r.at.Load()
		if old != nil && (old.state > to.state || old.state == stateDraining) {
			return
		}
		if r.at.CompareAndSwap(old, &to) {
			return
		}
	}
}

// checks is the error to answer checks with, nil when they are decided.
func (r *readiness) checks() *Error {
	if c := r.load(); c.state == stateStarting {
		return &Error{Code: NotReady, Detail: "not ready: " + c.reason}
	}
	return nil
}

// draining reports whether the node is going away.
func (r *readiness) draining() bool { return r.load().state == stateDraining }

// leaving reports whether connections are to be closed after the next answer.
func (r *readiness) leaving() bool {
	c := r.load()
	return c.state == stateDraining && time.Since(c.since) > stayOpen
}

// probe is the error to answer a readiness probe with, nil when the node is ready.
func (r *readiness) probe() *Error {
	if r.draining() {
		return &Error{Code: Draining, Detail: "the node is going away; checks on open connections are still decided"}
	}
	if e := r.checks(); e != nil || r.condition == nil {
		return e
	}
	if err := r.condition(); err != nil {
		return &Error{Code: NotReady, Detail: "not ready: " + err.Error(), Err: err}
	}
	return nil
}
