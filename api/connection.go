package api

import (
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/rawconn"
)

const (
	// lingerTime and lingerBytes bound how long a connection lingers before it is
	// closed, and how many bytes of further input it discards meanwhile. Closing it
	// while the caller still sends would reset it, and the caller would lose the
	// answer.
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
	// strangerLinger bounds how long a stranger's connection lingers. It is short,
	// because the stranger holds a seat meanwhile.
	strangerLinger = 500 * time.Millisecond
	// stallTime is how long a caller may read nothing of an answer.
	stallTime = 5 * time.Second
	// socketBuffers is roughly what the system holds for a connection whose caller does not read;
	// see boundSocket.
	socketBuffers = sendBuffer + receiveBuffer
	// acceptWait is the first pause before accepting again after the process ran
	// out of file descriptors.
	acceptWait = 5 * time.Millisecond
)

// errNoRoom means that the budget has no room for an answer that its caller does not read.
var errNoRoom = errors.New("the memory for answers that callers don't read is used up")

// strangerIdle is how long a connection may wait for a request if the node requires a token and the
// connection has not shown a valid one.
const strangerIdle = 10 * time.Second

// strangerRequests is how many requests such a connection may make. It gets no
// other answer than that of a probe, or why it is refused, however many it
// sends ahead.
const strangerRequests = 16

// ConnectionsConfig configures the connections of a door.
type ConnectionsConfig struct {
	Most       int         // how many are served at once; 0: no bound
	NeedTokens func() bool // whether callers must send a token; nil: they need not
	Budget     *Budget     // charged for what a connection holds whose caller does not read; nil: nothing is
}

// Connections tracks the open connections of a listener, so that all can be closed and waited for,
// and bounds them; see seats.
type Connections struct {
	config ConnectionsConfig
	*seatPool
	// Guarded by seatPool.mu.
	open        map[*Connection]struct{}
	overflowed  int64 // connections that found no seat
	displaced   int64 // strangers closed to make room for others
	interrupted bool  // Stop was called
	closed      bool

	turnsTaken atomic.Int64 // see TakeTurn

	closing   chan struct{}  // closed when closed becomes true
	stillOpen sync.WaitGroup // counts open

	// Serve sets these two.
	ln       net.Listener
	accepted chan error // accept's result
}

// seatPool is the seats of one listener, or of several that share them.
type seatPool struct {
	began time.Time
	mu    sync.Mutex // guards seats, and parts of the connections that have them
	seats seats
	turns turns
}

// NewConnections returns an empty set of connections.
func NewConnections(config ConnectionsConfig) *Connections {
	return newConnections(config, newSeatPool(config.Most))
}

func newSeatPool(most int) *seatPool {
	return &seatPool{began: time.Now(), seats: newSeats(most), turns: newTurns()}
}

func newConnections(config ConnectionsConfig, at *seatPool) *Connections {
	return &Connections{config: config, seatPool: at, open: make(map[*Connection]struct{}),
		closing: make(chan struct{})}
}

// tlsMemory is what TLS takes of a connection that waits, in bytes.
const tlsMemory = 12 << 10

// fewestSeats is how many connections a door serves at least, however little memory there is.
const fewestSeats = 64

// Seats returns how many connections a door serves at once: most, or fewer if
// they would take more than 1/parts of the node's memory. A connection takes
// seatBytes while it waits for a request.
func (d *Doors) Seats(most int, parts, seatBytes int64) int {
	if d.TLS != nil {
		seatBytes += tlsMemory
	}
	switch {
	case d.MaxConnections > 0:
		return d.MaxConnections
	case d.Memory > 0:
		return int(min(int64(most), max(fewestSeats, d.Memory/parts/seatBytes)))
	}
	return most
}

// Track returns an empty set of connections for a door that serves at most that many at once.
func (d *Doors) Track(most int) *Connections {
	return NewConnections(ConnectionsConfig{Most: most, NeedTokens: d.RequiresToken, Budget: &d.Budget})
}

// Bounds on the connections that the data plane and the Redis protocol have
// together. One that waits takes seatMemory, and all of them may take one part
// in seatParts of the node's memory.
const (
	MaxDataConnections = 32 << 10
	seatMemory         = 8 << 10
	seatParts          = 8
)

// DataConnections returns an empty set of connections for a door whose callers
// ask for decisions over connections of their own. All such doors share their
// seats.
func (d *Doors) DataConnections() *Connections {
	d.seatsOnce.Do(func() { d.dataSeats = newSeatPool(d.mostDataConnections(MaxFiles())) })
	return newConnections(ConnectionsConfig{NeedTokens: d.RequiresToken, Budget: &d.Budget}, d.dataSeats)
}

// mostDataConnections returns how many connections these doors serve at once in
// a process that may open this many files.
func (d *Doors) mostDataConnections(files int) int {
	// Half of the files stay free: connections whose answers are held back have
	// no seat, but need files, too.
	if d.MaxConnections == 0 && d.Connections > 0 {
		return min(d.Connections, files/2)
	}
	return d.Seats(min(MaxDataConnections, files/2), seatParts, seatMemory)
}

// needTokens reports whether callers must send a token.
func (cs *Connections) needTokens() bool {
	return cs.config.NeedTokens != nil && cs.config.NeedTokens()
}

// Listen wraps ln so that cs tracks its connections.
func (cs *Connections) Listen(ln net.Listener) net.Listener {
	return &trackedListener{Listener: ln, conns: cs}
}

// CloseAll closes every connection, and every later one as it arrives.
func (cs *Connections) CloseAll() {
	cs.mu.Lock()
	if !cs.closed {
		cs.closed = true
		close(cs.closing)
	}
	all := slices.Collect(maps.Keys(cs.open))
	cs.mu.Unlock()

	for _, conn := range all {
		conn.drop()
	}
}

// CloseSilent closes the connections that have never received anything.
func (cs *Connections) CloseSilent() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for conn := range cs.open {
		if conn.input.CompareAndSwap(inputNone, inputLate) {
			conn.drop()
		}
	}
}

// CloseIdle closes the connections of strangers that have waited for too long,
// for a door whose server library has one idle timeout for all.
func (cs *Connections) CloseIdle(now time.Time) {
	if !cs.needTokens() {
		return
	}

	latest := cs.sinceBegan(now.Add(-strangerIdle))
	var idle []*Connection

	cs.mu.Lock()
	for conn := range cs.seats.strangers {
		since := conn.waitingSince.Load()
		if since > 0 && since < latest && !conn.keepsIdle.Load() {
			idle = append(idle, conn)
		}
	}
	cs.mu.Unlock()

	for _, conn := range idle {
		conn.drop()
	}
}

// IdleInterval is how often CloseIdle should be called.
const IdleInterval = strangerIdle / 2

// The states of a connection's input. A connection that is closed because it
// was silent receives nothing any more: what would be decided could not be
// answered.
const (
	inputNone int32 = iota
	inputReceived
	inputLate
)

// Wait returns once the goroutines that serve the connections have closed all of them.
func (cs *Connections) Wait() { cs.stillOpen.Wait() }

func (cs *Connections) add(conn net.Conn) *Connection {
	tracked := &Connection{Conn: rawconn.Wrap(conn), owner: cs, address: addressOf(conn.RemoteAddr())}
	tracked.waitingSince.Store(cs.sinceBegan(time.Now()))

	displaced, ok := cs.admit(tracked)
	if !ok {
		_ = conn.Close()
		// This uses up its Close: it was never added, so it must not be
		// removed.
		tracked.once.Do(func() {})
		return tracked
	}

	if displaced != nil {
		displaced.drop()
	}
	return tracked
}

// admit finds a seat for a new connection. The caller must close the one that it displaces, if any.
// It reports false if no more are served.
func (cs *Connections) admit(tracked *Connection) (displaced *Connection, ok bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()

	if cs.closed {
		return nil, false
	}

	displaced, found := cs.takeSeat(tracked)
	if !found {
		displaced = cs.seats.takeSpare(tracked)
		cs.overflowed++
	}

	// This is done under the lock, together with the look at closed: after
	// CloseAll, the number of connections only falls.
	cs.open[tracked] = struct{}{}
	cs.stillOpen.Add(1)
	return displaced, true
}

// takeSeat gives conn a seat, if need be another one's. The caller holds cs.mu.
func (cs *Connections) takeSeat(conn *Connection) (displaced *Connection, ok bool) {
	if cs.seats.take(conn) {
		return nil, true
	}
	// Without tokens, all are strangers. Then the number of connections that an
	// address has is all that tells a caller that wants them all from others.
	displaced = cs.seats.displace(!cs.needTokens())
	if displaced == nil {
		return nil, false
	}
	// Doors that share their seats displace each other's strangers. It counts
	// at the door that lost one.
	displaced.owner.displaced++
	return displaced, cs.seats.take(conn)
}

// Metrics reports how many connections of a door found no seat, and how many lost theirs.
func (cs *Connections) Metrics(s metrics.Sink, door string) {
	cs.mu.Lock()
	overflowed := cs.overflowed
	displaced := cs.displaced
	most := cs.seats.most
	taken := 0
	for conn := range cs.open {
		if conn.hasSeat {
			taken++
		}
	}
	cs.mu.Unlock()

	s.Count("connections_beyond_total",
		"Connections that found no seat: only probes are answered on them.", overflowed, "door", door)
	s.Count("connections_displaced_total",
		"Connections that never showed a valid token, closed to make room for others.", displaced, "door", door)
	s.Count("connections_turns_total",
		"How often a connection whose caller had sent far ahead waited until others had been served.",
		cs.turnsTaken.Load(), "door", door)
	s.Level("connections", "Connections that have a seat.", taken, "door", door)
	s.Level("connections_max",
		"Bound on the connections that have a seat; data and redis share theirs.", most, "door", door)
}

// Count returns how many connections are open, and how many of those have received anything.
func (cs *Connections) Count() (open, received int) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for conn := range cs.open {
		if conn.input.Load() == inputReceived {
			received++
		}
	}
	return len(cs.open), received
}

// Park frees the seat of a connection while nothing serves it.
func (cs *Connections) Park(conn *Connection) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.seats.release(conn)
}

// Resume gives a parked connection a seat again. It reports false if there is none.
func (cs *Connections) Resume(conn *Connection) bool {
	// From here on the connection waits for its caller again, and may be
	// displaced like any other.
	conn.Await(time.Now())

	cs.mu.Lock()
	if cs.closed {
		cs.mu.Unlock()
		return false
	}
	displaced, ok := cs.takeSeat(conn)
	cs.mu.Unlock()

	if displaced != nil {
		displaced.drop()
	}
	return ok
}

func (cs *Connections) remove(conn *Connection) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.open, conn)
	cs.seats.release(conn)
	cs.stillOpen.Done()
}

type trackedListener struct {
	net.Listener
	conns *Connections
}

// Accept waits for the next connection.
func (l *trackedListener) Accept() (net.Conn, error) {
	for wait := acceptWait; ; wait = min(2*wait, time.Second) {
		conn, err := l.Listener.Accept()
		if err == nil {
			return l.conns.add(conn), nil
		}

		// If they were passed on, these errors would make the server library stop
		// accepting for good.
		if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) && !errors.Is(err, syscall.ECONNABORTED) {
			return nil, err
		}

		select {
		case <-time.After(wait):
		case <-l.conns.closing:
			return nil, net.ErrClosed
		}
	}
}

// Connection is a tracked connection. It can linger when it is closed.
type Connection struct {
	net.Conn
	owner      *Connections
	address    netip.Prefix // see addressOf
	hasSeat    bool         // holds a seat; guarded by the owner's mutex
	served     Served       // guarded by the owner's mutex; nil until its door has begun with it
	ProbesOnly bool         // holds a spare seat, so that only one probe is answered
	trusted    atomic.Bool  // has shown a valid token; changed under the owner's mutex
	input      atomic.Int32 // whether it has received something
	linger     atomic.Bool  // Close lingers
	once       sync.Once    // runs the close

	requests     atomic.Int32 // how many it has made as a stranger
	keepsIdle    atomic.Bool  // CloseIdle leaves it open
	endedForRoom atomic.Bool  // the budget has closed it
	// waitingSince is when the connection began to wait for its caller, in nanoseconds since its
	// owner began; 0: it does not wait, and is not displaced.
	waitingSince atomic.Int64
	// writeDeadline is what SetWriteDeadline was called with, in nanoseconds since
	// its owner began; 0: none.
	writeDeadline atomic.Int64
	ahead         ahead
}

// displacedMark is the waitingSince of a connection that has lost its seat.
const displacedMark = -1

func (cs *Connections) sinceBegan(t time.Time) int64 { return max(1, int64(t.Sub(cs.began))) }

// Await notes that c waits for its caller, since now.
func (c *Connection) Await(now time.Time) {
	// A plain store could undo a displacement that comes in between. Then a
	// request would be decided that can't be answered.
	if since := c.waitingSince.Load(); since != displacedMark {
		c.waitingSince.CompareAndSwap(since, c.owner.sinceBegan(now))
	}
}

// Answer notes that c's caller waits for an answer, so that c must not be displaced. It reports
// false if c has been already: its caller would not get the answer.
func (c *Connection) Answer() bool {
	if !c.trusted.Load() {
		c.requests.Add(1)
	}
	// Nothing but a displacement changes the value in between, so a failed swap
	// is one.
	since := c.waitingSince.Load()
	return since != displacedMark && c.waitingSince.CompareAndSwap(since, 0)
}

// IsWornOut reports whether c must be closed after the next answer: it has
// asked too often without a valid token.
func (c *Connection) IsWornOut() bool { return c.requests.Load() > strangerRequests && c.IsStranger() }

// KeepIdle makes CloseIdle leave c open.
func (c *Connection) KeepIdle() { c.keepsIdle.Store(true) }

// Trust notes that c's caller has shown a valid token.
func (c *Connection) Trust() {
	if c.trusted.Load() {
		return
	}
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	c.owner.seats.trust(c)
}

// IsStranger reports whether c should have shown a valid token, and has not.
func (c *Connection) IsStranger() bool { return !c.trusted.Load() && c.owner.needTokens() }

// IdleTimeout returns how long c may wait for the next request, if that is usual for its door.
func (c *Connection) IdleTimeout(usual time.Duration) time.Duration {
	if c.IsStranger() {
		return min(usual, strangerIdle)
	}
	return usual
}

// Unwrap returns the connection of type T that c is or wraps; nil if there is none.
func Unwrap[T net.Conn](c net.Conn) (zero T) {
	for {
		if conn, ok := c.(T); ok {
			return conn
		}
		wrapper, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return zero
		}
		c = wrapper.NetConn()
	}
}

// Read returns received bytes.
func (c *Connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.NoteInput() {
		return 0, net.ErrClosed
	}
	return n, err
}

// NoteInput notes that something was received; who reads from Conn itself must call it. It reports
// false if the connection was closed because it was silent.
func (c *Connection) NoteInput() bool {
	// Nearly every input is a later one, and a plain load is cheaper than a swap.
	if c.input.Load() == inputReceived || c.input.CompareAndSwap(inputNone, inputReceived) {
		return true
	}
	// Another goroutine noted the first input in between, or closed the connection.
	return c.input.Load() == inputReceived
}

// SetWriteDeadline bounds the next writes.
func (c *Connection) SetWriteDeadline(t time.Time) error {
	c.noteWriteDeadline(t)
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline bounds the next reads and writes.
func (c *Connection) SetDeadline(t time.Time) error {
	c.noteWriteDeadline(t)
	return c.Conn.SetDeadline(t)
}

func (c *Connection) noteWriteDeadline(t time.Time) {
	if t.IsZero() {
		c.writeDeadline.Store(0)
		return
	}
	c.writeDeadline.Store(c.owner.sinceBegan(t))
}

// Write sends b.
func (c *Connection) Write(b []byte) (int, error) {
	quick, ok := c.Conn.(rawconn.TryWriter)
	if !ok {
		return c.Conn.Write(b)
	}

	// What fits into the system's buffer goes out at once. That is nearly every
	// answer, and it costs neither a deadline nor a charge.
	sent := 0
	for sent < len(b) {
		n := quick.TryWrite(b[sent:])
		if n == 0 {
			break
		}
		sent += n
	}

	if sent == len(b) {
		return sent, nil
	}

	n, err := c.writeSlowly(b[sent:])
	return sent + n, err
}

// writeSlowly sends b to a caller that is slow to read. It charges what the system holds for it
// meanwhile, and fails as soon as the caller has read nothing for stallTime.
func (c *Connection) writeSlowly(b []byte) (sent int, err error) {
	if budget := c.owner.config.Budget; budget != nil {
		var stall Transfer
		if !budget.Hold(&stall, socketBuffers, c) {
			return 0, errNoRoom
		}
		defer budget.Release(&stall)
	}

	// A caller that does not read keeps a seat. From here on it may lose it.
	c.Await(time.Now())
	requested := time.Time{}
	deadline := c.writeDeadline.Load()
	if deadline != 0 {
		requested = c.owner.began.Add(time.Duration(deadline))
	}

	for {
		until := time.Now().Add(stallTime)
		if !requested.IsZero() && requested.Before(until) {
			until = requested
		}

		if err := c.Conn.SetWriteDeadline(until); err != nil {
			return sent, err
		}

		n, err := c.Conn.Write(b[sent:])
		sent += n
		// If our own deadline ended the write but something was sent, the
		// caller is only slow, and gets as long again. The deadline that was
		// requested ends it for good.
		progress := n > 0 && !until.Equal(requested) && errors.Is(err, os.ErrDeadlineExceeded)
		if !progress {
			if err == nil {
				// The short deadline of this write must not end a later one.
				err = c.Conn.SetWriteDeadline(requested)
			}
			return sent, err
		}
	}
}

// Descriptor returns c's file descriptor, or -1 if it is unknown. It may be
// polled while c is open. If c is closed in the meantime and the number reused,
// a wrong result must do no harm.
func (c *Connection) Descriptor() int {
	file, ok := c.Conn.(syscall.Conn)
	if !ok {
		return -1
	}

	raw, err := file.SyscallConn()
	if err != nil {
		return -1
	}

	fd := -1
	if err := raw.Control(func(n uintptr) { fd = int(n) }); err != nil {
		return -1
	}

	return fd
}

// Linger makes Close discard further input first, so that the caller can read the last answer.
func (c *Connection) Linger() { c.linger.Store(true) }

// drop closes the connection under the goroutine that serves it, which gets an
// error and calls Close.
func (c *Connection) drop() { _ = c.Conn.Close() }

// Close closes the connection, once.
func (c *Connection) Close() (err error) {
	c.once.Do(func() {
		if c.linger.Load() {
			c.drain()
		}
		err = c.Conn.Close()
		// This comes last: Wait promises that all connections are closed.
		c.owner.remove(c)
	})
	return err
}

// drain half-closes the connection and discards input until the caller closes its side.
func (c *Connection) drain() {
	c.Await(time.Now()) // from now on it may be displaced
	wait := lingerTime
	if c.IsStranger() {
		wait = strangerLinger
	}

	halfCloser, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || halfCloser.CloseWrite() != nil || c.Conn.SetReadDeadline(time.Now().Add(wait)) != nil {
		return
	}
	// An error ends the wait as well as EOF does.
	_, _ = io.CopyN(io.Discard, onlyReader{c.Conn}, lingerBytes)
}

// onlyReader hides the methods of a connection with which io.Copy would use larger buffers.
type onlyReader struct{ io.Reader }
