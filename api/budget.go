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
	dataBudget = 24 << 20
	// freeBytes of a request and its answer are not charged: what nearly all need. The bound on connections bounds them.
	freeBytes = 16 << 10
	// sendTime is how long an answer has to be taken before it may be given up for others.
	sendTime = time.Second
	// roomTime is how long a batch waits for room, roomInterval how often it looks whether answers can be given up.
	roomTime     = 2 * time.Second
	roomInterval = sendTime / 4
)

// budget bounds the memory that callers can take by what they send, and by answers that they don't read. Where it is
// used up, answers that have been on their way for longer than sendTime are given up, the oldest first; so callers that
// don't read hold up no one else.
type budget struct {
	most    int64 // 0: dataBudget
	used    atomic.Int64
	dropped atomic.Int64 // answers that were given up

	waits atomic.Int64 // callers of wait

	replies sync.Pool // of *reply, with buffers of at most keptBuffer

	mu      sync.Mutex // guards what follows, and reply.size of those in sending
	sending map[*reply]struct{}
	freed   chan struct{} // closed when something is given back; nil: nobody waits
}

// take takes n bytes. It reports false where that is more than there is.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) <= cmp.Or(b.most, dataBudget) {
		return true
	}
	b.used.Add(-n)
	return b.giveUp(n)
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

// giveUp ends connections whose answers nobody reads until n bytes can be taken.
func (b *budget) giveUp(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if b.used.Add(n) <= cmp.Or(b.most, dataBudget) {
			return true
		}
		b.used.Add(-n)
		var oldest *reply
		for r := range b.sending {
			if oldest == nil || r.since.Before(oldest.since) {
				oldest = r
			}
		}
		if oldest == nil || time.Since(oldest.since) < sendTime {
			return false
		}
		b.forget(oldest)
		b.dropped.Add(1)
		if oldest.conn != nil {
			_ = oldest.conn.Close() // its writer sees the error and ends
		}
	}
}

// forget gives back what r has. The caller holds b.mu.
func (b *budget) forget(r *reply) {
	delete(b.sending, r)
	b.used.Add(-r.size)
	r.size = 0
	b.wake()
}

// reply is an answer of more than freeBytes while it is sent.
type reply struct {
	bytes.Reader
	body   []byte
	budget *budget
	conn   net.Conn // the one below all others; nil: not known
	size   int64    // bytes of the budget
	since  time.Time
}

// send has body sent over conn as a reply, and returns a buffer in its place. Of the budget body has taken size bytes.
func (b *budget) send(body []byte, size int64, conn net.Conn) (r *reply, spare []byte) {
	r, ok := b.replies.Get().(*reply)
	if !ok {
		r = &reply{budget: b}
	}
	spare, r.body = r.body[:0], body
	r.size, r.since, r.conn = size, time.Now(), nil
	r.Reset(body)
	if c := tracked(conn); c != nil {
		r.conn = c.Conn
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sending == nil {
		b.sending = make(map[*reply]struct{})
	}
	b.sending[r] = struct{}{}
	return r, spare
}

// Close ends it, sent or not.
func (r *reply) Close() error {
	b := r.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, here := b.sending[r]; here {
		b.forget(r)
	}
	r.Reset(nil)
	r.body, r.conn = kept(r.body), nil
	b.replies.Put(r)
	return nil
}
