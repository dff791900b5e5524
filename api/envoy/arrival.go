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

// grpc-go holds what has arrived of a message until the message is whole, and tells nobody. So this file looks at it from both
// sides: an inbound counts what arrives on a connection, and an arrival bounds what the message that a handler waits for may
// tie up meanwhile.

// arrival is a message that a handler waits for. It is reused.
type arrival struct {
	server *Server
	timer  *time.Timer // calls look

	mu       sync.Mutex // guards the rest
	conn     *inbound   // nil: nothing is waited for
	cut      func()     // ends the wait
	looks    int        // how often look has looked
	from     int64      // what had arrived on the connection before
	charged  int64      // bytes charged to the budget
	transfer api.Transfer
}

func (s *Server) newArrival() *arrival {
	a := &arrival{server: s}
	a.timer = time.AfterFunc(time.Hour, a.look)
	a.timer.Stop()
	return a
}

// await has read receive a message into m. cut ends that; nil: by closing the connection. It is called if the message takes
// too long, or there is no room for what has arrived of it.
func (a *arrival) await(ctx context.Context, cut func(), read func(any) error, m any) error {
	s := a.server
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > maxWaiting {
		s.overloads.Add(1)
		return statusOf(api.Errorf(api.Overloaded, "more than %d requests have not arrived whole", maxWaiting))
	}
	conn := callerOf(ctx)
	if conn == nil {
		return read(m)
	}
	a.mu.Lock()
	a.conn, a.cut, a.looks, a.from = conn, cut, 0, conn.data.Load()
	a.mu.Unlock()
	a.timer.Reset(lookInterval)
	defer a.end()
	return read(m)
}

// end ends the wait.
func (a *arrival) end() {
	a.timer.Stop() // look may be running
	a.mu.Lock()
	charged := a.charged
	a.conn, a.cut, a.charged = nil, nil, 0
	a.mu.Unlock()
	if charged > 0 {
		a.server.Budget.Finish(&a.transfer)
		a.server.Budget.Give(charged)
	}
}

// look charges what has arrived on the connection since the wait began, though some of it may be of other messages. What had arrived
// before, at most streamWindow, is not charged; maxWaiting bounds it.
func (a *arrival) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil {
		return
	}
	s := a.server
	a.looks++
	if time.Duration(a.looks)*lookInterval < cmp.Or(s.Bound, readTimeout) && a.charge(min(a.conn.data.Load()-a.from, mostHeld)) {
		a.timer.Reset(lookInterval)
		return
	}
	if a.cut != nil {
		a.cut()
		return
	}
	_ = a.conn.place.Conn.Close() // its user sees the error and stops
}

// charge charges the budget for n bytes in all. It reports false if there is no room. The caller holds a.mu.
func (a *arrival) charge(n int64) bool {
	if n <= max(a.charged, api.FreeBytes) {
		return true
	}
	s := a.server
	if !s.Budget.Take(n - a.charged) {
		s.overloads.Add(1)
		return false
	}
	if a.charged == 0 {
		s.Budget.Begin(&a.transfer, n, a.conn.place)
	}
	a.charged = n
	return true
}

// bound bounds the messages of a service.
func (s *Server) bound(desc grpc.ServiceDesc) *grpc.ServiceDesc {
	methods := make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: func(srv any, ctx context.Context, read func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
			return m.Handler(srv, ctx, func(in any) error { return s.newArrival().await(ctx, nil, read, in) }, chain)
		}}
	}
	desc.Methods = methods
	return &desc
}

// Sizes in HTTP/2.
const (
	prefaceBytes   = 24
	frameHead      = 9
	frameOfData    = 0
	frameOfHeaders = 1
)

// A connection may have spareFrames frames of data that are small. Each request, and each frameBytes, allows further ones.
const (
	spareFrames   = 512
	requestFrames = 4
	frameBytes    = 64
)

var errSmallFrames = errors.New("the connection sends its requests in very small frames")

// inbound is a connection whose frames are counted as they arrive, before grpc-go reads them. One reads from it at a time.
//
// For grpc-go a frame of one byte weighs as much as one of sixty-four. A connection that sends mostly those is closed.
type inbound struct {
	net.Conn
	place *api.Connection
	data  atomic.Int64 // bytes of data that have arrived

	skip  int // bytes until the next frame
	head  [frameHead]byte
	have  int // bytes of head that have arrived
	spare int // small frames that may come
}

// Read implements net.Conn.
func (c *inbound) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for rest := b[:n]; len(rest) > 0; {
		if c.skip > 0 {
			k := min(c.skip, len(rest))
			rest, c.skip = rest[k:], c.skip-k
			continue
		}
		k := copy(c.head[c.have:], rest)
		rest, c.have = rest[k:], c.have+k
		if c.have == frameHead && !c.begin() {
			return 0, errSmallFrames
		}
	}
	return n, err
}

// begin begins with the frame whose head has arrived. It reports false if there were too many small ones.
func (c *inbound) begin() bool {
	c.have, c.skip = 0, int(c.head[0])<<16|int(c.head[1])<<8|int(c.head[2])
	switch c.head[3] {
	case frameOfData:
		c.data.Add(int64(c.skip))
		c.spare += c.skip/frameBytes - 1
	case frameOfHeaders:
		c.spare += requestFrames
	}
	c.spare = min(c.spare, spareFrames)
	return c.spare >= 0
}

// mostHeld is more than grpc-go holds of a message that is not whole.
const mostHeld = rls.MaxMessage + streamWindow
