package api

import (
	"bytes"
	"cmp"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// dataBudget bounds the bytes of requests and answers that are held at once.
	dataBudget = 20 << 20
	// freeBytes is the size up to which a request and its answer are not charged; nearly all fit. The bound on connections
	// bounds these.
	freeBytes = 16 << 10
	// slowTime is how long a large answer, or a piece of a large body, may take before its connection may be closed to make
	// room.
	slowTime = time.Second
	// roomTime bounds how long a large request or answer waits for room; roomInterval is how often it looks for connections
	// to close.
	roomTime     = 2 * time.Second
	roomInterval = slowTime / 4
)

// keptBuffer bounds, in bytes, the buffers that are kept from request to request.
const keptBuffer = 64 << 10

// kept returns b emptied for reuse, or nil if it is too large to keep.
func kept(b []byte) []byte {
	if cap(b) > keptBuffer {
		return nil
	}
	return b[:0]
}

// budget bounds the memory that callers can tie up by what they send and by answers that they don't read. When it is
// used up, connections whose body or answer has taken longer than slowTime are closed, the oldest first. So callers
// that neither send nor read hold up no one else.
type budget struct {
	most  int64 // 0: dataBudget
	used  atomic.Int64
	ended atomic.Int64 // connections that were closed for room

	waits atomic.Int64 // callers of wait

	replies sync.Pool // of *reply, with buffers of at most keptBuffer

	mu     sync.Mutex // guards the rest, and the transfers in it
	moving map[*transfer]struct{}
	freed  chan struct{} // closed when bytes are given back; nil: no one waits
}

// take takes n bytes. It reports false if that is more than is left.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) <= cmp.Or(b.most, dataBudget) {
		return true
	}
	b.used.Add(-n)
	b.endSlow(n)
	return false
}

// give gives n bytes back.
func (b *budget) give(n int64) {
	b.used.Add(-n)
	if b.waits.Load() > 0 {
		b.mu.Lock()
		b.wake()
		b.mu.Unlock()
	}
}

// wake makes all waiters look again. The caller holds b.mu.
func (b *budget) wake() {
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// wait retries take, which takes from the budget, until it succeeds, for at most roomTime.
func (b *budget) wait(take func() bool) bool {
	if take() {
		return true
	}
	b.waits.Add(1)
	defer b.waits.Add(-1)
	end, look := time.NewTimer(roomTime), time.NewTicker(roomInterval)
	defer end.Stop()
	defer look.Stop()
	for {
		b.mu.Lock()
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		freed := b.freed
		b.mu.Unlock()
		if take() {
			return true
		}
		select {
		case <-freed:
		case <-look.C:
		case <-end.C:
			return false
		}
	}
}

// full is the error for a request that finds no room.
func (b *budget) full() *Error {
	return errorf(Overloaded, "requests and answers of more than %d bytes are under way", cmp.Or(b.most, dataBudget))
}

// transfer is a large body or answer in transit.
type transfer struct {
	conn  net.Conn // the lowest-level connection; nil: unknown
	size  int64
	since time.Time
}

// begin records that t, of size bytes, is sent over conn.
func (b *budget) begin(t *transfer, size int64, conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.conn, t.size, t.since = nil, size, time.Now()
	if c := tracked(conn); c != nil {
		t.conn = c.Conn
	}
	if b.moving == nil {
		b.moving = make(map[*transfer]struct{})
	}
	b.moving[t] = struct{}{}
}

// finish records that t is over.
func (b *budget) finish(t *transfer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.moving, t)
}

// endSlow closes slow connections, the oldest first, until they hold n bytes in all. The goroutines that serve them
// give the bytes back.
func (b *budget) endSlow(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n > 0 {
		var oldest *transfer
		for t := range b.moving {
			if oldest == nil || t.since.Before(oldest.since) {
				oldest = t
			}
		}
		if oldest == nil || time.Since(oldest.since) < slowTime {
			return
		}
		delete(b.moving, oldest)
		n -= oldest.size
		if oldest.conn != nil {
			b.ended.Add(1)
			_ = oldest.conn.Close() // its user sees the error and stops
		}
	}
}

// reply is an answer of more than freeBytes while it is sent.
type reply struct {
	bytes.Reader
	transfer
	body   []byte
	budget *budget
}

// send wraps body in a reply to be sent over conn, and returns a buffer to use in its place. body is charged with size
// bytes.
func (b *budget) send(body []byte, size int64, conn net.Conn) (r *reply, spare []byte) {
	r, ok := b.replies.Get().(*reply)
	if !ok {
		r = &reply{budget: b}
	}
	spare, r.body = r.body[:0], body
	r.Reset(body)
	b.begin(&r.transfer, size, conn)
	return r, spare
}

// Close releases the reply, whether it was sent or not.
func (r *reply) Close() error {
	b, size := r.budget, r.size
	b.finish(&r.transfer)
	r.Reset(nil)
	r.body, r.conn = kept(r.body), nil
	b.replies.Put(r)
	b.give(size)
	return nil
}
