package peer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/ring"
	"google.golang.org/grpc/mem"
)

const (
	firstPause = 100 * time.Millisecond // and at least half of it
	lastPause  = time.Second
	// lastFarPause is less, since what comes before and after it takes longer.
	lastFarPause = 500 * time.Millisecond
	// settled is how long a connection must have held for the pauses to begin anew.
	settled = time.Second
)

// link keeps a connection to one node at one address.
type link struct {
	peers   *Peers
	node    ring.NodeID
	address string
	kind    kind // kindPeer or kindFar
	cancel  context.CancelFunc
	wake    chan struct{} // capacity 1: dial now

	conn   atomic.Pointer[conn]     // nil: none at present
	remote atomic.Pointer[Identity] // who answered last; nil: nobody has
}

// run dials, and dials again, until ctx ends.
func (l *link) run(ctx context.Context) {
	pause, last := firstPause, lastPause
	if l.kind == kindFar {
		last = lastFarPause
	}
	var said notes
	for ctx.Err() == nil {
		began := time.Now()
		connected, err := l.once(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case connected:
			l.peers.log.Warn("connection to a node lost", "node", l.node, "address", l.address, "error", err)
			clear(said.said)
			l.drain()
		case said.first(causeOf(err)): // once for each reason, not for each try
			l.peers.log.Warn("no connection to a node, trying on", "node", l.node, "address", l.address, "error", err)
		}
		if connected && time.Since(began) > settled {
			pause = firstPause
		}
		timer := time.NewTimer(pause - rand.N(pause/2))
		select {
		case <-timer.C:
			pause = min(2*pause, last)
		case <-l.wake:
			pause = firstPause
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// once makes a connection and returns when it is over, or when there was none.
func (l *link) once(ctx context.Context) (connected bool, err error) {
	l.drain()
	return l.peers.connect(ctx, l.kind, l.address, l.expected, func(c *conn) {
		l.remote.Store(&c.remote)
		l.conn.Store(c)
		l.peers.log.Info("connected to a node", "node", l.node, "name", c.remote.Name, "address", l.address)
	}, func() { l.conn.Store(nil) })
}

// drain forgets that someone wanted a dial.
func (l *link) drain() {
	select {
	case <-l.wake:
	default:
	}
}

func (l *link) expected(remote Identity) error { return expectNode(l.node, remote) }

func expectNode(node ring.NodeID, remote Identity) error {
	if remote.Node != node {
		return fmt.Errorf("%w: node %s is there, not %s", ErrRefused, remote.Node, node)
	}
	return nil
}

// heardOf is told that a process of the node has just connected to us: so it is there.
func (l *link) heardOf(remote Identity) {
	if c := l.conn.Load(); c != nil && !c.reachable() && c.remote.Boot != remote.Boot {
		c.breakOff(errRestarted) // it would stay silent
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// connect dials, opens the stream, calls up when the first frame has come, carries frames until it is over, and calls
// down if it has called up.
func (p *Peers) connect(ctx context.Context, k kind, address string, expected func(Identity) error, up func(*conn), down func()) (bool, error) {
	s, err := p.dial(ctx, address, k, expected)
	if err != nil {
		return false, err
	}
	defer s.Close()
	// A deadline would go to the other side with the stream, and it would end that a moment too early.
	outer := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(outer))
	defer cancel()
	defer context.AfterFunc(outer, cancel)()
	late := time.AfterFunc(handshakeTime, cancel)
	defer late.Stop()
	stream, client, err := openStream(ctx, s)
	if err != nil {
		return false, fmt.Errorf("open stream: %w", err)
	}
	defer func() {
		s.Close() // first: the client's Close waits for what it still has to write
		client.Close()
	}()
	var first mem.BufferSlice
	if err := stream.RecvMsg(&first); err != nil {
		return false, fmt.Errorf("open stream: %w", err)
	}
	first.Free()
	if !late.Stop() {
		return false, context.Cause(ctx)
	}
	c := p.newConn(stream, s, s.remote, true)
	up(c)
	defer down()
	return true, c.run(ctx)
}
