package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/ring"
)

const defaultSilence = 250 * time.Millisecond

// Config sets up Peers. All functions are called from several goroutines; Self, Accept, AcceptFar and Leader from
// Start on.
type Config struct {
	Self   func() Identity // the cluster may become known later
	Listen func() (net.Listener, error)
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	TLS    Credentials                 // nil: none
	Accept func(remote Identity) error // may refuse a remote; asked at both ends. nil: everyone is welcome
	// AcceptFar is Accept for connections between nodes of different regions, after these were compared. nil: there are none.
	AcceptFar func(remote Identity) error
	// Leader is the node that carries tunnels last, as it has most to do. Zero, or nil: none.
	Leader  func() ring.NodeID
	Logger  *slog.Logger  // nil: the default one
	Silence time.Duration // no frame for so long: unreachable. 0: 250 ms

	speaks versions // set by tests; else what this build speaks
}

// validate fills in what is left out.
func (c *Config) validate() error {
	if c.Self == nil || c.Listen == nil || c.Dial == nil {
		return errors.New("there must be Self, Listen and Dial")
	}
	if c.Accept == nil {
		c.Accept = func(Identity) error { return nil }
	}
	if c.Leader == nil {
		c.Leader = func() ring.NodeID { return ring.NodeID{} }
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.speaks == (versions{}) {
		c.speaks = speaks
	}
	if c.Silence == 0 {
		c.Silence = defaultSilence
	}
	if c.Silence < 10*time.Millisecond {
		return errors.New("a silence under 10 ms is none")
	}
	return nil
}

// Peers are the other nodes, as far as they can be called.
type Peers struct {
	config    Config
	log       *slog.Logger
	listener  net.Listener
	raft      chan net.Conn      // accepted for Raft
	raftDone  context.Context    // ends when Raft takes no more
	endRaft   context.CancelFunc // of raftDone
	handlers  [scopes]handlers   // set before Start
	started   time.Time
	notes     notes
	halfOpen  chan struct{} // one for each connection that is shaking hands
	ctx       context.Context
	cancel    context.CancelFunc
	group     sync.WaitGroup
	links     atomic.Pointer[map[ring.NodeID]*link] // immutable
	relays    atomic.Int64                          // tunnels that this node carries. At most mostRelayed
	relayed   atomic.Int64                          // bytes in them
	finishing atomic.Bool                           // Close has begun: nothing is served any more

	mu      sync.Mutex // guards what follows
	closed  bool
	sockets map[*socket]struct{} // all that are open. Invariant: of those accepted at most mostAccepted, and mostFar from other regions
	conns   map[*conn]struct{}   // whose silence is watched
}

// New binds the peer port, and answers nobody yet: connections that come before Start wait there. Close it in any case.
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
		halfOpen: make(chan struct{}, mostHalfOpen),
		sockets:  make(map[*socket]struct{}),
		conns:    make(map[*conn]struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.raftDone, p.endRaft = context.WithCancel(p.ctx)
	p.links.Store(&map[ring.NodeID]*link{})
	return p, nil
}

// Start begins to answer. All handlers are registered by then.
func (p *Peers) Start() {
	p.spawn(p.accept)
	p.spawn(p.watchAll)
}

// Close ends all connections, fails all calls and waits for the goroutines. It may be called again.
func (p *Peers) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	var err error
	if first {
		p.finish()
		p.cancel()
		err = p.listener.Close()
		p.closeSockets(func(*socket) bool { return true })
	}
	p.group.Wait()
	return err
}

// finishTime bounds finish.
const finishTime = 200 * time.Millisecond

// finish sends the replies that are queued, and lets the callers read them: what was counted here must not be asked again for
// want of its answer. What comes meanwhile is not served any more. A caller closes when it has read all.
func (p *Peers) finish() {
	p.finishing.Store(true)
	for range finishTime / time.Millisecond {
		serving := false
		p.mu.Lock()
		for c := range p.conns {
			if c.calls {
				continue
			}
			serving = true
			if c.queue.empty() {
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

// now is monotonic.
func (p *Peers) now() int64 { return int64(time.Since(p.started)) }

// spawn starts a goroutine that Close waits for, unless Close has begun.
func (p *Peers) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.group.Go(f)
	return true
}

// Know says which other nodes of this region there are and where. Connections to others are closed, and so is one to a node
// that has another address now. After Close it does nothing.
func (p *Peers) Know(nodes map[ring.NodeID]string) { p.know(kindPeer, nodes) }

// KnowFar is Know for nodes of other regions. One that Know was told of is left out.
func (p *Peers) KnowFar(nodes map[ring.NodeID]string) { p.know(kindFar, nodes) }

func (p *Peers) know(k kind, nodes map[ring.NodeID]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	old := *p.links.Load()
	links := maps.Clone(old)
	for node, l := range old {
		address, ok := nodes[node]
		if l.kind == k && (!ok || address != l.address) || l.kind == kindFar && k == kindPeer && ok {
			l.cancel()
			delete(links, node)
		}
	}
	for node, address := range nodes {
		if links[node] == nil {
			ctx, cancel := context.WithCancel(p.ctx)
			l := &link{peers: p, node: node, address: address, kind: k, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1)}
			links[node] = l
			p.group.Go(func() {
				defer cancel()
				l.run(ctx)
			})
		}
	}
	p.links.Store(&links)
}

// Self is who this node is.
func (p *Peers) Self() Identity { return p.config.Self() }

// Reachable says whether there is a path to the node that is not silent.
func (p *Peers) Reachable(to ring.NodeID) bool { return p.way(to) != nil }

// way is the connection that calls to a node take; nil: it is unreachable.
func (p *Peers) way(to ring.NodeID) *conn {
	if l := (*p.links.Load())[to]; l != nil {
		if c := l.current(); c != nil && c.reachable() {
			return c
		}
	}
	return nil
}

// heardOf tells the link to a node that the node has connected to us.
func (p *Peers) heardOf(s *socket) {
	if s.tunnelled || s.kind == kindTunnel {
		return // the direct way may be broken all the same
	}
	if l := (*p.links.Load())[s.remote.Node]; l != nil && (l.kind == kindFar) == (s.kind == kindFar) {
		l.heardOf(s.remote)
	}
}

// Go calls a node. done runs exactly once: with the reply, which is valid only during done, or with an error. It may run
// before Go returns, on the reader of the connection, or on another goroutine of Peers, so it must not block. body may be
// used again after Go returns. A timeout of 0 means 30 s.
func (p *Peers) Go(to ring.NodeID, m Method, body []byte, timeout time.Duration, done func(reply []byte, err error)) {
	if err := p.over(to, func(c *conn) error {
		_, err := c.start(m, body, timeout, done)
		return err
	}); err != nil {
		done(nil, err)
	}
}

// Call is Go for those who can wait. It takes 30 s at most if ctx has no deadline.
func (p *Peers) Call(ctx context.Context, to ring.NodeID, m Method, body []byte) ([]byte, error) {
	var reply []byte
	err := p.over(to, func(c *conn) (err error) {
		reply, err = c.call(ctx, m, body)
		return err
	})
	return reply, err
}

// Send sends a one-way message: without an error it is queued, and nobody learns whether it arrives.
func (p *Peers) Send(to ring.NodeID, m Method, body []byte) error {
	return p.over(to, func(c *conn) error { return c.post(m, body) })
}

// CallAt calls the node at an address, over a connection of its own, and returns its identity. If nobody answers there in
// the time that ctx leaves, 30 s at most, the error is ErrUnreachable; if somebody does but the reply is late, ErrTimeout.
func (p *Peers) CallAt(ctx context.Context, address string, m Method, body []byte) ([]byte, Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	s, err := p.dial(ctx, address, kindPeer, func(Identity) error { return nil })
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
		err = ended(ctx.Err()) // that is what broke the connection
	}
	cancel()
	<-c.done
	return reply, c.remote, err
}
