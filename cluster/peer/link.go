package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

const (
	firstPause = 100 * time.Millisecond // jitter takes off up to half of it
	maxPause   = time.Second
	// maxFarPause is shorter than maxPause, because a far dial itself takes longer.
	maxFarPause = 500 * time.Millisecond
	// stableTime is how long a connection must last for the pauses to start over.
	stableTime = time.Second
	// quietAfterClose is how long failed dials are not logged after a node has closed its
	// connection: the node is stopping, and gossip may report that only later.
	quietAfterClose = 2 * time.Second
)

// link keeps a connection to one node at one address.
type link struct {
	peers   *Peers
	node    ring.NodeID
	address string
	kind    connKind        // kindNear or kindFar
	ctx     context.Context // ends when the node is no longer known here
	cancel  context.CancelFunc

	// The direct connection.
	direct          atomic.Pointer[conn] // nil: none now
	dialNow         chan struct{}        // capacity 1: dial now
	dialingSecond   atomic.Bool          // a second connection is being dialled
	lastDialFailure atomic.Int64         // when dialling last failed, by Config.Boottime
	processGone     atomic.Bool          // no process listens at the address, or another node's does
	lastBoot        atomic.Uint64        // of the process last reached directly; 0: none yet

	// The path: the direct connection or a tunnel.
	tunnel              atomic.Pointer[conn] // nil: none
	avoidDirect         atomic.Bool          // don't use the direct connection: it is silent or broken, or was recently
	probation           atomic.Int64         // how long, in ns, the direct connection must work before it is used again
	directSince         atomic.Int64         // when the direct connection was last used again, as Peers.now
	losses              atomic.Int64         // how often the direct connection was abandoned
	tunnelling          atomic.Bool          // provideTunnel is running
	searchNow           chan struct{}        // capacity 1: provideTunnel goes on at once
	needsAllRelays      atomic.Bool          // a tunnel was lost: a search fails only once every possible relay was asked
	unsureBySearchUntil atomic.Int64         // until then a search for a relay makes the path unsure; 0: it has failed
	unsureByDialUntil   atomic.Int64         // until then dialling makes the path unsure; 0: it has failed. Both as Peers.now
	nextRelay           int                  // used by provideTunnel only: the next node to ask for a relay

	// The log.
	name      atomic.Pointer[string]
	warned    atomic.Bool // the log says that there is no connection
	tunnelLog tunnelLog
}

// label returns the node's name for the log; its ID before the first connection.
func (l *link) label() string {
	if name := l.name.Load(); name != nil {
		return *name
	}
	return l.node.String()
}

// tunnelLogPeriod is the time in which at most one tunnel is logged for each
// link: on a busy machine, tunnels may come and go in seconds.
const tunnelLogPeriod = time.Minute

// tunnelLog decides which tunnels of one link are logged.
type tunnelLog struct {
	mu    sync.Mutex // guards the fields below
	last  time.Time  // when a tunnel was last logged
	times int        // how many there were since then
	open  bool       // the beginning of the last one is logged, and its end not yet
}

// begin counts a tunnel. It returns how many there were since the last one that
// was logged, with this one, and whether to log this one.
func (tl *tunnelLog) begin() (times int, due bool) {
	tl.mu.Lock()
	defer tl.mu.Unlock()

	tl.times++
	if time.Since(tl.last) < tunnelLogPeriod {
		return 0, false
	}

	times = tl.times
	tl.last = time.Now()
	tl.times = 0
	tl.open = true
	return times, true
}

// end returns whether to log that a tunnel has ended: only if its beginning was.
func (tl *tunnelLog) end() (due bool) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	due = tl.open
	tl.open = false
	return due
}

// run keeps a connection to the node until ctx ends: when one ends, it redials.
func (l *link) run(ctx context.Context) {
	pause := firstPause
	longest := maxPause
	if l.kind == kindFar {
		longest = maxFarPause
	}

	var logged loggedOnce
	var closedByNodeAt time.Time // when the node last closed its connection
	var lastStall int64          // see mayRedialAtOnce

	for ctx.Err() == nil {
		began := time.Now()

		connected, err := l.connectAndRun(ctx)
		if ctx.Err() != nil {
			return
		}

		l.handleEnd(connected, err)
		switch {
		case connected:
			if errors.Is(err, io.EOF) {
				closedByNodeAt = time.Now()
			}
			l.logLoss(ctx, err)
			logged.forgetAll()
			l.clearWake()
		case time.Since(closedByNodeAt) < quietAfterClose:
		case l.peers.shouldLog(err, l.node, &logged, ""): // not every attempt
			l.warned.Store(true)
			l.peers.log.Warn("no connection to a node, retrying", "name", l.label(), "address", l.address, "error", err)
		}

		if connected && time.Since(began) > stableTime {
			pause = firstPause
		}
		if connected && l.mayRedialAtOnce(began, &lastStall) {
			continue
		}

		select {
		case <-time.After(pause - rand.N(pause/2)):
			pause = min(2*pause, longest)
		case <-l.dialNow:
			pause = firstPause
		case <-ctx.Done():
		}
	}
}

// handleEnd notes that a connection has ended or, if connected is false, that none
// could be made.
func (l *link) handleEnd(connected bool, err error) {
	l.processGone.Store(!connected && provesGone(err))
	if !connected {
		l.lastDialFailure.Store(l.peers.boottime())
		l.unsureByDialUntil.Store(0)
		l.stopUsingDirect(nil)
	}
}

// mayRedialAtOnce reports whether to dial without a pause after the loss of a
// connection that began at the given time. lastStall is this process's last
// stall that explained a loss; mayRedialAtOnce updates it.
func (l *link) mayRedialAtOnce(began time.Time, lastStall *int64) bool {
	if time.Since(began) > l.peers.config.Silence {
		return true // whatever broke the connection, the node may be there
	}

	stall := l.peers.stalls.resumed.Load()
	if stall == *lastStall {
		return false
	}

	*lastStall = stall
	return true // the node closed the connection while this process did not run
}

// logLoss logs that a connection was lost.
func (l *link) logLoss(ctx context.Context, err error) {
	level := slog.LevelWarn
	// If the node has closed the connection itself, it is stopping, or gossip will
	// soon report its failure.
	if errors.Is(err, io.EOF) {
		level = slog.LevelDebug
	}
	l.warned.Store(level == slog.LevelWarn)
	l.peers.log.Log(ctx, level, "connection to a node lost", "name", l.label(), "address",
		l.address, "error", err)
}

// connectAndRun makes a connection. It returns once that connection and all
// that have replaced it have ended, or when none can be made.
func (l *link) connectAndRun(ctx context.Context) (connected bool, err error) {
	// This dial serves every wake-up before it.
	l.clearWake()

	s, err := l.peers.dial(ctx, l.address, l.kind, l.expected)
	if err != nil {
		return false, err
	}

	err = l.runConn(ctx, s, (*conn).retire)

	// Other connections may have replaced the first one while it ran.
	for c := l.direct.Load(); c != nil; c = l.direct.Load() {
		<-c.done
		l.direct.CompareAndSwap(c, nil)
		err = c.endReason()
	}
	return true, err
}

// runConn runs a connection over a dialled socket until it ends. If there is a
// connection already, the new one replaces it, and end ends the old one.
func (l *link) runConn(ctx context.Context, s *socket, end func(old *conn)) error {
	c := l.peers.newConn(s, true)
	c.link = l
	name := c.remote.Name
	l.name.Store(&name)
	l.processGone.Store(false)

	before := l.lastBoot.Swap(c.remote.Boot)

	level := slog.LevelDebug // gossip logs which nodes come and go
	if l.warned.Swap(false) {
		level = slog.LevelInfo
	}

	if before != c.remote.Boot {
		// The node has a new process: no direct connection to it has failed yet.
		l.probation.Store(0)
	}

	old := l.direct.Swap(c)
	if old != nil {
		end(old)
	}

	defer l.direct.CompareAndSwap(c, nil)

	l.peers.log.Log(ctx, level, "connected to a node", "name", c.remote.Name, "address", l.address,
		"protocol", s.version)
	return c.run(ctx)
}

// dialSecond dials a second connection while c is silent, unless one is being
// dialled already. After a cut, TCP retransmits only after a pause that grows
// with the length of the cut. If the new connection is established before c
// recovers, it replaces c.
func (l *link) dialSecond(ctx context.Context, c *conn) {
	if c.endReason() != nil {
		return
	}
	l.replace(ctx, func() bool {
		// c gets another moment. If the remote was only paused, it is about to send
		// over c, and replacing c would lose the messages that it has not read yet.
		sleep(ctx, c.limits.untilUnreachable/5)
		return !c.isReachable()
	}, func(old *conn) { old.closeWithError(errOutlived) })
}

// replace dials a second connection, unless one is being dialled already. If
// stillWanted returns true once the new connection is established, it replaces
// the old one, and end ends the old one.
func (l *link) replace(ctx context.Context, stillWanted func() bool, end func(old *conn)) {
	if l.dialingSecond.Swap(true) {
		return
	}

	started := l.peers.spawn(func() {
		s, err := l.peers.dial(ctx, l.address, l.kind, l.expected)
		if err != nil {
			sleep(ctx, firstPause-rand.N(firstPause/2)) // the next check of silence dials again
		}

		use := err == nil && stillWanted()
		// The flag is cleared before runConn, which returns only when the new
		// connection has ended: the new one may need a replacement, too.
		l.dialingSecond.Store(false)

		switch {
		case use:
			_ = l.runConn(ctx, s, end) // connectAndRun returns the reason why it ended
		case err == nil:
			s.Close()
		}
	})
	if !started {
		l.dialingSecond.Store(false)
	}
}

// renew replaces the connection if it was made with outdated credentials. Calls
// continue in the meantime. If no new connection can be made, the old one
// stays.
func (l *link) renew(ctx context.Context) {
	if c := l.direct.Load(); c != nil && !c.socket.hasCurrentCredentials() {
		l.replace(ctx, func() bool { return true }, (*conn).retire)
	}
}

// clearWake discards a pending wake-up.
func (l *link) clearWake() {
	select {
	case <-l.dialNow:
	default:
	}
}

func (l *link) expected(remote Identity) error { return expectNode(l.node, remote) }

// errOtherNode means that another node is at the address.
var errOtherNode = fmt.Errorf("%w", ErrRefused)

func expectNode(node ring.NodeID, remote Identity) error {
	if remote.Node != node {
		return fmt.Errorf("%w: node %s is at that address, not %s", errOtherNode, remote.Node, node)
	}
	return nil
}

// provesGone reports whether a failed dial shows that the node's process has
// ended: its machine answers that nobody listens at the address, or another
// node answers there. A living process always listens at its address.
func provesGone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errOtherNode)
}

// onIncoming acts on the news that a process of the node has connected to this
// one: the node is up, so the link dials at once.
func (l *link) onIncoming(remote Identity) {
	if c := l.direct.Load(); c != nil && !c.isReachable() {
		switch {
		case c.remote.Boot != remote.Boot:
			c.closeWithError(errRestarted) // the process at its other end is gone
		case l.kind == kindNear:
			l.dialSecond(l.ctx, c) // the network works again
		}
	}
	wake.Signal(l.dialNow)
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
