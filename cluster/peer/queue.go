package peer

import "sync"

const (
	frameSize  = 32 << 10
	queueCount = 1 << 16
	queueBytes = 32 << 20
)

// frame is bytes of messages that are written at once.
type frame struct {
	bytes *[]byte // of framePool
	begun int     // how many messages begin in it
}

// queue holds the messages that a connection has to send, already as frames.
type queue struct {
	wake chan struct{} // capacity 1: there is something to send

	mu     sync.Mutex // guards what follows
	frames []frame    // only the last has room
	count  int        // messages that are not written yet, those taken included. Invariant: <= queueCount
	bytes  int        // and their bytes. Invariant: <= queueBytes
	closed bool
}

// put copies a message into the queue; it fails at once if that is full or closed.
func (q *queue) put(m message) error {
	if len(m.body) > largestMessage {
		return ErrTooLarge
	}
	head := m.head()
	q.mu.Lock()
	defer q.mu.Unlock()
	size := messageHead + len(m.body)
	switch {
	case q.closed:
		return ErrUnreachable
	case q.count == queueCount, q.bytes+size > queueBytes:
		return ErrBusy
	}
	q.count++
	q.bytes += size
	first := len(q.frames) == 0
	q.appendLocked(head[:], 1)
	q.appendLocked(m.body, 0)
	if first {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

func (q *queue) appendLocked(b []byte, begun int) {
	for len(b) > 0 {
		last := len(q.frames) - 1
		if last < 0 || len(*q.frames[last].bytes) == cap(*q.frames[last].bytes) {
			q.frames = append(q.frames, frame{bytes: framePool.Get().(*[]byte)})
			last++
		}
		f := &q.frames[last]
		n := min(len(b), cap(*f.bytes)-len(*f.bytes))
		*f.bytes = append(*f.bytes, b[:n]...)
		f.begun += begun
		begun = 0
		b = b[n:]
	}
}

// take moves all frames to the empty slice into, which the queue uses next.
func (q *queue) take(into []frame) []frame {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.frames
	q.frames = into[:0]
	return taken
}

// written says that a frame has been sent.
func (q *queue) written(begun, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count -= begun
	q.bytes -= bytes
}

// empty says whether everything was written.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count == 0
}

// close drops what is there, and lets nothing in any more.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, f := range q.frames {
		f.free()
	}
	q.frames = nil
}

// framePool keeps the buffers of frames, once they are written.
var framePool = sync.Pool{New: func() any {
	b := make([]byte, 0, frameSize)
	return &b
}}

// free gives the buffer back.
func (f frame) free() {
	*f.bytes = (*f.bytes)[:0]
	framePool.Put(f.bytes)
}
