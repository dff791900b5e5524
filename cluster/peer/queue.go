package peer

import (
	"sync"

	"github.com/rlnode/rlnode/internal/wake"
)

const (
	maxQueued      = 1 << 16
	maxQueuedBytes = 32 << 20
	// maxReusedBuffer is the largest buffer that is reused, in bytes, so that a
	// connection holds no more memory after a burst.
	maxReusedBuffer = 64 << 10
)

// queue holds the messages that a connection has not sent yet.
type queue struct {
	wake chan struct{} // capacity 1: there is something to send

	mu      sync.Mutex // guards the fields below
	waiting batch
	writing batch // Invariant: both together have at most maxQueued messages and maxQueuedBytes
	written int   // bytes of writing that were written
	taken   bool  // some goroutine is writing the rest of writing
	closed  bool
}

// batch is a group of messages that are written at once.
type batch struct {
	bytes []byte
	count int
}

// put copies a message into the queue. It fails at once with ErrTooLarge, with
// ErrBusy if the queue is full, or with ErrUnreachable if it is closed. The
// caller must see to it that somebody sends the message.
func (q *queue) put(m message) error {
	if len(m.body) > largestMessage {
		return ErrTooLarge
	}

	head := m.head()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return ErrUnreachable
	case q.waiting.count+q.writing.count == maxQueued,
		len(q.waiting.bytes)+len(q.writing.bytes)+messageHead+len(m.body) > maxQueuedBytes:
		return ErrBusy
	}

	q.waiting.bytes = append(append(q.waiting.bytes, head[:]...), m.body...)
	q.waiting.count++
	return nil
}

// take returns the bytes that are to be written next. The caller must write
// them and then call wrote. take returns nothing if the queue is empty, or
// if another goroutine is writing.
func (q *queue) take() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	// The bytes of two writers would mix.
	if q.taken {
		return nil
	}

	if len(q.writing.bytes) == 0 {
		q.writing, q.waiting = q.waiting, q.writing
	}

	q.taken = len(q.writing.bytes) > 0
	return q.writing.bytes[q.written:]
}

// wrote says that the first n of the bytes taken were written. If the queue
// is not empty, it wakes the writer.
func (q *queue) wrote(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken = false

	q.written += n
	if q.written == len(q.writing.bytes) {
		free := q.writing.bytes[:0]
		if cap(free) > maxReusedBuffer {
			free = nil
		}
		q.writing = batch{bytes: free}
		q.written = 0
	}

	if q.writing.count+q.waiting.count > 0 {
		wake.Signal(q.wake)
	}
}

// isEmpty reports whether all messages were written.
func (q *queue) isEmpty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.count+q.writing.count == 0
}

// close makes put fail.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// drop drops the messages that still wait. The queue must be closed.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = batch{}
}
