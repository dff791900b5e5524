package api

import (
	"sync/atomic"
	"time"
)

// stayOpen is how long connections stay open for the next request after the node begins to drain. Later answers
// announce that they are the last, so that no request hits a connection that is just being closed.
const stayOpen = 500 * time.Millisecond

// state is the stage of a node's life.
type state int

// The states, in the order in which a node passes through them.
const (
	stateStarting state = iota // checks and readiness get 503 not-ready
	stateReady                 // everything is answered
	stateDraining              // readiness gets 503 draining; checks are still decided
)

// condition is a state and its details. It is immutable.
type condition struct {
	state  state
	reason string    // why stateStarting is not over
	since  time.Time // start of stateDraining
}

// readiness holds the current condition. A state never goes back.
type readiness struct {
	at atomic.Pointer[condition]
	// condition returns why a node that has been ready is currently not; nil: it always is. It keeps load balancers away;
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

// checks returns the error to answer checks with, nil if they are decided.
func (r *readiness) checks() *Error {
	if c := r.load(); c.state == stateStarting {
		return &Error{Code: NotReady, Detail: "not ready: " + c.reason}
	}
	return nil
}

// draining reports whether the node is draining.
func (r *readiness) draining() bool { return r.load().state == stateDraining }

// leaving reports whether connections must be closed after the next answer.
func (r *readiness) leaving() bool {
	c := r.load()
	return c.state == stateDraining && time.Since(c.since) > stayOpen
}

// probe returns the error to answer a readiness probe with, nil if the node is ready.
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
