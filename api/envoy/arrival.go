package envoy

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/rls"
)

// grpc-go buffers a message until it is complete, and does not reveal how much
// it holds. So this file approaches it from both sides: an inbound counts the
// bytes that arrive on a connection, and an arrival bounds the time and the
// memory that an incomplete message may take.

// maxHeld is an upper bound on what grpc-go holds of an incomplete message, in bytes.
const maxHeld = rls.MaxMessage + streamWindow

// arrival is the wait of a handler for a message. It is reused.
type arrival struct {
	server *Server
	timer  *time.Timer // calls check

	mu           sync.Mutex // guards the rest
	conn         *inbound   // nil: no handler waits
	abort        func()     // aborts the wait; nil: close the connection
	began        time.Time  // of the wait
	checks       int        // how many times check was called during it
	bytesAtStart int64      // bytes that had arrived on the connection before the wait
	charged      int64      // bytes charged to the budget
	transfer     api.Transfer
}

func (s *Server) newArrival() *arrival {
	a := &arrival{server: s}
	a.timer = time.AfterFunc(time.Hour, a.check)
	a.timer.Stop()
	return a
}

// await calls read to receive a message into m. If the message takes too long,
// or the budget has no room for its bytes that have arrived, await aborts the
// wait by calling abort, or by closing the connection if abort is nil.
func (a *arrival) await(ctx context.Context, abort func(), read func(any) error, m any) error {
	s := a.server
	defer s.incomplete.Add(-1)

	if s.incomplete.Add(1) > maxIncomplete && !s.stalled.abortOne() {
		s.overloads.Add(1)
		return statusOf(api.Errorf(api.Overloaded, "more than %d requests are incomplete", maxIncomplete))
	}

	conn := connectionOf(ctx)
	if conn == nil {
		return read(m)
	}

	a.mu.Lock()
	a.conn = conn
	a.abort = abort
	a.bytesAtStart = conn.data.Load()
	a.began = time.Now()
	a.checks = 0
	a.mu.Unlock()
	a.timer.Reset(checkInterval)
	defer a.end()

	return read(m)
}

// end finishes the wait and gives its charge back.
func (a *arrival) end() {
	a.timer.Stop() // check may be running
	a.mu.Lock()

	if a.checks > 0 {
		a.server.stalled.remove(a)
	}

	charged := a.charged
	a.conn = nil
	a.abort = nil
	a.charged = 0
	a.mu.Unlock()

	if charged > 0 {
		a.server.Budget.Finish(&a.transfer)
		a.server.Budget.Give(charged)
	}
}

// callMemory is roughly what an incomplete call takes without its message: a
// stream, a goroutine and its stack.
const callMemory = 8 << 10

// check charges the memory of the call, and the bytes that have arrived on the
// connection since the wait began, even if some belong to other messages. Bytes
// that arrived earlier, at most streamWindow for each message, are not charged;
// maxIncomplete bounds them. check aborts the wait if it takes too long, or if
// the budget has no room. It waits for room unless the caller is a stranger:
// strangers' connections are closed to make room.
func (a *arrival) check() {
	s := a.server
	a.mu.Lock()

	// The timer may have fired just before the wait ended.
	if a.conn == nil {
		a.mu.Unlock()
		return
	}

	a.checks++
	if a.checks == 1 {
		s.stalled.add(a)
	}

	began := a.began
	waitsForRoom := !a.conn.tracked.IsStranger()
	a.mu.Unlock()

	inTime := time.Since(began) < cmp.Or(s.Timeout, readTimeout)
	hasRoom := true
	if inTime {
		charge := func() bool { return a.charge(began) }
		hasRoom = charge() || waitsForRoom && s.Budget.Wait(charge)
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	if !a.isWaitLocked(began) {
		return
	}

	switch {
	case !hasRoom:
		s.overloads.Add(1)
		a.abortWaitLocked()
	case !inTime:
		a.abortWaitLocked()
	default:
		a.timer.Reset(min(checkInterval<<min(a.checks, 16), maxCheckInterval)) // thousands may wait
	}
}

// isWaitLocked reports whether the wait that started at began goes on. The
// caller must hold a.mu.
func (a *arrival) isWaitLocked(began time.Time) bool { return a.conn != nil && a.began.Equal(began) }

// abortWaitLocked ends the wait with an error. The caller must hold a.mu.
func (a *arrival) abortWaitLocked() {
	if a.abort != nil {
		a.abort()
		return
	}
	_ = a.conn.tracked.Conn.Close() // grpc-go gets an error and stops
}

// stalledArrivals are the waits that have lasted for at least checkInterval. A
// healthy caller's messages hardly ever take that long. So when too many
// messages are incomplete, a new one takes the place of one of these: half-sent
// messages keep nobody from asking.
type stalledArrivals struct {
	mu  sync.Mutex // guards set; locked after arrival.mu
	set map[*arrival]struct{}
}

func (sa *stalledArrivals) add(a *arrival) {
	sa.mu.Lock()
	defer sa.mu.Unlock()
	if sa.set == nil {
		sa.set = make(map[*arrival]struct{})
	}
	sa.set[a] = struct{}{}
}

func (sa *stalledArrivals) remove(a *arrival) {
	sa.mu.Lock()
	defer sa.mu.Unlock()
	delete(sa.set, a)
}

// abortOne aborts any one of the stalled waits. It reports false if there is none.
func (sa *stalledArrivals) abortOne() bool {
	// The two locks are not held at once, because elsewhere the arrival's lock is
	// taken first.
	sa.mu.Lock()
	var victim *arrival
	for victim = range sa.set {
		// No other newcomer may choose the same victim.
		delete(sa.set, victim)
		break
	}
	sa.mu.Unlock()

	if victim == nil {
		return false
	}

	victim.mu.Lock()
	defer victim.mu.Unlock()

	if victim.conn != nil && victim.checks > 0 { // unless its wait has just ended
		victim.server.overloads.Add(1)
		victim.abortWaitLocked()
	}

	return true
}

// charge raises the charge to what the call and its message take by now. It
// reports false if the budget has no room. If the wait that started at began is
// over, there is nothing to charge.
func (a *arrival) charge(began time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	if !a.isWaitLocked(began) {
		return true
	}

	n := callMemory + min(a.conn.data.Load()-a.bytesAtStart, maxHeld)
	if n <= a.charged {
		return true
	}

	s := a.server
	if !s.Budget.Take(n - a.charged) {
		return false
	}

	if a.charged == 0 {
		s.Budget.Begin(&a.transfer, n, a.conn.tracked)
	}

	a.charged = n
	return true
}

// boundMessages returns desc with handlers that wait for their messages through an arrival.
func (s *Server) boundMessages(desc grpc.ServiceDesc) *grpc.ServiceDesc {
	methods := make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		methods[i] = grpc.MethodDesc{MethodName: m.MethodName,
			Handler: func(srv any, ctx context.Context, read func(any) error,
				chain grpc.UnaryServerInterceptor) (any, error) {
				receive := func(in any) error {
					if conn := connectionOf(ctx); conn != nil {
						defer conn.endReceive()
					}
					return s.newArrival().await(ctx, nil, read, in)
				}
				return m.Handler(srv, ctx, receive, chain)
			}}
	}

	desc.Methods = methods
	return &desc
}

// Sizes in HTTP/2.
const (
	prefaceBytes   = 24
	frameHeadBytes = 9
	dataFrame      = 0
	headersFrame   = 1
)

// A connection may send maxSmallFrames small data frames. Each request allows
// framesPerRequest more, and every bytesPerFrame of data one more.
const (
	maxSmallFrames   = 512
	framesPerRequest = 4
	bytesPerFrame    = 64
)

var errSmallFrames = errors.New("the connection sends its requests in very small frames")

// inbound is a connection that counts the HTTP/2 frames as they arrive, before
// grpc-go reads them. Only one goroutine may read from it at a time.
//
// To grpc-go, a frame of one byte costs as much as one of 64 bytes. A
// connection that sends mostly tiny frames is closed.
type inbound struct {
	net.Conn
	tracked *api.Connection

	mu      sync.Mutex // guards answers
	answers int        // calls that are being answered

	begun atomic.Int32 // calls of a stranger that tap let pass, and that have not been received

	data atomic.Int64 // bytes in data frames, counted when a frame begins

	skipBytes   int // bytes until the next frame
	head        [frameHeadBytes]byte
	headBytes   int // bytes of head that have arrived
	smallFrames int // how many more small frames are allowed
}

// beginAnswer records that a call is being answered, so that the connection is
// not displaced. It reports false if the connection has been displaced.
func (i *inbound) beginAnswer() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.answers == 0 && !i.tracked.BeginAnswer() {
		return false
	}
	i.answers++
	return true
}

// endReceive records that a call has been received, or is no longer awaited.
func (i *inbound) endReceive() {
	// The number must not fall below 0: tap counts only strangers' calls, but
	// endReceive sees all calls.
	for n := i.begun.Load(); n > 0; n = i.begun.Load() {
		if i.begun.CompareAndSwap(n, n-1) {
			return
		}
	}
}

// endAnswer records that a call has been answered.
func (i *inbound) endAnswer() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answers--
	if i.answers == 0 {
		i.tracked.BeginWait(time.Now())
	}
}

// Read implements net.Conn.
func (i *inbound) Read(b []byte) (int, error) {
	n, err := i.Conn.Read(b)
	for rest := b[:n]; len(rest) > 0; {
		if i.skipBytes > 0 {
			k := min(i.skipBytes, len(rest))
			rest, i.skipBytes = rest[k:], i.skipBytes-k
			continue
		}

		k := copy(i.head[i.headBytes:], rest)
		rest, i.headBytes = rest[k:], i.headBytes+k
		if i.headBytes == frameHeadBytes && !i.beginFrame() {
			return 0, errSmallFrames
		}
	}

	return n, err
}

// beginFrame counts the frame whose head has arrived. It reports false if there
// were too many small ones.
func (i *inbound) beginFrame() bool {
	i.headBytes = 0
	i.skipBytes = int(i.head[0])<<16 | int(i.head[1])<<8 | int(i.head[2])
	switch i.head[3] {
	case dataFrame:
		i.data.Add(int64(i.skipBytes))
		i.smallFrames += i.skipBytes/bytesPerFrame - 1
	case headersFrame:
		i.smallFrames += framesPerRequest
	}
	i.smallFrames = min(i.smallFrames, maxSmallFrames)
	return i.smallFrames >= 0
}
