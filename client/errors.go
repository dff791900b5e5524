package client

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is returned by calls of a client that was closed.
	ErrClosed = errors.New("client: closed")
	// ErrQueueFull is returned at once when Options.MaxQueue calls wait already, and beside ErrTimeout, or the context's
	// error, when nodes answered all the while and a call's turn did not come, or so late that less than half of its time
	// was left. Its Decision refuses, unless Options.OpenWhenFull.
	ErrQueueFull = errors.New("client: too many calls are waiting")
	// ErrTimeout is returned when no node has answered within Options.Timeout.
	ErrTimeout = errors.New("client: no answer in time")
	// ErrUnavailable is returned when no node can be asked; errors.Is finds it beside what went wrong last.
	ErrUnavailable = errors.New("client: no node answers")
	// ErrBadAnswer is returned when what answers is no node of rlnode, or says what it may not.
	ErrBadAnswer = errors.New("client: not an answer of a node")
	// ErrRequest is returned for a call that no node could decide. Nothing is sent, and the Decision refuses.
	ErrRequest = errors.New("client: invalid request")
)

// Error is an error that a node has answered. Below 500 its Decision refuses: the node is well, and did not take what it was
// asked.
type Error struct {
	Status int    // of HTTP
	Code   string // such as "unknown-rule", "unauthorized", "bad-value", "unknown-reservation", "draining"
	Title  string
	Detail string // a sentence; names the field and the bound
	Node   string // the address that was asked
}

// Error returns all of it in one line.
func (e *Error) Error() string {
	return fmt.Sprintf("client: %s answers %d %s: %s", e.Node, e.Status, e.Code, e.Detail)
}
