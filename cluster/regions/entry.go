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
	// seeInterval is the time after which the view is updated even if gossip signals no change.
	seeInterval = 5 * time.Second
)

// pool is this node's part in the WAN pool. Only the loop uses it.
type pool struct {
	gossip     *gossip.Gossip            // nil while this node is not in the pool
	entered    uint64                    // how many times this node has entered the pool
	again      time.Time                 // no attempt to enter before this
	cluster    [16]byte                  // as last announced
	members    int                       // as last announced
	remembered []string                  // the addresses last passed to Remember
	gone       map[ring.NodeID]time.Time // members that failed or left, and since when
	met        []string                  // the addresses last passed to gossip
	news       bool                      // gossip has signalled a change
	seen       time.Time                 // when the view was last updated
	failure    string                    // the last logged error of enter
	said       []trouble                 // current troubles, all logged
}

// changed returns gossip's channel; nil outside the pool.
func (p *pool) changed() <-chan struct{} {
	if p.gossip == nil {
		return nil
	}
	return p.gossip.Changed()
}

// step enters or leaves the pool as required, and while in it updates announcements, the view and addresses.
func (p *Pool) step(now time.Time) {
	p.mu.Lock()
	entry, members, leaving, learned := p.entry, p.members, p.leaving, p.learned
	p.mu.Unlock()
	o := &p.pool
	switch {
	case entry && o.gossip == nil && !now.Before(o.again):
		p.enter(now, members, learned)
	case !entry && o.gossip != nil:
		p.exit()
	}
	if leaving && o.gossip == nil {
		select {
		case <-p.out:
		default:
			close(p.out)
		}
	}
	if o.gossip != nil {
		p.tell(members)
		if o.news || now.Sub(o.seen) > seeInterval {
			p.see(now)
		}
		if !slices.Equal(learned, o.met) {
			o.met = learned
			o.gossip.AddAddresses(learned)
		}
	}
	p.remember(learned)
	if p.notice() && !p.content() {
		signal(p.asking) // find entry nodes that reach the missing region
	}
}

// enter opens the pool's ports and joins the pool. If that fails, step retries it after enterPause.
func (p *Pool) enter(now time.Time, members int, learned []string) {
	o := &p.pool
	o.again = now.Add(enterPause)
	c := p.config.gossip(o.entered+1, members, slices.Concat(learned, o.remembered))
	c.Self.Cluster = p.config.Peers.Self().Cluster
	var err error
	if p.config.Transport != nil {
		c.Transport, err = p.config.Transport()
	}
	if err == nil {
		if o.gossip, err = gossip.Open(c); err != nil && c.Transport != nil {
			err = errors.Join(err, c.Transport.Shutdown())
		}
	}
	if err != nil {
		if err.Error() != o.failure {
			o.failure = err.Error()
			p.log.Error("the port between regions (--wan-port) can't be opened, retrying", "port", c.Port, "error", err)
		}
		return
	}
	o.cluster, o.members, o.met = c.Self.Cluster, c.Self.Members, learned
	o.entered++
	o.failure, o.said, o.gone, o.news = "", nil, nil, true
	p.log.Debug("this node is an entry node of its region", "region", p.config.Self.Region, "wan_port", c.Port)
}

// exit leaves the pool. Calls in flight may finish; other entry nodes forward new ones.
func (p *Pool) exit() {
	p.log.Debug("this node is no longer an entry node of its region", "region", p.config.Self.Region)
	p.view.Store(nowhere)
	ctx, cancel := context.WithTimeout(p.ctx, leaveTime)
	defer cancel()
	if err := p.pool.gossip.Leave(ctx); err != nil && p.ctx.Err() == nil {
		p.log.Warn("other regions were not told that this node is no longer an entry node", "error", err)
	}
	p.quit()
}

// quit closes what enter opened.
func (p *Pool) quit() {
	p.view.Store(nowhere)
	p.config.Peers.SetFarNodes(nil)
	o := &p.pool
	if o.gossip == nil {
		return
	}
	if err := o.gossip.Close(); err != nil {
		p.log.Warn("closing the WAN pool's ports failed", "error", err)
	}
	o.gossip, o.again = nil, time.Time{}
}

// tell announces this node's cluster and the region's node count if they have changed.
func (p *Pool) tell(members int) {
	o := &p.pool
	cluster, members := p.config.Peers.Self().Cluster, min(max(members, 0), maxMembers)
	if cluster == o.cluster && members == o.members {
		return
	}
	if err := o.gossip.Update(func(m *gossip.Member) { m.Cluster, m.Members = cluster, members }); err != nil {
		p.log.Warn("can't announce the node count to other regions", "error", err)
	}
	o.cluster, o.members = cluster, members
}

// see updates the view from gossip's members.
func (p *Pool) see(now time.Time) {
	o := &p.pool
	o.news, o.seen = false, now
	all := o.gossip.Members()
	p.forget(all, now)
	before := p.view.Load()
	v, troubles := look(p.config.Self, all, before)
	for _, t := range troubles {
		if !slices.Contains(o.said, t) {
			p.log.Error(string(t))
		}
	}
	o.said = troubles
	v.addresses = o.addresses(all, p.config.Self.ID)
	if !maps.Equal(v.links, before.links) {
		p.config.Peers.SetFarNodes(v.links)
	}
	p.view.Store(v)
}

// addresses returns the entry nodes' gossip addresses, this node's first.
func (p *pool) addresses(all []gossip.Member, self ring.NodeID) []string {
	var own []string
	for _, m := range all {
		if m.ID == self {
			own = append(own, net.JoinHostPort(m.Address, strconv.Itoa(m.GossipPort)))
		}
	}
	own = append(own, p.gossip.Addresses()...)
	return own[:min(len(own), maxAddresses)]
}

// forget makes gossip forget members that failed or left long ago.
func (p *Pool) forget(all []gossip.Member, now time.Time) {
	o := &p.pool
	gone := make(map[ring.NodeID]time.Time, len(o.gone))
	for _, m := range all {
		after := forgetFailed
		switch m.State {
		case gossip.Left:
			after = forgetLeft
		case gossip.Failed:
		default:
			continue
		}
		since, known := o.gone[m.ID]
		if !known {
			since = now
		}
		gone[m.ID] = since
		if m.ID != p.config.Self.ID && now.Sub(since) > after {
			o.gossip.Forget(m.ID)
		}
	}
	o.gone = gone
}

// remember passes the addresses to join after a restart to Config.Remember.
func (p *Pool) remember(learned []string) {
	if p.config.Remember == nil {
		return
	}
	o := &p.pool
	addresses := learned
	if o.gossip != nil {
		addresses = o.gossip.Addresses()
	}
	if len(addresses) > 0 && !slices.Equal(addresses, o.remembered) {
		o.remembered = slices.Clone(addresses)
		p.config.Remember(addresses)
	}
}
