package regions

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

const (
	// enterPause is the time between two attempts to enter the WAN pool.
	enterPause = 5 * time.Second
	// leaveTime bounds how long this node takes to announce that it leaves the pool.
	leaveTime = 6 * time.Second
	// forgetFailed and forgetLeft are how long pool members that failed or left are remembered.
	forgetFailed = 72 * time.Hour
	forgetLeft   = time.Hour
	// maxAddresses bounds the gossip addresses that entry nodes send each other.
	maxAddresses = 64
	// viewInterval is how often the view is updated without a change from gossip.
	viewInterval = 5 * time.Second
)

// wanState is this node's part in the WAN pool. Only the loop uses it.
type wanState struct {
	gossip         *gossip.Gossip            // nil while this node is not in the pool
	entered        uint64                    // how many times this node has entered the pool
	nextAttempt    time.Time                 // no attempt to enter before this
	cluster        [16]byte                  // as last announced
	members        int                       // as last announced
	remembered     []string                  // the addresses last passed to Remember
	goneSince      map[ring.NodeID]time.Time // members that failed or left, and since when
	knownAddresses []string                  // the addresses last passed to gossip
	stale          bool                      // gossip has signalled a change
	lastUpdate     time.Time                 // when the view was last updated
	loggedFailure  string                    // the last logged error of enter
	loggedTroubles []trouble                 // current troubles, all logged
}

// changed returns gossip's channel, or nil outside the pool.
func (w *wanState) changed() <-chan struct{} {
	if w.gossip == nil {
		return nil
	}
	return w.gossip.Changed()
}

// step makes this node a member of the pool exactly while it should be an entry
// node. In the pool, it updates what this node announces, the view and the
// addresses.
func (p *Pool) step(now time.Time) {
	p.mu.Lock()
	isWanted := p.wantEntryNode
	members := p.members
	leaving := p.leaving
	learned := p.learnedAddresses
	p.mu.Unlock()

	wan := &p.wan
	switch {
	case isWanted && wan.gossip == nil && !now.Before(wan.nextAttempt):
		p.enter(now, members, learned)
	case !isWanted && wan.gossip != nil:
		p.exit()
	}

	if leaving && wan.gossip == nil {
		select {
		case <-p.left:
		default:
			close(p.left)
		}
	}

	if wan.gossip != nil {
		p.announce(members)
		if wan.stale || now.Sub(wan.lastUpdate) > viewInterval {
			p.updateView(now)
		}

		if !slices.Equal(learned, wan.knownAddresses) {
			wan.knownAddresses = learned
			wan.gossip.AddAddresses(learned)
		}
	}

	p.remember(learned)
	if p.signalChange() && !p.allReachable() {
		wake.Signal(p.pollNow) // find entry nodes that reach the missing region
	}
}

// enter opens the pool's ports and joins the pool. step tries it again later.
func (p *Pool) enter(now time.Time, members int, learned []string) {
	wan := &p.wan
	wan.nextAttempt = now.Add(enterPause)

	c := p.config.gossipConfig(wan.entered+1, members, slices.Concat(learned, wan.remembered))
	c.Self.Cluster = p.config.Peers.Self().Cluster

	var err error
	if p.config.Transport != nil {
		c.Transport, err = p.config.Transport()
	}
	if err == nil {
		wan.gossip, err = gossip.Open(c)
		if err != nil && c.Transport != nil {
			err = errors.Join(err, c.Transport.Shutdown())
		}
	}

	if err != nil {
		if err.Error() != wan.loggedFailure {
			wan.loggedFailure = err.Error()
			p.log.Error("the port between regions (--wan-port) can't be opened, retrying", "port", c.Port, "error", err)
		}
		return
	}

	wan.cluster = c.Self.Cluster
	wan.members = c.Self.RegionSize
	wan.knownAddresses = learned
	wan.entered++
	wan.loggedFailure = ""
	wan.loggedTroubles = nil
	wan.goneSince = nil
	wan.stale = true
	p.log.Debug("this node is an entry node of its region", "region", p.config.Self.Region, "wan_port", c.Port)
}

// exit leaves the pool. Calls in flight may finish; other entry nodes forward new ones.
func (p *Pool) exit() {
	p.log.Debug("this node is no longer an entry node of its region", "region", p.config.Self.Region)
	// The view is emptied first, so that new calls go through other entry nodes
	// while this one leaves.
	p.view.Store(emptyView)
	ctx, cancel := context.WithTimeout(p.ctx, leaveTime)
	defer cancel()
	if err := p.wan.gossip.Leave(ctx); err != nil && p.ctx.Err() == nil {
		p.log.Warn("other regions were not told that this node is no longer an entry node", "error", err)
	}
	p.closePool()
}

// closePool closes what enter opened.
func (p *Pool) closePool() {
	p.view.Store(emptyView)
	p.config.Peers.SetFarNodes(nil)
	wan := &p.wan
	if wan.gossip == nil {
		return
	}
	if err := wan.gossip.Close(); err != nil {
		p.log.Warn("closing the WAN pool's ports failed", "error", err)
	}
	wan.gossip, wan.nextAttempt = nil, time.Time{}
}

// announce announces this node's cluster and the region's node count if they have changed.
func (p *Pool) announce(members int) {
	wan := &p.wan
	cluster, members := p.config.Peers.Self().Cluster, min(max(members, 0), maxMembers)
	if cluster == wan.cluster && members == wan.members {
		return
	}
	if err := wan.gossip.Update(func(m *gossip.Member) { m.Cluster, m.RegionSize = cluster, members }); err != nil {
		p.log.Warn("can't announce the node count to other regions", "error", err)
	}
	wan.cluster, wan.members = cluster, members
}

// updateView updates the view from gossip's members.
func (p *Pool) updateView(now time.Time) {
	wan := &p.wan
	wan.stale, wan.lastUpdate = false, now

	all := wan.gossip.Members()
	p.forgetGone(all, now)

	before := p.view.Load()
	v, troubles := buildView(p.config.Self, all, before)

	for _, t := range troubles {
		if !slices.Contains(wan.loggedTroubles, t) {
			p.log.Error(string(t))
		}
	}
	wan.loggedTroubles = troubles

	v.addresses = wan.addresses(all, p.config.Self.ID)
	if !maps.Equal(v.links, before.links) {
		p.config.Peers.SetFarNodes(v.links)
	}

	p.view.Store(v)
}

// addresses returns the entry nodes' gossip addresses, this node's first.
func (w *wanState) addresses(all []gossip.Member, self ring.NodeID) []string {
	var own []string
	for _, m := range all {
		if m.ID == self {
			own = append(own, net.JoinHostPort(m.Address, strconv.Itoa(m.GossipPort)))
		}
	}
	own = append(own, w.gossip.Addresses()...)
	return own[:min(len(own), maxAddresses)]
}

// forgetGone makes gossip forget members that failed or left long ago.
func (p *Pool) forgetGone(all []gossip.Member, now time.Time) {
	wan := &p.wan

	gone := make(map[ring.NodeID]time.Time, len(wan.goneSince))
	for _, m := range all {
		after := forgetFailed
		switch m.State {
		case gossip.Left:
			after = forgetLeft
		case gossip.Failed:
		default:
			continue
		}

		since, known := wan.goneSince[m.ID]
		if !known {
			since = now
		}
		gone[m.ID] = since

		if m.ID != p.config.Self.ID && now.Sub(since) > after {
			wan.gossip.Forget(m.ID)
		}
	}

	wan.goneSince = gone
}

// remember passes new addresses to join after a restart to Config.Remember.
func (p *Pool) remember(learned []string) {
	if p.config.Remember == nil {
		return
	}
	wan := &p.wan
	addresses := learned
	if wan.gossip != nil {
		addresses = wan.gossip.Addresses()
	}
	if len(addresses) > 0 && !slices.Equal(addresses, wan.remembered) {
		wan.remembered = slices.Clone(addresses)
		p.config.Remember(addresses)
	}
}
