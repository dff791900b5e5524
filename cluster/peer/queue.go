package peer

import "sync"

const (
	queueCount = 1 << 16
	queueBytes = 32 << 20
	// keptBytes is how large a buffer may be that is used again: after a burst a connection holds no more.
	keptBytes = 64 << 10
)

// queue holds the messages that a connection has to send.
type queue struct {
	wake chan struct{} // capacity 1: there is something to send

	mu      sync.Mutex // guards what follows
	waiting batch
	writing batch // taken, and not written yet. Invariant: both together have at most queueCount messages and queueBytes
	closed  bool
}

// batch is messages that are written at once.
type batch struct {
	bytes []byte
	count int
}

// put copies a message into the queue; it fails at once if that is full or closed.
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

// next is what waits, to be written now. What it gave the last time has been written.
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

// empty says whether everything was written.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting.count+q.writing.count == 0
}

// close drops what waits, and lets nothing in any more.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.waiting = true, batch{}
}
