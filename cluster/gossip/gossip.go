package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// ErrClosed means that Close has been called, or that the node has left.
var ErrClosed = errors.New("gossip is closed")

const (
	// announceWait bounds the wait for an announcement, which goes out in any case.
	announceWait     = time.Second
	announceInterval = 2 * time.Second // while other nodes may still know an earlier run of this node
	leaveWait        = 2 * time.Second // bounds each of the two steps of Leave
	leaveRounds      = 4               // rounds of gossip between the two
)

// Gossip is a node's part in the gossip of its region.
type Gossip struct {
	config     Config
	name       string // memberlist's name of this node: its ID
	memberlist *memberlist.Memberlist
	remembered map[netip.AddrPort]time.Time // guarded by mu: addresses without a known member, and when they were added

	changed        chan struct{} // capacity 1
	addressesAdded chan struct{} // capacity 1: remembered has new addresses
	wake           chan struct{} // capacity 1: announceChanges has work
	ctx            context.Context
	cancel         context.CancelFunc
	wg             sync.WaitGroup

	// announcing is a binary semaphore, held while this node announces itself.
	// memberlist then reads its own address without its lock, so two announcements
	// at once would race. It is a channel and not a mutex, because in tests the
	// virtual clock stops while a goroutine waits for a mutex.
	announcing chan struct{}
	// ending is a binary semaphore, held while memberlist leaves or shuts down: a
	// leave after a shutdown panics. It is a channel for the reason above.
	ending   chan struct{}
	shutDown bool // guarded by ending

	refused atomic.Uint64 // messages that memberlist did not get

	mu            sync.Mutex // guards the fields below; never held while memberlist is called
	self          Member
	metadata      []byte // of self
	dirty         bool   // metadata has changed since the last announcement
	table         *table
	logged        logLimiter[eventKey]
	secondClaims  secondClaims
	rejecting     int                // nodes that rejected this one when they were last joined
	lastTwin      time.Time          // when another process with this node's ID was last reported; zero: never
	namedCount    int                // number of nodes that the seeds named at the last lookup; 0: no lookup yet
	seedAddresses [][]netip.AddrPort // addresses of each seed at the last lookup
	closed        bool
}

// Open starts this node's gossip. It succeeds even if no seed answers: seeds
// are retried until Close. For an invalid c, the error is that of Validate.
func Open(c Config) (*Gossip, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	metadata, err := appendMetadata(nil, c.Self)
	if err != nil {
		return nil, err
	}

	logger := newAdapter(c.Logger)
	inner := c.Transport
	if inner == nil {
		inner, err = listen(&c, logger)
		if err != nil {
			return nil, err
		}
	}

	g := &Gossip{
		config: c, name: c.Self.ID.String(), self: c.Self, metadata: metadata,
		announcing: make(chan struct{}, 1), ending: make(chan struct{}, 1),
		changed: make(chan struct{}, 1), wake: make(chan struct{}, 1), addressesAdded: make(chan struct{}, 1),
		table: newTable(maxMembers), logged: logLimiter[eventKey]{every: repeatAfter},
		remembered: make(map[netip.AddrPort]time.Time), secondClaims: make(secondClaims),
	}

	ip, _ := netip.ParseAddr(c.Advertise) // withDefaults has checked it
	g.self.Address = ip.Unmap().String()
	g.self.GossipPort = c.Port
	g.self.State = Alive
	g.restoreRemembered()
	g.ctx, g.cancel = context.WithCancel(context.Background())

	t := newTransport(inner, g.inspector(), g.recordRefusal)
	m := c.memberlist(logger)
	m.Transport = t
	e := delegates{g}
	m.Delegate = e
	m.Events = e
	m.Alive = e
	m.Merge = e
	m.Conflict = e

	g.memberlist, err = memberlist.Create(m)
	if err != nil {
		g.cancel()
		return nil, errors.Join(fmt.Errorf("start gossip: %w", err), t.Shutdown())
	}

	g.wg.Go(g.announceChanges)
	g.wg.Go(g.rejoin)
	return g, nil
}

// inspector returns the inspector of messages to this node.
func (g *Gossip) inspector() *inspector {
	in := &inspector{label: g.config.label(), isMemberAddress: g.isMemberAddress}
	if g.config.Keyring != nil {
		in.keys = g.config.Keyring.GetKeys
	}
	return in
}

// isMemberAddress reports whether a known member has the given address.
func (g *Gossip) isMemberAddress(at netip.AddrPort) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.table.entries {
		if e.gossipAddress() == at {
			return true
		}
	}
	return false
}

// Refused returns the number of messages that were dropped since Open because
// no node sends such messages.
func (g *Gossip) Refused() uint64 { return g.refused.Load() }

// recordRefusal counts a dropped message, and logs it once an hour for each reason.
func (g *Gossip) recordRefusal(from net.Addr, err error) {
	count := g.refused.Add(1)
	reason, _ := errors.AsType[refusal](err)

	g.mu.Lock()
	defer g.mu.Unlock()
	g.logOnce(eventKey{text: "a gossip message was refused", name: string(reason)}, slog.LevelWarn,
		"from", from, "reason", string(reason), "refused", count)
}

// Members lists this node and every other member that it knows, sorted by ID.
// Members that failed or left stay listed until Forget.
func (g *Gossip) Members() []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.table.members(g.self)
}

// Changed returns a channel that has a value after Members may have changed.
func (g *Gossip) Changed() <-chan struct{} { return g.changed }

// Update changes this node's description, which is then announced to the other
// nodes. Only Cluster, BootstrapExpect, RaftEmpty, SettingsVersion, RegionSize
// and Primary may change. change runs under a lock and must not call g. The error
// wraps ErrConfig or ErrMetadata, or ErrClosed after Leave or Close.
func (g *Gossip) Update(change func(*Member)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return ErrClosed
	}

	next := g.self
	change(&next)

	fixed := next
	fixed.Cluster = g.self.Cluster
	fixed.BootstrapExpect = g.self.BootstrapExpect
	fixed.RaftEmpty = g.self.RaftEmpty
	fixed.SettingsVersion = g.self.SettingsVersion
	fixed.RegionSize = g.self.RegionSize
	fixed.Primary = g.self.Primary
	if fixed != g.self {
		return fmt.Errorf("%w: only the cluster, expected members, emptiness, version, and the region's members and primary "+
			"change during a run", ErrConfig)
	}

	if next == g.self {
		return nil
	}
	if g.self.State == Left {
		return fmt.Errorf("%w: this node has left", ErrClosed)
	}

	metadata, err := appendMetadata(nil, next)
	if err != nil {
		return err
	}

	g.self = next
	g.metadata = metadata
	g.dirty = true
	// A new Cluster may show that some members belong to another one.
	for _, e := range g.table.entries {
		if g.config.checkMember(next, e.Member) != nil {
			g.table.exclude(e)
		}
	}

	wake.Signal(g.wake)
	wake.Signal(g.changed)
	return nil
}

// Forget drops a member that has failed or left. It has no effect on a live one.
func (g *Gossip) Forget(id ring.NodeID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.table.forget(id) {
		wake.Signal(g.changed)
	}
}

// hasRecentTwin reports whether another process has recently used this node's
// ID. The caller must hold g.mu.
func (g *Gossip) hasRecentTwin(now time.Time) bool {
	return !g.lastTwin.IsZero() && now.Sub(g.lastTwin) <= twinMemory
}

// announceChanges announces this node whenever its description has changed.
func (g *Gossip) announceChanges() {
	tick := time.NewTicker(announceInterval)
	defer tick.Stop()

	for {
		periodic := false
		select {
		case <-g.ctx.Done():
			return
		case <-tick.C:
			periodic = true
		case <-g.wake:
		}

		g.mu.Lock()
		// While other nodes take an earlier run of this node, at another address, for
		// alive, they refuse this process. This node can't see when that ends, so it
		// repeats the announcement.
		due := g.dirty || (periodic && g.hasRecentTwin(time.Now()))
		g.dirty = false
		g.mu.Unlock()

		if due {
			g.announce(announceWait)
		}
	}
}

// announce sends this node's description to the other nodes. It waits until the
// description is sent, at most for wait.
func (g *Gossip) announce(wait time.Duration) {
	g.announcing <- struct{}{}
	defer func() { <-g.announcing }()
	if err := g.memberlist.UpdateNode(wait); err != nil {
		g.config.Logger.Debug("announcement not sent yet", "error", err)
	}
}

// Leave announces that this node is leaving. It waits until the announcement is
// sent or ctx ends, but at most for some seconds. The node still answers until
// Close. A second Leave has no effect.
func (g *Gossip) Leave(ctx context.Context) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return ErrClosed
	}

	next := g.self
	next.State = Left
	metadata, err := appendMetadata(nil, next)
	if err != nil || g.self.State == Left {
		g.mu.Unlock()
		return err
	}

	// If the other nodes know another process with this ID, and refuse this one,
	// this one must not announce that the other one leaves.
	isRefused := g.hasRecentTwin(time.Now())

	g.self = next
	g.metadata = metadata
	wake.Signal(g.changed)

	done := make(chan error, 1)
	g.wg.Go(func() { done <- g.leave(isRefused) })
	g.mu.Unlock()

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("leave gossip: %w", ctx.Err())
	}
}

func (g *Gossip) leave(isRefused bool) error {
	if isRefused {
		return nil
	}

	// The other nodes get time to spread the announcement: the message that this
	// node is gone, which follows, would replace it.
	g.announce(leaveWait)
	select {
	case <-g.ctx.Done():
	case <-time.After(leaveRounds * g.config.GossipInterval):
	}

	g.ending <- struct{}{}
	defer func() { <-g.ending }()
	if g.shutDown {
		return ErrClosed
	}

	if err := g.memberlist.Leave(leaveWait); err != nil {
		return fmt.Errorf("leave gossip: %w", err)
	}
	return nil
}

// Close stops gossiping. The other nodes see this node as failed, unless Leave
// was called before. Close waits for this package's goroutines; memberlist's
// own end within some seconds.
func (g *Gossip) Close() error {
	// Leave starts its goroutine under mu, and not once closed is set. So
	// wg.Wait misses none.
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel()

	g.ending <- struct{}{}
	g.shutDown = true
	err := g.memberlist.Shutdown() // it also closes connections, so no goroutine waits for them
	<-g.ending

	g.wg.Wait()
	return err
}
