package peer

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
)

// Method is the kind of a call. The package comment lists who defines which.
type Method uint8

// Code says why a call failed. The packages that register handlers define the
// values, except for CodeTooLarge and CodeNoMethod.
type Code uint8

// CodeTooLarge means that the call was served, but the reply exceeds 16 MiB.
const CodeTooLarge Code = 255

var (
	// ErrUnreachable means that there is no connection to the node, that the
	// connection is silent, or that it broke before the reply arrived.
	ErrUnreachable = errors.New("the node is unreachable")
	// ErrNotSent is wrapped by the errors of calls that certainly never left this
	// node. ErrBusy and ErrTooLarge mean the same, but do not wrap it. After any
	// other error, the node may have served the call.
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

// RemoteError is a failure that the called node has answered with: by
// Call.Fail, or because it has no handler for the method.
type RemoteError struct {
	Code   Code
	Detail string
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("the remote failed (%d): %s", e.Code, e.Detail)
}

// Call is an incoming message. The handler answers it with Reply or Fail, from
// any goroutine and at any time. Both do nothing if the message is one-way, was
// answered already, or came over a connection that has ended.
type Call struct {
	From   Identity
	Method Method
	Body   []byte // valid until the handler returns; see CopyBody

	conn     *conn
	id       uint64
	answered atomic.Bool
	inReader atomic.Bool // the reader is running the handler, and sends the reply itself afterwards
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

// answer queues the only answer to a call. If the queue is full, the answer is
// dropped, and the call times out at its caller.
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
