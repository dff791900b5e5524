package peer

import (
	"sync"

	"github.com/rlnode/rlnode/internal/wake"
)

const (
	queueCount = 1 << 16
	queueBytes = 32 << 20
	// maxReusedBuffer is the largest buffer that is reused, so that a connection holds no more memory after a burst.
	maxReusedBuffer = 64 << 10
)

// queue holds the messages that a connection has not sent yet.
type queue struct {
	wake chan struct{} // capacity 1: there are messages to send

	mu      sync.Mutex // guards the fields below
	waiting batch
	writing batch // being written. Invariant: both together have at most queueCount messages and queueBytes
	closed  bool
}

// batch is a group of messages that are written at once.
type batch struct {
	bytes []byte
	count int
}

// put copies a message into the queue. It fails at once if the queue is full or closed.
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
	case q.waiting.count+q.writing.count == queueCount, len(q.waiting.bytes)+len(q.writing.bytes)+messageHead+len(m.body) > queueBytes:
		return ErrBusy
	}
	q.waiting.bytes = append(append(q.waiting.bytes, head[:]...), m.body...)
	if q.waiting.count++; q.waiting.count == 1 {
		wake.Signal(q.wake)
	}
	return nil
}

// putHeartbeat queues a heartbeat if the queue is empty: any other message also shows that this node is alive.
func (q *queue) putHeartbeat() {
	if q.isEmpty() {
		_ = q.put(message{kind: messageBeat}) // it only fails once the connection is over
	}
}

// next returns the waiting messages, which the caller must write before it calls next again.
func (q *queue) next() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	free := q.writing.bytes[:0]
	if cap(free) > maxReusedBuffer {
		free = nil
	}
	q.writing, q.waiting = q.waiting, batch{bytes: free}
	return q.writing.bytes
}

// isEmpty reports whether all messages were written.
func (q *queue) isEmpty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.count+q.writing.count == 0
}

// close drops the waiting messages and makes put fail.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.waiting = true, batch{}
}
