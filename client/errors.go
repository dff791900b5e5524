package client

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is returned by calls on a closed client.
	ErrClosed = errors.New("client: closed")
	// ErrQueueFull is returned at once if Options.MaxQueue calls are already
	// waiting. It also comes together with ErrTimeout or the context's error if
	// nodes kept answering other calls, but this one was never sent, or was sent
	// with less than half of its time left. The Decision then refuses, unless
	// Options.OpenWhenFull is set.
	ErrQueueFull = errors.New("client: too many calls are waiting")
	// ErrTimeout is returned if no node answers within Options.Timeout.
	ErrTimeout = errors.New("client: no answer in time")
	// ErrUnavailable is returned if no node answers, or none is left to ask. The
	// error also wraps the last failure, if any.
	ErrUnavailable = errors.New("client: no node answers")
	// ErrBadAnswer is returned if the answer does not come from an rlnode node, or
	// breaks the protocol.
	ErrBadAnswer = errors.New("client: not a valid answer from a node")
	// ErrRequest is returned for an invalid call, which no node could decide.
	// Nothing is sent, and the Decision refuses.
	ErrRequest = errors.New("client: invalid request")
)

// Error is an error answer from a node. Below status 500 the Decision refuses,
// because a healthy node has rejected the call.
type Error struct {
	Status int    // the HTTP status
	Code   string // such as "unknown-rule", "unauthorized", "bad-value", "unknown-reservation", "draining"
	Title  string
	Detail string // names the field and its bound
	Node   string // the address of the node
}

// Error formats all fields in one line.
func (e *Error) Error() string {
	return fmt.Sprintf("client: %s answers %d %s: %s", e.Node, e.Status, e.Code, e.Detail)
}

// The codes of error answers that the client itself tells apart.
const (
	codeForbidden   = "forbidden" // the token lacks the scope
	codeOverloaded  = "overloaded"
	codeUnknownRule = "unknown-rule"
	codeUnknownSlot = "unknown-slot" // the slot is over
	// codeNoOwner means that only the owner can do this, and can't be reached now.
	codeNoOwner = "no-owner"
	// codeTooManyReservations means that the subject's owner has no room for
	// another reservation. Any other node would ask the same owner.
	codeTooManyReservations = "too-many-reservations"
	// codeTooManySlots is the same for slots.
	codeTooManySlots = "too-many-slots"
	// codeTryAgain means that no node may decide about a slot for the moment.
	codeTryAgain = "try-again"
)
