package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/rawconn"
	"github.com/rlnode/rlnode/internal/wake"
)

const (
	// maxPending bounds the calls of a connection that wait for a reply.
	maxPending = 1 << 16
	// maxCallTime is the timeout of a call whose caller set none.
	maxCallTime = 30 * time.Second
	// maxSilence is how long a direct near connection may be silent before it is
	// closed, unless Config.Silence is longer.
	maxSilence = 5 * time.Second
	// secondDialAfter is the silence, in multiples of the unreachable timeout,
	// after which a second connection is dialled.
	secondDialAfter = 2
	// readSize and firstRead are read buffer sizes in bytes. A connection begins
	// with firstRead, and switches to readSize once a read fills the buffer: most
	// connections of a large cluster carry little traffic.
	readSize, firstRead = 32 << 10, 2 << 10
	// flushEvery is the number of messages after which the reader sends their
	// replies, even if it has read more.
	flushEvery = 32
	// retireTime is how long calls in flight may still finish on a replaced connection.
	retireTime = 2 * time.Second
)

// The reasons for which calls fail or a connection ends, mildest first.
var (
	// errSilentNow fails calls; the connection may recover.
	errSilentNow = errors.New("the connection is silent")
	// errSilentTooLong ends a connection that was silent for longer.
	errSilentTooLong = errors.New("the connection was silent for too long")
	// errOutlived ends a silent connection because a second one could be made.
	errOutlived = errors.New("the connection was silent, but a new one can be made")
	// errReplaced ends a connection whose place another one has taken.
	errReplaced = errors.New("the connection was replaced")
	// errRestarted ends a silent connection once a later process of the node has connected.
	errRestarted = errors.New("the node has been started again")
)

// farSilence is how long a far connection may be silent before it counts as
// unreachable, and is closed. After a cut, a new connection is up sooner than
// TCP retransmits on the old one.
const farSilence = 2 * time.Second

// silenceLimits are the silence after which a connection is unreachable, and
// the silence after which it is closed.
type silenceLimits struct{ untilUnreachable, untilClosed time.Duration }

// conn is one end of a connection that carries messages: the end that calls
// (the node that dialled) or the end that serves.
type conn struct {
	peers      *Peers
	remote     Identity
	done       chan struct{} // closed when run has ended
	writerDone chan struct{} // closed when write has ended
	socket     *socket
	isCaller   bool          // this end calls
	handlers   *handlers     // handlers for the other end's messages
	limits     silenceLimits // limits of silence
	queue      *queue
	tryWriter  rawconn.TryWriter // writes without waiting; nil: the connection can't
	link       *link             // set on the connections that a link has dialled, directly or by a tunnel; nil otherwise

	lastReceived atomic.Int64 // when data last arrived, as Peers.now
	down         atomic.Bool  // new calls fail: the connection is silent or broken
	lastBeat     atomic.Int64 // when the last heartbeat was sent, as Peers.now
	handling     atomic.Bool  // the reader is handling messages; drain waits for it
	dropped      sync.Once    // for the log message about dropped replies

	handled int // messages; only the reader uses it

	// Only the pulse uses these.
	checkedReceived int64         // lastReceived at the last check
	silence         time.Duration // time without data in which this process was running

	mu      sync.Mutex           // guards the fields below
	pending map[uint64]*outgoing // Invariant: empty while downErr is set
	lastID  uint64               // of a call
	// downErr is the error of new calls, which are not sent, while the connection
	// is silent or broken; nil otherwise.
	downErr   error
	brokenErr error // why the connection ended; nil until then

	// callbacks counts the done callbacks that run outside the reader. It grows
	// only with mu held, and no more once brokenErr is visible: run waits for all.
	callbacks sync.WaitGroup
}

// newConn makes the connection over a socket whose handshake is complete. calls
// says whether this end calls.
func (p *Peers) newConn(s *socket, calls bool) *conn {
	c := &conn{
		peers: p, remote: s.remote, socket: s, isCaller: calls, done: make(chan struct{}),
		writerDone: make(chan struct{}),
		queue:      &queue{wake: make(chan struct{}, 1)}, pending: make(map[uint64]*outgoing),
	}

	c.handlers = &p.handlers[Near]
	c.limits = silenceLimits{untilUnreachable: p.config.Silence, untilClosed: max(maxSilence, p.config.Silence)}
	if s.kind == kindFar {
		c.handlers = &p.handlers[Far]
		c.limits = silenceLimits{untilUnreachable: farSilence, untilClosed: farSilence}
	}

	c.tryWriter, _ = s.Conn.(rawconn.TryWriter)
	c.lastReceived.Store(p.now())
	return c
}

// run sends and receives messages until the connection breaks or ctx ends, and
// returns the reason. It reads on the goroutine that calls it.
func (c *conn) run(ctx context.Context) error {
	defer close(c.done)
	defer context.AfterFunc(ctx, func() { c.closeWithError(ErrClosed) })()

	ended, end := context.WithCancel(context.Background())
	go func() {
		defer close(c.writerDone)
		c.closeWithError(c.write(ended))
	}()

	c.peers.watch(c)
	c.closeWithError(c.read())

	// The order matters: the writer ends, the queue is dropped, the callbacks end.
	// Only then is done closed, and no callback runs after that.
	end()
	<-c.writerDone
	c.queue.drop()
	c.callbacks.Wait()
	c.peers.unwatch(c)

	return c.endReason()
}

// closeWithError ends the connection and fails the waiting calls with err. Only
// its first call has an effect.
func (c *conn) closeWithError(err error) {
	wasIntact := c.failCalls(err, true)
	if !wasIntact {
		return
	}

	c.queue.close()
	switch {
	case errors.Is(err, errSilentTooLong), errors.Is(err, errOutlived):
		c.socket.discard()
	case c.isCaller && errors.Is(err, io.EOF):
		c.awaitWriter()
	}
	c.socket.Close()
}

// lastWriteTimeout bounds how long queued messages may still be sent to a
// remote that has closed its side.
const lastWriteTimeout = 100 * time.Millisecond

// awaitWriter gives the writer up to lastWriteTimeout to send what is queued: a
// remote that has closed its side still handles one-way messages.
func (c *conn) awaitWriter() {
	wake.Signal(c.queue.wake)
	for end := time.Now().Add(lastWriteTimeout); !c.queue.isEmpty() && time.Now().Before(end); {
		select {
		case <-c.writerDone: // the remote no longer reads
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// failCalls fails the waiting calls, and new ones until the connection
// recovers. With forGood, it never recovers. failCalls returns false if the
// connection was broken already.
func (c *conn) failCalls(why error, forGood bool) (wasIntact bool) {
	if c.endReason() != nil {
		return false // what the link learns now would concern another connection
	}

	// The link learns of the loss before the calls fail: a caller that tries again
	// at once must not get the direct connection again.
	if c.link != nil && !errors.Is(why, errReplaced) {
		c.link.stopUsing(c, forGood)
	}

	c.mu.Lock()
	if c.brokenErr != nil {
		c.mu.Unlock()
		return false
	}

	failed := c.pending
	c.pending = make(map[uint64]*outgoing)
	down := fmt.Errorf("%w: %w", ErrUnreachable, why)
	c.downErr = fmt.Errorf("%w: %w", down, ErrNotSent)
	if forGood {
		c.brokenErr = why
	}
	c.down.Store(true)

	// Callbacks run without the lock: they may start new calls.
	c.callbacks.Add(1)
	c.mu.Unlock()
	defer c.callbacks.Done()

	for _, o := range failed {
		o.timer.Stop()
		o.done(nil, down)
	}
	return true
}

// markReceived records that data has arrived. A silent connection is then
// usable again.
func (c *conn) markReceived() {
	c.lastReceived.Store(c.peers.now())
	if !c.down.Load() {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.brokenErr == nil {
		c.downErr = nil
		c.down.Store(false)
	}
}

// checkSilence adds gap to the silence of c, and acts on it. gap is the time
// since the last check, as far as it counts: see countedSilence. checkSilence
// returns the time until the next check is needed. Only the pulse calls it.
func (c *conn) checkSilence(now int64, gap time.Duration) (next time.Duration) {
	c.silence += gap

	heard := c.lastReceived.Load()
	if heard != c.checkedReceived {
		// Data has arrived since the last check. At most gap of the time since then
		// counts, because in the rest this process may not have run.
		c.checkedReceived = heard
		c.silence = min(max(0, time.Duration(now-heard)), gap)
	}

	after := c.limits.untilUnreachable
	switch {
	case c.silence >= c.limits.untilClosed:
		c.closeWithError(errSilentTooLong)
	case c.silence >= after && !c.down.Load():
		c.failCalls(errSilentNow, false)
	}

	if c.silence < after/2 {
		return after/2 - c.silence
	}

	if c.link != nil {
		c.link.onQuiet(c)
	}

	if c.silence < after {
		return after - c.silence
	}
	return after / beatsPerSilence
}

// sendHeartbeat sends a heartbeat, unless one was sent a moment ago. The end
// that was dialled sends none while it hears nothing; see Reachable in the
// package comment. Only the pulse calls it.
func (c *conn) sendHeartbeat(now int64) {
	if c.peers.draining.Load() || !c.isCaller && now-c.lastReceived.Load() > int64(c.limits.untilUnreachable*2/5) {
		return
	}

	if !c.isBeatDue(now) {
		return
	}

	c.lastBeat.Store(now)
	if !c.queue.isEmpty() {
		// Any message shows that this node is alive. The writer is woken, because the
		// reader may take long before it sends what is queued.
		wake.Signal(c.queue.wake)
		return
	}
	if c.put(message{kind: messageBeat}) == nil {
		c.flush()
	}
}

// isBeatDue reports whether the next heartbeat is due within half an interval.
func (c *conn) isBeatDue(now int64) bool {
	return now-c.lastBeat.Load() >= int64(c.limits.untilUnreachable/beatsPerSilence-c.peers.interval()/2)
}

// write sends queued messages until ctx ends or the connection breaks.
func (c *conn) write(ctx context.Context) error {
	for {
		b := c.queue.take()
		if len(b) > 0 {
			_, err := c.socket.Write(b) // blocks while the remote does not read
			if err != nil {
				return fmt.Errorf("send: %w", err)
			}
			c.queue.wrote(len(b))
			continue
		}

		select {
		case <-ctx.Done():
			return ErrClosed
		case <-c.queue.wake:
			runtime.Gosched() // other goroutines that are about to send may join the same batch
		}
	}
}

// read handles incoming messages until the connection breaks.
func (c *conn) read() error {
	var parts assembler
	handle := c.handleMessage // one method value serves all messages

	b := make([]byte, firstRead)
	for {
		n, err := c.socket.Read(b)
		if n > 0 {
			c.markReceived()
			c.handling.Store(true)
			err := parts.feed(b[:n], handle)
			c.handling.Store(false)
			c.flush()
			if err != nil {
				return err
			}
		}

		// Connections on which little arrives keep their small buffer.
		if n == len(b) && n < readSize {
			b = make([]byte, readSize)
		}

		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	}
}

// handleMessage handles an incoming message. Only the reader calls it.
func (c *conn) handleMessage(m message) error {
	c.handled++
	if c.handled%flushEvery == 0 {
		c.flush()
	}

	switch {
	case m.kind != messageBeat && c.isCaller:
		return c.finishCall(m)
	case m.kind != messageBeat:
		return c.serve(m)
	case m.methodOrCode != 0 || m.id != 0 || len(m.body) != 0:
		return errMessage
	}

	c.peers.advancePulse(c)
	return nil
}

// serve passes a message to its handler. While Close lets the connections end,
// serve drops calls, which then fail at their callers. It still handles one-way
// messages, because nobody would learn that they were dropped.
func (c *conn) serve(m message) error {
	if m.kind == messageCall && c.peers.draining.Load() {
		return nil
	}

	call := &Call{From: c.remote, Method: Method(m.methodOrCode), Body: m.body, conn: c, id: m.id}
	if call.Method == methodReceivesFrom && c.socket.kind == kindNear {
		c.peers.answerReceivesFrom(call)
		return nil
	}

	switch {
	case m.kind == messageCall && m.id != 0:
	case m.kind == messageSend && m.id == 0:
	default:
		return errMessage
	}

	// If the handler replies before it returns, the reader sends the reply
	// together with those to the messages that follow.
	call.inReader.Store(true)
	c.handlers.dispatch(call)
	call.inReader.Store(false)
	return nil
}

// finishCall ends a call with the remote's answer. If no call waits for the
// answer, it came too late, and is dropped.
func (c *conn) finishCall(m message) error {
	if m.kind != messageReply && m.kind != messageFailure {
		return errMessage
	}

	o := c.removePending(m.id, false)
	if o == nil {
		return nil
	}

	o.timer.Stop()
	if m.kind == messageFailure {
		o.done(nil, &RemoteError{Code: Code(m.methodOrCode), Detail: string(m.body)})
	} else {
		o.done(m.body, nil)
	}
	return nil
}

// removePending removes and returns a waiting call, or nil if the call no
// longer waits. Only the goroutine that gets the call may run its done, so done
// runs once. outsideReader says that this goroutine is not the reader, and will
// run done: it must then call c.callbacks.Done.
func (c *conn) removePending(id uint64, outsideReader bool) *outgoing {
	c.mu.Lock()
	defer c.mu.Unlock()

	o := c.pending[id]
	delete(c.pending, id)
	if o != nil && outsideReader {
		c.callbacks.Add(1)
	}
	return o
}

// startCall sends a call. On an error, done never runs; otherwise it runs once.
// A timeout of 0 or less means maxCallTime.
func (c *conn) startCall(m Method, body []byte, timeout time.Duration, done func([]byte, error)) (*outgoing, error) {
	if timeout <= 0 {
		timeout = maxCallTime
	}

	o := &outgoing{conn: c, done: done}

	c.mu.Lock()
	switch {
	case c.downErr != nil:
		defer c.mu.Unlock()
		return nil, c.downErr
	case len(c.pending) >= maxPending:
		c.mu.Unlock()
		return nil, ErrBusy
	}

	c.lastID++
	o.id = c.lastID
	// Set the timer under the lock: the goroutine that removes the call stops it.
	o.timer = time.AfterFunc(timeout, o.expire)
	c.pending[o.id] = o
	isAlone := len(c.pending) == 1
	c.mu.Unlock()

	// A call that is alone is sent now. While others wait for replies, the writer
	// sends in one piece what gathers meanwhile.
	err := c.put(message{kind: messageCall, methodOrCode: uint8(m), id: o.id, body: body})
	switch {
	case err != nil && c.removePending(o.id, false) != nil:
		o.timer.Stop()
		return nil, err
	case err != nil: // the call has already failed, and done has run
	case isAlone:
		c.flush()
	default:
		wake.Signal(c.queue.wake)
	}
	return o, nil
}

// put queues a message. The caller must then flush, or wake the writer: either
// also sends what others have put meanwhile.
func (c *conn) put(m message) error {
	err := c.queue.put(m)
	if errors.Is(err, ErrUnreachable) {
		err = c.sendError() // the queue is closed
	}
	return err
}

// flush sends what it can without waiting. The writer sends the rest.
func (c *conn) flush() {
	switch {
	case c.tryWriter != nil:
		b := c.queue.take()
		if len(b) > 0 {
			c.queue.wrote(c.tryWriter.TryWrite(b))
		}
	case !c.queue.isEmpty():
		wake.Signal(c.queue.wake)
	}
}

// call sends a call and waits for its result.
func (c *conn) call(ctx context.Context, m Method, body []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, contextError(err)
	}

	timeout := maxCallTime
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(deadline), 1)
	}

	type answer struct {
		reply []byte
		err   error
	}

	answers := make(chan answer, 1)
	o, err := c.startCall(m, body, timeout,
		func(reply []byte, err error) { answers <- answer{bytes.Clone(reply), err} })
	if err != nil {
		return nil, err
	}

	select {
	case a := <-answers:
		return a.reply, a.err
	case <-ctx.Done():
	}

	if c.removePending(o.id, false) != nil {
		o.timer.Stop()
		return nil, contextError(ctx.Err())
	}

	// The call has just ended: its callback is about to run, or has run.
	a := <-answers
	return a.reply, a.err
}

// contextError returns the error of a call whose context has ended with err.
func contextError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrTimeout
	}
	return fmt.Errorf("wait for a reply: %w", err)
}

// sendOneWay sends a one-way message.
func (c *conn) sendOneWay(m Method, body []byte) error {
	if c.down.Load() {
		return c.sendError()
	}

	err := c.put(message{kind: messageSend, methodOrCode: uint8(m), body: body})
	if err == nil {
		wake.Signal(c.queue.wake)
	}
	return err
}

func (c *conn) isReachable() bool { return !c.down.Load() }

// sendError returns the error of calls that can't be sent.
func (c *conn) sendError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.downErr == nil {
		return errNoConnection // the connection has just recovered
	}
	return c.downErr
}

// retire ends a replaced connection after retireTime, in which calls in flight
// may finish. Only senders that had picked this connection before still start
// calls on it. If such a call is not sent, sendOver sends it on the new one.
func (c *conn) retire() { time.AfterFunc(retireTime, func() { c.closeWithError(errReplaced) }) }

// endReason returns the reason why the connection ended, or nil if it has not.
func (c *conn) endReason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.brokenErr
}
