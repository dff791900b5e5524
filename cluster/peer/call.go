package peer

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Method says what a message asks for; the users of this package define the meanings.
type Method uint8

// Code says how a call failed; the users of this package define the meanings, except for CodeTooLarge and CodeNoMethod.
type Code uint8

// CodeTooLarge: there was a reply, but it exceeded the size of a message.
const CodeTooLarge Code = 255

var (
	// ErrUnreachable: there is no connection to the node, or it is silent, or it broke before the reply arrived.
	ErrUnreachable = errors.New("the node is unreachable")
	// ErrNotSent is wrapped by failures of calls that certainly never left this node. ErrBusy and ErrTooLarge imply it.
	// After any other failure, the call may or may not have been served.
	ErrNotSent = errors.New("nothing was sent")
	// ErrBusy: a queue is full; nothing was sent.
	ErrBusy = errors.New("too much is queued for the node")
	// ErrTimeout: no reply arrived in time.
	ErrTimeout = errors.New("no reply in time")
	// ErrTooLarge: the body is larger than 16 MiB.
	ErrTooLarge = errors.New("the message is too large")
	// ErrClosed: these Peers have been closed.
	ErrClosed = errors.New("closed")
)

// errAway: there is no connection.
var errAway = fmt.Errorf("%w: %w", ErrUnreachable, ErrNotSent)

// RemoteError is the failure that the called node answered with Fail.
type RemoteError struct {
	Code   Code
	Detail string
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("the remote failed (%d): %s", e.Code, e.Detail)
}

// Call is an incoming message. Reply or Fail answers it, once, from any goroutine and at any time. They do nothing for
// one-way messages, for a second answer, and once the connection is gone.
type Call struct {
	From   Identity
	Method Method
	Body   []byte // valid until the handler returns; see Keep

	conn     *conn
	id       uint64
	answered atomic.Bool
}

// CopyBody replaces Body with a copy that stays valid.
func (c *Call) CopyBody() { c.Body = append([]byte(nil), c.Body...) }

// Reply answers the call. body may be reused afterwards.
func (c *Call) Reply(body []byte) {
	if len(body) > largestMessage {
		c.Fail(CodeTooLarge, "the reply is too large")
		return
	}
	c.answer(message{kind: messageReply, id: c.id, body: body})
}

// maxDetail bounds the bytes of a failure's detail that are sent.
const maxDetail = 4 << 10

// Fail answers that there is no reply, and why.
func (c *Call) Fail(code Code, detail string) {
	c.answer(message{kind: messageFailure, what: uint8(code), id: c.id, body: []byte(detail[:min(len(detail), maxDetail)])})
}

func (c *Call) answer(m message) {
	if c.id == 0 || c.conn == nil || c.answered.Swap(true) {
		return
	}
	if err := c.conn.queue.put(m); errors.Is(err, ErrBusy) {
		c.conn.dropped.Do(func() {
			c.conn.peers.log.Warn("replies dropped: the node does not read them", "node", c.From.Node, "name", c.From.Name)
		})
	}
}

// outgoing is a call that waits for its reply.
type outgoing struct {
	id    uint64
	conn  *conn
	timer *time.Timer
	done  func(reply []byte, err error)
}

// expire is called by the timer.
func (o *outgoing) expire() {
	if o.conn.removePending(o.id, true) != nil {
		defer o.conn.ending.Done()
		o.done(nil, ErrTimeout)
	}
}
