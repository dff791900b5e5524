package regions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

var (
	// ErrNoRoute means that the region can't be reached. Certainly nothing was
	// sent.
	ErrNoRoute = errors.New("the region can't be reached")
	// ErrClosed means that Close has been called. Nothing was sent.
	ErrClosed = errors.New("the WAN pool is closed")

	errNotEntry    = errors.New("this node is not an entry node of its region now")
	errNameTaken   = errors.New("another cluster uses the name of that region: one of the two needs another --region")
	errOwnCluster  = errors.New("it belongs to this node's cluster, but uses the name of another region: a data directory was copied, or a --region changed")
	errTooMany     = errors.New("there are too many regions")
	errOtherRegion = errors.New("gossip has it in another region")
)

// Region is another region as this node sees it.
type Region struct {
	Name      string
	Primary   bool   // most of its entry nodes believe their region to be the primary
	Follows   string // the region that most of its entry nodes believe to be the primary
	Reachable bool   // a call would be sent
	Members   int    // its node count, as it announces
	Address   string // host:port of one of its entry nodes; empty if none is known
}

// Pool is a node's access to other regions.
type Pool struct {
	config     Config
	log        *slog.Logger
	ctx        context.Context
	cancel     context.CancelFunc
	group      sync.WaitGroup
	changed    chan struct{} // capacity 1
	wake       chan struct{} // capacity 1: the loop has work
	pollNow    chan struct{} // capacity 1: poll entry nodes of this region now
	left       chan struct{} // closed once this node has left for good
	forwarding atomic.Int64  // calls in flight that this node forwards for nodes of its region
	wan        wanState      // used only by the loop

	view    atomic.Pointer[wanView] // emptyView unless this node is an entry node
	reports atomic.Pointer[reports] // reports of this region's entry nodes

	mu               sync.Mutex // guards the fields below
	wantEntryNode    bool       // this node shall be an entry node
	members          int
	ownEntryNodes    func() []ring.NodeID
	learnedAddresses []string // gossip addresses of entry nodes, from a report; at most maxAddresses
	signalled        []Region // Regions at the last signal on changed
	leaving          bool     // for good
	closed           bool
	lastOwnEntry     ring.NodeID // the entry node of this region that last answered
}

// Open starts a Pool. It opens nothing on the network before SetEntryNode.
func Open(c Config) (*Pool, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("open the WAN pool: %w", err)
	}

	p := &Pool{
		config: c, log: c.Logger, changed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		pollNow: make(chan struct{}, 1),
		left:    make(chan struct{}), ownEntryNodes: func() []ring.NodeID { return nil },
	}

	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.view.Store(emptyView)
	p.reports.Store(&reports{})

	p.group.Go(p.run)
	p.group.Go(p.runPolls)
	return p, nil
}

// Close stops the Pool at once and waits for its goroutines. Other regions see
// this node as failed, unless Leave was called before. Close may be called
// again.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.group.Wait()
	return nil
}

// Leave announces to the other regions that this node leaves for good, so that
// they stop dialling it. It waits until the announcement is sent, or until ctx
// ends. It returns ErrClosed after Close. Don't call Leave before a mere
// restart: without it, other regions find the node again sooner. Afterwards
// SetEntryNode has no effect.
func (p *Pool) Leave(ctx context.Context) error {
	p.mu.Lock()
	p.leaving, p.wantEntryNode = true, false
	p.mu.Unlock()

	if p.ctx.Err() != nil {
		return ErrClosed
	}

	wake.Signal(p.wake)

	select {
	case <-p.left:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("leave the WAN pool: %w", ctx.Err())
	case <-p.ctx.Done():
		return ErrClosed
	}
}

// SetEntryNode sets whether this node is an entry node: a member of the WAN
// pool that other regions call. It returns at once.
func (p *Pool) SetEntryNode(yes bool) {
	p.change(func() bool {
		if p.leaving || p.wantEntryNode == yes {
			return false
		}
		p.wantEntryNode = yes
		return true
	})
}

// SetRegionSize sets the node count that this region announces.
func (p *Pool) SetRegionSize(n int) {
	p.change(func() bool {
		changed := p.members != n
		p.members = n
		return changed
	})
}

// change runs set with mu held, and wakes both loops if set reports a change.
func (p *Pool) change(set func() bool) {
	p.mu.Lock()
	changed := set()
	p.mu.Unlock()
	if changed {
		wake.Signal(p.wake)
		wake.Signal(p.pollNow)
	}
}

// SetOwnEntryNodes sets the function that returns the reachable entry nodes of
// this region. They forward the calls of a node that can't reach another region
// itself. find is called from several goroutines, and must not block.
func (p *Pool) SetOwnEntryNodes(find func() []ring.NodeID) {
	p.mu.Lock()
	p.ownEntryNodes = find
	p.mu.Unlock()
	wake.Signal(p.pollNow)
}

// Changed returns a channel that has a value after Regions has changed.
func (p *Pool) Changed() <-chan struct{} { return p.changed }

// Accept decides whether to accept a far connection with a node, for
// peer.Config.AcceptFar. An error refuses the node.
func (p *Pool) Accept(remote peer.Identity) error {
	p.mu.Lock()
	isWanted := p.wantEntryNode && !p.closed
	p.mu.Unlock()

	if !isWanted {
		return errNotEntry
	}

	none := [16]byte{}
	if own := p.config.Peers.Self().Cluster; own != none && own == remote.Cluster {
		return errOwnCluster
	}

	v := p.view.Load()
	r := v.region(remote.Region)
	switch {
	case r == nil && len(v.regions) == maxRegions:
		return errTooMany
	case r != nil && r.alive && r.cluster != none && remote.Cluster != none && r.cluster != remote.Cluster:
		return fmt.Errorf("%w: %q", errNameTaken, remote.Region)
	}

	for _, other := range v.regions {
		if other.name != remote.Region && slices.Contains(other.entryNodes, remote.Node) {
			return fmt.Errorf("%w: its handshake names %q, gossip %q", errOtherRegion, remote.Region, other.name)
		}
	}
	return nil
}

// Metrics reports metrics about the other regions. Region names are safe
// labels: there are few, and only nodes of the cluster choose them.
func (p *Pool) Metrics(s metrics.Sink) {
	for _, r := range p.Regions() {
		s.Flag("region_reachable", "1 while another region can be reached from this node, else 0.",
			r.Reachable, "region", r.Name)
		s.Level("region_members", "Nodes of another region, as it announces.", r.Members, "region", r.Name)
	}
}

// Regions lists the other regions by name, at most 31.
func (p *Pool) Regions() []Region {
	v, reported := p.view.Load(), p.reports.Load()

	all := make([]Region, 0, len(v.regions))
	for _, r := range v.regions {
		described := p.describe(r)
		described.Reachable = described.Reachable || p.isReachableViaOwnEntry(*reported, r.name)
		all = append(all, described)
	}

	for _, r := range reported.regions() {
		// An entry node trusts its own view. It uses reports only for regions that
		// its view lacks, and only while the newest report is recent.
		if v.region(r.Name) == nil && len(all) < maxRegions &&
			(!v.isEntryNode || time.Since((*reported)[0].at) < 3*pollAllInterval) {
			r.Reachable = p.isReachableViaOwnEntry(*reported, r.Name)
			all = append(all, r)
		}
	}

	slices.SortFunc(all, byName)
	return all
}

// describe returns a region as this node sees it first-hand.
func (p *Pool) describe(r *region) Region {
	out := Region{Name: r.name, Primary: r.follows == r.name, Follows: r.follows,
		Members: r.members, Reachable: p.hasLinkTo(r)}
	if len(r.entryNodes) > 0 {
		out.Address = p.view.Load().links[r.entryNodes[0]]
	}
	return out
}

// Reachable reports whether a call to a region would be sent.
func (p *Pool) Reachable(region string) bool {
	if r := p.view.Load().region(region); r != nil && p.hasLinkTo(r) {
		return true
	}
	return p.isReachableViaOwnEntry(*p.reports.Load(), region)
}

// hasLinkTo reports whether this node has a link to an entry node of a region.
func (p *Pool) hasLinkTo(r *region) bool {
	return slices.ContainsFunc(r.entryNodes, p.config.Peers.Reachable)
}

// signalChange signals Changed, and returns true, if Regions has changed.
func (p *Pool) signalChange() bool {
	now := p.Regions()
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Equal(now, p.signalled) {
		return false
	}
	p.signalled = now
	wake.Signal(p.changed)
	return true
}

const (
	// checkInterval is the time between two checks for new or broken links.
	// idleCheckInterval replaces it while there are no other regions.
	checkInterval     = 200 * time.Millisecond
	idleCheckInterval = time.Second
)

// run is the loop that owns this node's part in the WAN pool.
func (p *Pool) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer p.closePool()

	for {
		select {
		case <-p.ctx.Done():
			return
		case <-timer.C:
		case <-p.wake:
		case <-p.wan.changed():
			p.wan.stale = true
		}

		p.step(time.Now())

		if len(p.Regions()) == 0 {
			timer.Reset(idleCheckInterval)
		} else {
			timer.Reset(checkInterval)
		}
	}
}
