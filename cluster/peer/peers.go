package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/ring"
)

const defaultSilence = 250 * time.Millisecond

// Config configures Peers. All functions are called from several goroutines;
// Self, Accept, AcceptFar and Leader only after Start.
type Config struct {
	Self   func() Identity // the cluster may become known later
	Listen func() (net.Listener, error)
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	TLS    Credentials                 // nil: no TLS
	Accept func(remote Identity) error // may refuse a remote; called at both ends. nil: accept all
	// AcceptFar is Accept for connections between nodes of different regions,
	// called after the regions were compared. nil refuses all of them.
	AcceptFar func(remote Identity) error
	// Leader returns the node that is the last choice as a relay, because it has
	// the most work. nil, or a zero ID: no node.
	Leader  func() ring.NodeID
	Logger  *slog.Logger  // nil: slog.Default
	Silence time.Duration // time without a message after which a node is unreachable; at least 10 ms. 0: 250 ms
	// Boottime reads a clock that keeps running while the machine is suspended.
	// nil: the process's monotonic clock.
	Boottime func() time.Duration
	// Wall reads the wall clock, in Unix nanoseconds. nil: the system's.
	Wall func() int64

	versions versions // set by tests; by default this build's versions
}

// validate checks c and fills in defaults.
func (c *Config) validate() error {
	switch {
	case c.Self == nil:
		return errors.New("peer: Self is nil")
	case c.Listen == nil:
		return errors.New("peer: Listen is nil")
	case c.Dial == nil:
		return errors.New("peer: Dial is nil")
	}

	if c.Accept == nil {
		c.Accept = func(Identity) error { return nil }
	}
	if c.Leader == nil {
		c.Leader = func() ring.NodeID { return ring.NodeID{} }
	}

	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.versions = cmp.Or(c.versions, supportedVersions)
	c.Silence = cmp.Or(c.Silence, defaultSilence)
	if c.Boottime == nil {
		began := time.Now()
		c.Boottime = func() time.Duration { return time.Since(began) + 1 } // never 0, which means no reading
	}

	if c.Wall == nil {
		c.Wall = func() int64 { return time.Now().UnixNano() }
	}

	if c.Silence < 10*time.Millisecond {
		return errors.New("peer: Silence must be at least 10 ms")
	}
	return nil
}

// Peers holds the connections to the other nodes.
type Peers struct {
	config         Config
	log            *slog.Logger
	listener       net.Listener
	raft           chan net.Conn       // accepted for Raft
	raftDone       context.Context     // ends when Raft accepts no more
	endRaft        context.CancelFunc  // cancels raftDone
	handlers       [numScopes]handlers // set before Start
	started        time.Time
	loggedOnce     loggedOnce
	halfOpen       chan struct{} // holds one element for each connection in a handshake
	ctx            context.Context
	cancel         context.CancelFunc
	group          sync.WaitGroup
	links          atomic.Pointer[map[ring.NodeID]*link] // immutable
	relayedTunnels atomic.Int64                          // tunnels that this node relays; at most maxRelayed
	relayedBytes   atomic.Int64                          // bytes relayed in tunnels
	draining       atomic.Bool                           // Close has begun: incoming calls are not served any more
	pulseNow       chan struct{}                         // capacity 1: start the next pulse now
	stalls         stalls
	clocks         clocks

	mu     sync.Mutex // guards the fields below
	closed bool
	// sockets holds all that are open. Invariant: at most maxAccepted of them are
	// accepted, and maxFar of these come from other regions.
	sockets map[*socket]struct{}
	conns   map[*conn]struct{} // connections whose silence is watched
	pulsed  chan struct{}      // closed at the next pulse; nil if no caller of Pulse waits
}

// New binds the peer port. Connections wait in the listener until Start. The
// caller must Close the Peers.
func New(config Config) (*Peers, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("open peers: %w", err)
	}

	listener, err := config.Listen()
	if err != nil {
		return nil, fmt.Errorf("open peers: %w", err)
	}

	p := &Peers{
		config: config, log: config.Logger, listener: listener, started: time.Now(),
		raft:     make(chan net.Conn, raftWaiting),
		halfOpen: make(chan struct{}, maxHalfOpen),
		pulseNow: make(chan struct{}, 1),
		sockets:  make(map[*socket]struct{}),
		conns:    make(map[*conn]struct{}),
	}

	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.raftDone, p.endRaft = context.WithCancel(p.ctx)
	p.links.Store(&map[ring.NodeID]*link{})
	p.Handle(MethodClock, Near, p.serveClock)
	p.Handle(MethodClock, Far, p.serveClock)
	return p, nil
}

// Start begins to accept connections. All handlers must be registered before.
func (p *Peers) Start() {
	p.spawn(p.accept)
	p.spawn(p.pulse)
}

// Close sends the replies to what was served, for at most a second, then ends
// all connections, fails all calls and waits for the goroutines. It may be
// called more than once.
func (p *Peers) Close() error {
	p.mu.Lock()
	isFirst := !p.closed
	p.closed = true
	p.mu.Unlock()

	var err error
	if isFirst {
		p.drain()
		p.cancel()
		err = p.listener.Close()
		p.closeSockets(func(*socket) bool { return true })
	}

	p.group.Wait()
	return err
}

// drainTime bounds how long drain takes.
const drainTime = time.Second

// drain lets handlers end, sends the queued replies and lets the callers read
// them. If a reply were lost, its caller would ask again, and the cost would be
// counted twice. Calls that arrive meanwhile are not served. Each caller closes
// its connection once it has read everything. The messages that handlers have
// sent to other nodes go out, too.
func (p *Peers) drain() {
	p.draining.Store(true)
	deadline := time.Now().Add(drainTime)
	for time.Now().Before(deadline) {
		serving := false
		p.mu.Lock()
		for c := range p.conns {
			if c.isCaller {
				serving = serving || c.isReachable() && !c.queue.isEmpty()
				continue
			}

			serving = true // until the caller has closed the connection
			if !c.handling.Load() && c.queue.isEmpty() {
				c.socket.closeWrite()
			}
		}
		p.mu.Unlock()

		if !serving {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// now returns the monotonic time since New in nanoseconds.
func (p *Peers) now() int64 { return int64(time.Since(p.started)) }

// spawn starts a goroutine that Close waits for. If Close has begun, it returns false.
func (p *Peers) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.group.Go(f)
	return true
}

// SetNodes sets the other nodes of this region and their addresses, host:port.
// It closes connections to all other nodes, and to a node whose address has
// changed. The map may be reused. After Close, SetNodes has no effect.
func (p *Peers) SetNodes(nodes map[ring.NodeID]string) { p.setLinks(kindNear, nodes) }

// SetFarNodes is SetNodes for other regions. It skips the nodes of SetNodes.
func (p *Peers) SetFarNodes(nodes map[ring.NodeID]string) { p.setLinks(kindFar, nodes) }

func (p *Peers) setLinks(k connKind, nodes map[ring.NodeID]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}

	old := *p.links.Load()
	links := maps.Clone(old)
	for node, l := range old {
		address, wanted := nodes[node]
		isObsolete := l.kind == k && (!wanted || address != l.address)
		// A node that seemed to be of another region, but is in this one, gets a near
		// link instead.
		isNear := l.kind == kindFar && k == kindNear && wanted
		if isObsolete || isNear {
			l.cancel()
			delete(links, node)
		}
	}

	for node, address := range nodes {
		if links[node] == nil {
			ctx, cancel := context.WithCancel(p.ctx)
			l := &link{peers: p, node: node, address: address, kind: k, ctx: ctx, cancel: cancel,
				dialNow: make(chan struct{}, 1), searchNow: make(chan struct{}, 1)}
			links[node] = l
			p.group.Go(func() {
				defer cancel()
				l.run(ctx)
			})
		}
	}

	p.links.Store(&links)
}

// Self returns this node's identity.
func (p *Peers) Self() Identity { return p.config.Self() }

// Metrics reports what this node relays for others, and when its certificate
// for calls expires.
func (p *Peers) Metrics(s metrics.Sink) {
	bytes, tunnels := p.Relayed()
	s.Count("relayed_bytes_total", "Bytes relayed between other nodes whose direct connection is broken.", bytes)
	if files, ok := p.config.TLS.(*TLS); ok {
		metrics.CertificateExpiry(s, "nodes", files.files.Current(time.Now()).pair)
	}
	s.Gauge("tunnels", "Tunnels between other nodes that this one relays.", float64(tunnels))
}

// Reachable reports whether a node has a path that is not silent.
func (p *Peers) Reachable(to ring.NodeID) bool { return p.pathTo(to) != nil }

// ProcessGone reports whether the process of a node in SetNodes has ended, as
// far as the last dial has shown: the node's machine refused the connection, or
// another node was at its address. A node that is only silent or cut off has
// not ended.
func (p *Peers) ProcessGone(node ring.NodeID) bool {
	l := (*p.links.Load())[node]
	return l != nil && l.kind == kindNear && l.processGone.Load() && p.pathTo(node) == nil
}

// pathTo returns the connection for calls to a node, or nil if the node is unreachable.
func (p *Peers) pathTo(to ring.NodeID) *conn {
	if l := (*p.links.Load())[to]; l != nil {
		if c := l.currentConn(); c != nil && c.isReachable() {
			return c
		}
	}
	return nil
}

// notifyLink informs the link to a node that the node has connected to this one.
func (p *Peers) notifyLink(s *socket) {
	if s.tunnelled || s.kind == kindTunnel {
		return // this proves nothing about the direct path
	}

	l := (*p.links.Load())[s.remote.Node]
	if l != nil && (l.kind == kindFar) == (s.kind == kindFar) {
		l.onIncoming(s.remote)
	}
}

// Go calls a node. done runs exactly once: with the reply, which is valid only
// during done, or with an error. It may run before Go returns, on the reader of
// the connection or on another goroutine of Peers, so it must not block. body
// may be reused after Go returns. A timeout of 0 means 30 s.
func (p *Peers) Go(to ring.NodeID, m Method, body []byte, timeout time.Duration, done func(reply []byte, err error)) {
	err := p.sendOver(to, func(c *conn) error {
		_, err := c.startCall(m, body, timeout, done)
		return err
	})
	if err != nil {
		done(nil, err)
	}
}

// Call is the blocking form of Go. The reply belongs to the caller. At the
// deadline of ctx, or after 30 s if it has none, the error is ErrTimeout.
func (p *Peers) Call(ctx context.Context, to ring.NodeID, m Method, body []byte) ([]byte, error) {
	var reply []byte
	err := p.sendOver(to, func(c *conn) (err error) {
		reply, err = c.call(ctx, m, body)
		return err
	})
	return reply, err
}

// Send sends a one-way message. A nil error means that the message is queued,
// not that it will arrive.
func (p *Peers) Send(to ring.NodeID, m Method, body []byte) error {
	return p.sendOver(to, func(c *conn) error { return c.sendOneWay(m, body) })
}

// CallAt calls the node at an address (host:port), over a connection of its
// own, and also returns the node's identity. It takes at most 30 s, or until
// ctx ends. The error wraps ErrUnreachable if no connection can be made in
// time, and is ErrTimeout if the reply is late.
func (p *Peers) CallAt(ctx context.Context, address string, m Method, body []byte) ([]byte, Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, maxCallTime)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()

	s, err := p.dial(ctx, address, kindNear, func(Identity) error { return nil })
	switch {
	case p.ctx.Err() != nil:
		err = ErrClosed
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if err != nil {
		return nil, Identity{}, err
	}

	c := p.newConn(s, true)
	if !p.spawn(func() { _ = c.run(ctx) }) {
		s.Close()
		return nil, Identity{}, ErrClosed
	}

	reply, err := c.call(ctx, m, body)
	if errors.Is(err, ErrUnreachable) && ctx.Err() != nil && p.ctx.Err() == nil {
		err = contextError(ctx.Err()) // the end of ctx broke the connection
	}

	cancel()
	<-c.done
	return reply, c.remote, err
}
