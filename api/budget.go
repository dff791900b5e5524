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
	// freeBytes of a request and its answer are not charged: what nearly all need. The bound on connections bounds them.
	freeBytes = 16 << 10
	// slowTime is how long a large answer, or a piece of a large body, may be on its way before its connection may be ended for others.
	slowTime = time.Second
	// roomTime is how long a large one waits for room, roomInterval how often it looks for connections to end.
	roomTime     = 2 * time.Second
	roomInterval = slowTime / 4
)

// budget bounds the memory that callers can take by what they send, and by answers that they don't read. Where it is
// used up, connections whose body or answer has been on its way for longer than slowTime are ended, the oldest first; so
// callers that neither send on nor read hold up no one else.
type budget struct {
	most  int64 // 0: dataBudget
	used  atomic.Int64
	ended atomic.Int64 // connections that were ended

	waits atomic.Int64 // callers of wait

	replies sync.Pool // of *reply, with buffers of at most keptBuffer

	mu     sync.Mutex // guards what follows, and the transfers in it
	moving map[*transfer]struct{}
	freed  chan struct{} // closed when something is given back; nil: nobody waits
}

// take takes n bytes. It reports false where that is more than there is.
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

// wake has all who wait look again. The caller holds b.mu.
func (b *budget) wake() {
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// wait tries take, which takes from the budget, until it succeeds, for roomTime at most.
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

// full is the error for what finds no room.
func (b *budget) full() *Error {
	return errorf(Overloaded, "requests and answers of more than %d bytes are under way", cmp.Or(b.most, dataBudget))
}

// transfer is a large body or answer on its way.
type transfer struct {
	conn  net.Conn // the one below all others; nil: it is not known
	size  int64
	since time.Time
}

// begin notes that t, of size bytes, goes over conn.
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

// finish notes that t is over.
func (b *budget) finish(t *transfer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.moving, t)
}

// endSlow ends slow connections that have n bytes, the oldest first. Who serves them gives the bytes back.
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
			_ = oldest.conn.Close() // who uses it sees the error and ends
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

// send has body sent over conn as a reply, and returns a buffer in its place. Of the budget body has taken size bytes.
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

// Close ends it, sent or not.
func (r *reply) Close() error {
	b, size := r.budget, r.size
	b.finish(&r.transfer)
	r.Reset(nil)
	r.body, r.conn = kept(r.body), nil
	b.replies.Put(r)
	b.give(size)
	return nil
}
