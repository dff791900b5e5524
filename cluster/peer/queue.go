package peer

import "sync"

const (
	queueCount = 1 << 16
	queueBytes = 32 << 20
	// keptBytes bounds the size of a buffer that is reused: after a burst, a connection holds no more than that.
	keptBytes = 64 << 10
)

// queue holds the messages that a connection has yet to send.
type queue struct {
	wake chan struct{} // capacity 1: there is something to send

	mu      sync.Mutex // guards the fields below
	waiting batch
	writing batch // taken, but not written yet. Invariant: both together have at most queueCount messages and queueBytes
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
		signal(q.wake)
	}
	return nil
}

// beat queues a heartbeat if nothing else is queued: other messages show as well that their sender is alive.
func (q *queue) beat() {
	if q.empty() {
		_ = q.put(message{kind: messageBeat}) // it only fails once the connection is over
	}
}

// next returns the waiting messages, to be written now. The caller has written those of the last call.
func (q *queue) next() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	free := q.writing.bytes[:0]
	if cap(free) > keptBytes {
		free = nil
	}
	q.writing, q.waiting = q.waiting, batch{bytes: free}
	return q.writing.bytes
}

// empty reports whether everything was written.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.count+q.writing.count == 0
}

// close drops the waiting messages, and makes put fail.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.waiting = true, batch{}
}
