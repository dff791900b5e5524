package api

import (
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/rawconn"
)

// acceptWait is the first pause before accepting again after the process ran
// out of file descriptors.
const acceptWait = 5 * time.Millisecond

// strangerIdle is how long a connection may wait for a request if the node
// requires a token and the connection has not shown a valid one.
const strangerIdle = 10 * time.Second

// ConnectionsConfig configures the connections of a door.
type ConnectionsConfig struct {
	Max        int         // how many are served at once; 0: no bound
	NeedTokens func() bool // whether callers must send a token; nil: they need not
	Budget     *Budget     // charged for what a connection holds whose caller does not read; nil: nothing is
}

// Connections tracks the open connections of a listener, so that all can be
// closed and waited for, and bounds them; see seats.
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
	return newConnections(config, newSeatPool(config.Max))
}

func newSeatPool(capacity int) *seatPool {
	return &seatPool{began: time.Now(), seats: newSeats(capacity), turns: newTurns()}
}

func newConnections(config ConnectionsConfig, at *seatPool) *Connections {
	return &Connections{config: config, seatPool: at, open: make(map[*Connection]struct{}),
		closing: make(chan struct{})}
}

// distrust makes strangers of all connections, until they show a valid token again.
func (cs *Connections) distrust() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.open {
		cs.seats.distrust(c)
	}
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
		if conn.inputState.CompareAndSwap(inputNone, inputLate) {
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

// Wait returns once the goroutines that serve the connections have closed all of them.
func (cs *Connections) Wait() { cs.stillOpen.Wait() }

func (cs *Connections) add(conn net.Conn) *Connection {
	tracked := &Connection{Conn: rawconn.Wrap(conn), owner: cs, address: addressOf(conn.RemoteAddr())}
	tracked.tryWriter, _ = tracked.Conn.(rawconn.TryWriter)
	tracked.waitCounter, _ = tracked.Conn.(rawconn.WaitCounter)
	tracked.waitingSince.Store(cs.sinceBegan(time.Now()))

	displaced, ok := cs.admit(tracked)
	if !ok {
		_ = conn.Close()
		// This makes a later Close do nothing: the connection was never added, so it
		// must not be removed.
		tracked.once.Do(func() {})
		return tracked
	}

	if displaced != nil {
		displaced.drop()
	}
	return tracked
}

// admit finds a seat, or a spare seat, for a new connection. The caller must
// close the connection that loses its seat to the new one, if any. admit
// reports false after CloseAll.
func (cs *Connections) admit(tracked *Connection) (displaced *Connection, ok bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()

	if cs.closed {
		return nil, false
	}

	displaced, found := cs.takeSeatLocked(tracked)
	if !found {
		displaced = cs.seats.takeSpare(tracked)
		cs.overflowed++
	}

	// This happens under the same lock as the look at closed: after CloseAll, the
	// number of connections only falls.
	cs.open[tracked] = struct{}{}
	cs.stillOpen.Add(1)
	return displaced, true
}

// takeSeatLocked gives conn a seat, if need be that of a stranger. The caller
// must hold cs.mu.
func (cs *Connections) takeSeatLocked(conn *Connection) (displaced *Connection, ok bool) {
	if cs.seats.take(conn) {
		return nil, true
	}
	// Without tokens, all callers are strangers. Only the number of connections
	// per address then shows who takes too many.
	displaced = cs.seats.displace(!cs.needTokens())
	if displaced == nil {
		return nil, false
	}
	// Doors that share their seats displace each other's strangers. The door that
	// lost the connection counts it.
	displaced.owner.displaced++
	return displaced, cs.seats.take(conn)
}

// Metrics reports how many connections of a door found no seat, and how many lost theirs.
func (cs *Connections) Metrics(s metrics.Sink, door string) {
	cs.mu.Lock()
	overflowed := cs.overflowed
	displaced := cs.displaced
	capacity := cs.seats.capacity
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
		"Bound on the connections that have a seat; data and redis share theirs.", capacity, "door", door)
}

// Count returns how many connections are open, and how many of those have received anything.
func (cs *Connections) Count() (open, received int) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for conn := range cs.open {
		if conn.inputState.Load() == inputReceived {
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
	conn.BeginWait(time.Now())

	cs.mu.Lock()
	if cs.closed {
		cs.mu.Unlock()
		return false
	}
	displaced, ok := cs.takeSeatLocked(conn)
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

func (cs *Connections) sinceBegan(t time.Time) int64 { return max(1, int64(t.Sub(cs.began))) }

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

		// These errors are not passed on, because they would make the server library
		// stop accepting for good.
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
