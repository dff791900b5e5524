package api

import (
	"cmp"
	"container/list"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultBudget bounds the bytes of requests and answers that all doors hold at
	// once, unless Budget.Capacity says otherwise.
	defaultBudget = 20 << 20
	// UnchargedBytes is the size up to which a request and its answer are not
	// charged to the budget. Nearly all of them fit, and the bound on connections
	// limits their total.
	UnchargedBytes = 16 << 10
	// slowAfter is how long a large answer, or a piece of a large body, may take
	// before its connection may be closed to make room.
	slowAfter = time.Second
	// maxRoomWait bounds how long a large request or answer waits for room.
	// roomRetryInterval is how often it retries meanwhile; each failed attempt
	// closes slow connections.
	maxRoomWait       = 2 * time.Second
	roomRetryInterval = slowAfter / 4
	// maxRoomWaiters bounds how many wait at once, because the bytes that they
	// hold already are not charged.
	maxRoomWaiters = 256
)

// maxReusedBuffer is the capacity in bytes beyond which a buffer is dropped instead of reused.
const maxReusedBuffer = 64 << 10

// Reuse returns b with length 0, or nil if b is too large to keep.
func Reuse(b []byte) []byte {
	if cap(b) > maxReusedBuffer {
		return nil
	}
	return b[:0]
}

// ReuseUncharged returns b with length 0, or nil if it is so large that even a
// small message in it would be charged.
func ReuseUncharged(b []byte) []byte {
	if cap(b) > UnchargedBytes {
		return nil
	}
	return b[:0]
}

// Budget bounds the memory that callers can tie up with large or unfinished
// requests and with answers that they don't read. When the budget is used up,
// it closes connections, so that stalled callers don't block others: first
// those of strangers, the longest wait first; then those whose body or answer
// has taken longer than slowAfter, oldest first.
type Budget struct {
	Capacity      int64 // bytes; 0: 20 MiB
	used          atomic.Int64
	closedForRoom atomic.Int64

	waiters atomic.Int64 // callers of Wait

	mu        sync.Mutex    // guards the rest, and the transfers in it
	strangers list.List     // of *Transfer, oldest first: those on connections of strangers
	others    list.List     // of *Transfer, oldest first: all others
	freed     chan struct{} // closed when bytes are given back; nil: no one waits
}

// Take takes n bytes. If fewer are left, it takes nothing and reports false.
func (b *Budget) Take(n int64) bool {
	// Adding before the look keeps the bound without a lock. Two callers at the
	// edge may refuse each other; that errs on the safe side.
	if b.used.Add(n) <= cmp.Or(b.Capacity, defaultBudget) {
		return true
	}
	b.used.Add(-n)
	b.makeRoom(n)
	return false
}

// Give gives n bytes back.
func (b *Budget) Give(n int64) {
	b.used.Add(-n)
	// A waiter is counted before its next attempt. If it is not counted yet, that
	// attempt finds the bytes that have just come back.
	if b.waiters.Load() > 0 {
		b.mu.Lock()
		b.wakeLocked()
		b.mu.Unlock()
	}
}

// wakeLocked makes all waiters retry. The caller must hold b.mu.
func (b *Budget) wakeLocked() {
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// Wait calls take, which takes from the budget, until it succeeds or maxRoomWait
// has passed. If maxRoomWaiters wait already, it tries only once.
func (b *Budget) Wait(take func() bool) bool {
	if take() {
		return true
	}

	defer b.waiters.Add(-1)

	if b.waiters.Add(1) > maxRoomWaiters {
		return false
	}

	timeout, retry := time.NewTimer(maxRoomWait), time.NewTicker(roomRetryInterval)
	defer timeout.Stop()
	defer retry.Stop()

	for {
		// The channel is fetched before the attempt. Bytes that come back during the
		// attempt close it, so no wake-up is lost.
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
		case <-retry.C:
		case <-timeout.C:
			return false
		}
	}
}

// FullError returns the error for a request that does not fit into the budget.
func (b *Budget) FullError() *Error {
	return Errorf(Overloaded, "the memory for large or slow requests and answers, %d bytes, is used up",
		cmp.Or(b.Capacity, defaultBudget))
}

// Transfer is something that takes time and memory, such as a large body or answer in transit.
type Transfer struct {
	conn    *Connection // nil: unknown
	size    int64
	since   time.Time
	among   *list.List    // the list that has it; nil: none
	element *list.Element // its place there
}

// Begin records that t, a transfer of size bytes over conn, starts now.
func (b *Budget) Begin(t *Transfer, size int64, conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removeLocked(t)
	*t = Transfer{size: size, since: time.Now(), among: &b.others}
	t.conn = Unwrap[*Connection](conn)
	if t.conn != nil && t.conn.IsStranger() {
		t.among = &b.strangers
	}
	t.element = t.among.PushBack(t)
}

// Finish records that t is over.
func (b *Budget) Finish(t *Transfer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removeLocked(t)
	t.conn = nil
}

// removeLocked takes t from the list that has it. The caller must hold b.mu.
func (b *Budget) removeLocked(t *Transfer) {
	if t.among != nil {
		t.among.Remove(t.element)
		t.among, t.element = nil, nil
	}
}

// Hold charges size bytes for what conn holds while its caller keeps the node
// waiting, and begins t. It waits for room, and reports false if there is none.
func (b *Budget) Hold(t *Transfer, size int64, conn net.Conn) bool {
	if !b.Wait(func() bool { return b.Take(size) }) {
		return false
	}
	// The clock starts only when there is room: the wait for it must not count
	// as slowness of the caller.
	b.Begin(t, size, conn)
	return true
}

// Release ends t, which Hold has begun, and gives its bytes back.
func (b *Budget) Release(t *Transfer) {
	// The transfer is unlisted before its bytes come back: as long as it is
	// listed, another caller may close its connection to make room.
	b.Finish(t)
	b.Give(t.size)
}

// Used returns how many bytes are taken.
func (b *Budget) Used() int64 { return b.used.Load() }

// ClosedForRoom returns how many connections were closed for room.
func (b *Budget) ClosedForRoom() int64 { return b.closedForRoom.Load() }

// makeRoom closes connections until they hold n bytes in all: strangers, then
// slow ones, the oldest of each first. The goroutines that serve them give the
// bytes back.
func (b *Budget) makeRoom(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for n > 0 {
		oldest := b.strangers.Front()
		if oldest == nil {
			oldest = b.others.Front()
			if oldest == nil || time.Since(oldest.Value.(*Transfer).since) < slowAfter {
				return
			}
		}

		// The transfer leaves the list at once, although its bytes come back later.
		// The next caller in need must choose another one.
		t := oldest.Value.(*Transfer)
		b.removeLocked(t)
		n -= t.size

		// A connection may have more than one transfer, but counts once.
		if t.conn != nil && t.conn.closedForRoom.CompareAndSwap(false, true) {
			b.closedForRoom.Add(1)
			_ = t.conn.Conn.Close() // the goroutine that serves it gets an error and stops
		}
	}
}
