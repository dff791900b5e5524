package api

import (
	"cmp"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultBudget bounds the bytes of requests and answers that all doors hold at once, unless Budget.Most says otherwise.
	defaultBudget = 20 << 20
	// FreeBytes is the size up to which a request and its answer are not charged to the budget. Nearly all of them fit, and
	// the bound on connections limits their total.
	FreeBytes = 16 << 10
	// slowTime is how long a large answer, or a piece of a large body, may take before its connection may be closed to make
	// room.
	slowTime = time.Second
	// roomTime bounds how long a large request or answer waits for room. roomInterval is how often it retries meanwhile; each
	// failed attempt closes slow connections.
	roomTime     = 2 * time.Second
	roomInterval = slowTime / 4
)

// keptBuffer is the capacity in bytes beyond which a buffer is dropped instead of reused.
const keptBuffer = 64 << 10

// Reuse returns b with length 0, or nil if b is too large to keep.
func Reuse(b []byte) []byte {
	if cap(b) > keptBuffer {
		return nil
	}
	return b[:0]
}

// Budget bounds the memory that callers can tie up with large requests and with answers that they don't read. When it is
// used up, it closes the connections whose body or answer has taken longer than slowTime, oldest first, so that stalled
// callers don't block others.
type Budget struct {
	Most  int64 // bytes; 0: 20 MiB
	used  atomic.Int64
	ended atomic.Int64

	waits atomic.Int64 // callers of Wait

	mu     sync.Mutex // guards the rest, and the transfers in it
	moving map[*Transfer]struct{}
	freed  chan struct{} // closed when bytes are given back; nil: no one waits
}

// Take takes n bytes. If fewer are left, it takes nothing and reports false.
func (b *Budget) Take(n int64) bool {
	if b.used.Add(n) <= cmp.Or(b.Most, defaultBudget) {
		return true
	}
	b.used.Add(-n)
	b.endSlow(n)
	return false
}

// Give gives n bytes back.
func (b *Budget) Give(n int64) {
	b.used.Add(-n)
	if b.waits.Load() > 0 {
		b.mu.Lock()
		b.wake()
		b.mu.Unlock()
	}
}

// wake makes all waiters retry. The caller holds b.mu.
func (b *Budget) wake() {
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// Wait calls take, which takes from the budget, until it succeeds or roomTime has passed.
func (b *Budget) Wait(take func() bool) bool {
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

// Full returns the error for a request that does not fit into the budget.
func (b *Budget) Full() *Error {
	return Errorf(Overloaded, "requests and answers of more than %d bytes are under way", cmp.Or(b.Most, defaultBudget))
}

// Transfer is a large body or answer in transit.
type Transfer struct {
	conn  net.Conn // the innermost connection; nil: unknown
	size  int64
	since time.Time
}

// Begin records that t, a transfer of size bytes over conn, starts now.
func (b *Budget) Begin(t *Transfer, size int64, conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.conn, t.size, t.since = nil, size, time.Now()
	if c := Unwrap[*Connection](conn); c != nil {
		t.conn = c.Conn
	}
	if b.moving == nil {
		b.moving = make(map[*Transfer]struct{})
	}
	b.moving[t] = struct{}{}
}

// Finish records that t is over.
func (b *Budget) Finish(t *Transfer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.moving, t)
	t.conn = nil
}

// Used returns how many bytes are taken.
func (b *Budget) Used() int64 { return b.used.Load() }

// Ended returns how many connections were closed for room.
func (b *Budget) Ended() int64 { return b.ended.Load() }

// endSlow closes slow connections, the oldest first, until they hold n bytes in all. The goroutines that serve them
// give the bytes back.
func (b *Budget) endSlow(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n > 0 {
		var oldest *Transfer
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
			_ = oldest.conn.Close() // the goroutine that serves it gets an error and stops
		}
	}
}
