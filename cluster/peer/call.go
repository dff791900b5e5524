package peer

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
)

// Method is the kind of a call. The packages that register handlers define the values.
type Method uint8

// Code is the reason of a failed call. The packages that register handlers
// define the values, except for CodeTooLarge and CodeNoMethod.
type Code uint8

// CodeTooLarge means that the reply exceeded the size of a message.
const CodeTooLarge Code = 255

var (
	// ErrUnreachable means that there is no connection to the node, or that the
	// connection is silent, or broke before the reply arrived.
	ErrUnreachable = errors.New("the node is unreachable")
	// ErrNotSent is wrapped by the errors of calls that certainly never left this
	// node. ErrBusy and ErrTooLarge imply it. After any other error, the call may
	// or may not have been served.
	ErrNotSent = errors.New("nothing was sent")
	// ErrBusy means that a queue is full; nothing was sent.
	ErrBusy = errors.New("too much is queued for the node")
	// ErrTimeout means that no reply arrived in time.
	ErrTimeout = errors.New("no reply in time")
	// ErrTooLarge means that the body is larger than 16 MiB; nothing was sent.
	ErrTooLarge = errors.New("the message is too large")
	// ErrClosed means that the Peers were closed.
	ErrClosed = errors.New("connections between nodes are closed")
)

// errNoConnection means that there is no connection.
var errNoConnection = fmt.Errorf("%w: %w", ErrUnreachable, ErrNotSent)

// RemoteError is a failure that the called node's handler returned with Fail.
type RemoteError struct {
	Code   Code
	Detail string
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("the remote failed (%d): %s", e.Code, e.Detail)
}

// Call is an incoming message. Reply or Fail answers it, once, from any
// goroutine and at any time. They have no effect on one-way messages, after the
// first answer, and once the connection is closed.
type Call struct {
	From   Identity
	Method Method
	Body   []byte // valid until the handler returns; see CopyBody

	conn     *conn
	id       uint64
	answered atomic.Bool
	inReader atomic.Bool // the reader is running the handler, and will send the reply
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

// maxDetail is the number of bytes to which a failure's detail is cut.
const maxDetail = 4 << 10

// Fail answers the call with a failure, which the caller gets as a RemoteError.
func (c *Call) Fail(code Code, detail string) {
	c.answer(message{kind: messageFailure, methodOrCode: uint8(code), id: c.id,
		body: []byte(detail[:min(len(detail), maxDetail)])})
}

func (c *Call) answer(m message) {
	if c.id == 0 || c.conn == nil || c.answered.Swap(true) {
		return
	}

	err := c.conn.put(m)
	switch {
	case errors.Is(err, ErrBusy):
		c.conn.dropped.Do(func() {
			c.conn.peers.log.Warn("replies dropped: the node does not read them",
				"node", c.From.Node, "name", c.From.Name)
		})
	case err == nil && !c.inReader.Load():
		wake.Signal(c.conn.queue.wake)
	}
}

// outgoing is a call that waits for its reply.
type outgoing struct {
	id    uint64
	conn  *conn
	timer *time.Timer
	done  func(reply []byte, err error)
}

// expire fails the call with ErrTimeout. The timer calls it.
func (o *outgoing) expire() {
	if o.conn.removePending(o.id, true) != nil {
		defer o.conn.callbacks.Done()
		o.done(nil, ErrTimeout)
	}
}
