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
	aside  atomic.Bool              // a dial beside a silent connection is under way
	spare  atomic.Pointer[socket]   // what came of it, and takes the connection's place; nil: nothing
	remote atomic.Pointer[Identity] // who answered last; nil: nobody has
}

// run dials, and dials again, until ctx ends.
func (l *link) run(ctx context.Context) {
	defer l.dropSpare()
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
			if l.spare.Load() != nil {
				continue
			}
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
	s := l.spare.Swap(nil)
	if s == nil {
		if s, err = l.peers.dial(ctx, l.address, l.kind, l.expected); err != nil {
			return false, err
		}
	}
	return l.peers.carry(ctx, s, func(c *conn) {
		if l.kind == kindPeer {
			c.beside = func() { l.dialBeside(ctx, c) }
		}
		l.remote.Store(&c.remote)
		l.conn.Store(c)
		l.peers.log.Info("connected to a node", "node", l.node, "name", c.remote.Name, "address", l.address)
	}, func() { l.conn.Store(nil) })
}

// dialBeside dials while c is silent, unless that is under way. After a cut TCP sends again only after a pause that has grown
// with the cut; a new connection, if there is one before c is heard of again, takes its place.
func (l *link) dialBeside(ctx context.Context, c *conn) {
	if c.over() || l.aside.Swap(true) {
		return
	}
	if !l.peers.spawn(func() {
		defer l.aside.Store(false)
		s, err := l.peers.dial(ctx, l.address, l.kind, l.expected)
		if err != nil { // it is tried again
			select {
			case <-time.After(firstPause - rand.N(firstPause/2)):
			case <-ctx.Done():
			}
			return
		}
		// A remote that was paused, and goes on, is about to be heard of; what it has not read yet would be lost.
		select {
		case <-time.After(c.quiet.after / 5):
		case <-ctx.Done():
		}
		if c.reachable() {
			s.Close()
			return
		}
		if old := l.spare.Swap(s); old != nil {
			old.Close()
		}
		if !c.breakOff(errStuck) || ctx.Err() != nil { // nobody looks for it
			l.dropSpare()
		}
	}) {
		l.aside.Store(false)
	}
}

func (l *link) dropSpare() {
	if s := l.spare.Swap(nil); s != nil {
		s.Close()
	}
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
	if c := l.conn.Load(); c != nil && !c.reachable() {
		switch {
		case c.remote.Boot != remote.Boot:
			c.breakOff(errRestarted) // it would stay silent
		case c.beside != nil:
			c.beside() // the way is free
		}
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// carry opens the stream on a socket that was dialled, calls up when the first frame has come, carries frames until it is
// over, and calls down if it has called up.
func (p *Peers) carry(ctx context.Context, s *socket, up func(*conn), down func()) (bool, error) {
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
