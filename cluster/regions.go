package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/gossip"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/wan"
	"github.com/rlnode/rlnode/ring"
)

// Far reaches the other regions. *wan.Pool is one.
type Far interface {
	// Call calls some entry node of a region. The error wraps wan.ErrAway if nothing was sent.
	Call(ctx context.Context, region string, m peer.Method, body []byte) ([]byte, error)
	// Regions lists the other regions, by name.
	Regions() []wan.Region
	// SetEntry says whether this node is an entry node, one that other regions may call.
	SetEntry(yes bool)
	// SetMembers says how many nodes this region has.
	SetMembers(n int)
	// Changed has a value when Regions may have changed.
	Changed() <-chan struct{}
}

const (
	// attendEvery is how often a node looks whether it votes, and how many nodes there are, for other regions to know.
	attendEvery = time.Second
	// governBound is how long one look at the regions may take: what is followed may be some megabytes, and the way slow.
	governBound = 20 * time.Second
	// warnEvery is how often a node says that something about the regions is not as it should be.
	warnEvery = 30 * time.Second
)

// regional is this node's part in the rules that several regions share. Most of it is the leader's.
type regional struct {
	wake    chan struct{} // capacity 1: there may be something to do about regions
	reports reports       // of the other regions; the primary's leader's
	honours honours       // how far this region is; governRegions' alone

	// mu guards what follows.
	mu       sync.Mutex
	since    time.Time // since when this node leads, as governRegions saw it; zero: it doesn't
	changes  uint64    // of leadership, as of since
	ahead    standing  // of a region that has told of something later than what the primary has; zero: none has
	followed time.Time // when the primary region answered last, as the leader of another one was told; zero: never
	failing  time.Time // since when it does not; zero: it does
	warned   bool      // and that was told
}

// primary is the region that this node takes for the primary.
func (c *Cluster) primary() string {
	if c.cfg.Primary != "" {
		return c.cfg.Primary
	}
	return c.cfg.Self.Region
}

// secondary says that rules are written in another region than this.
func (c *Cluster) secondary() bool { return c.primary() != c.cfg.Self.Region }

// governs is nil if this node leads the primary region, and this is agreed on.
func (c *Cluster) governs() error {
	switch {
	case !c.leads():
		return fmt.Errorf("%w here", ErrNoLeader)
	case c.secondary():
		return fmt.Errorf("%w: region %q takes %q for it", ErrNoPrimary, c.cfg.Self.Region, c.primary())
	case c.State().Regions.Primary != c.cfg.Self.Region:
		return fmt.Errorf("%w: region %q is about to become the primary", ErrNoLeader, c.cfg.Self.Region)
	}
	return nil
}

// claim makes this region the primary, if it is to be and is not. Its leader calls it, after an entry of its own.
func (c *Cluster) claim(ctx context.Context) error {
	if c.secondary() || c.State().Regions.Primary == c.cfg.Self.Region {
		return nil
	}
	return c.become(ctx, 0)
}

// become makes this region the primary, with a term at least.
func (c *Cluster) become(ctx context.Context, term int64) error {
	e := agreement.Primary{Region: c.cfg.Self.Region, Term: term, When: time.Now().UnixMilli()}
	_, _ = rand.Read(e.World[:]) // it never fails
	r, err := c.propose(ctx, e)
	if err = errors.Join(err, r.Err); err != nil {
		return fmt.Errorf("become the primary region: %w", err)
	}
	c.cfg.Logger.Info("this region is the primary: rules are written here", "region", e.Region, "term", c.State().Regions.Term)
	return nil
}

// attendRegions is the loop that keeps the WAN pool informed, and says what is wrong about the regions.
func (c *Cluster) attendRegions() {
	if c.cfg.Far == nil {
		return
	}
	t := time.NewTicker(attendEvery)
	defer t.Stop()
	entry, members := false, 0
	var warned time.Time
	for {
		if now := c.votes(); now != entry {
			entry = now
			c.cfg.Far.SetEntry(now)
		}
		if now := c.present(); now != members {
			members = now
			c.cfg.Far.SetMembers(now)
		}
		if time.Since(warned) >= warnEvery && c.warnOfPrimaries() {
			warned = time.Now()
		}
		select {
		case <-t.C:
		case <-c.cfg.Far.Changed():
			poke(c.regional.wake)
		case <-c.ctx.Done():
			return
		}
	}
}

// votes says whether this node is a voter.
func (c *Cluster) votes() bool {
	conf, _ := c.configuration()
	s, ok := findServer(conf, serverID(c.cfg.Self.ID))
	return ok && s.Suffrage == raft.Voter
}

// present is how many nodes of this region are alive.
func (c *Cluster) present() int {
	n := 0
	for _, m := range c.gossipMembers() {
		if m.State == gossip.Alive {
			n++
		}
	}
	return n
}

// Entries are the other voters of this region that can be reached, which other regions can be called through.
func (c *Cluster) Entries() []ring.NodeID {
	conf, _ := c.configuration()
	var ids []ring.NodeID
	for _, s := range conf.Servers {
		if id := nodeID(s.ID); s.Suffrage == raft.Voter && id != c.cfg.Self.ID && c.cfg.Peers.Reachable(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// warnOfPrimaries says it, and that it did, if a region takes itself for the primary and this one goes by another, or if
// the one that this region goes by does not.
func (c *Cluster) warnOfPrimaries() bool {
	if !c.leads() {
		return false
	}
	warned := false
	for _, r := range c.cfg.Far.Regions() {
		switch own := c.primary(); {
		case r.Primary && r.Name != own:
			c.cfg.Logger.Warn("two regions take themselves for the primary, or this one goes by the wrong one: "+
				"their rules are not the same; give all nodes the same --primary-region",
				"primary_here", own, "also", r.Name)
			warned = true
		case r.Name == own && !r.Primary && r.Follows != "":
			c.cfg.Logger.Warn("the primary region takes another one for the primary: no rules can be written; "+
				"give all nodes the same --primary-region", "primary_here", own, "primary_there", r.Follows)
			warned = true
		}
	}
	return warned
}

// governRegions is the loop of the leader: in the primary it adds regions and records which rules all go by, in another
// region it follows the primary's rules.
func (c *Cluster) governRegions() {
	if c.cfg.Far == nil && c.secondary() {
		return // there is no way to the primary
	}
	t := time.NewTicker(c.cfg.Timings.Follow)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-c.regional.wake:
		case <-c.ctx.Done():
			return
		}
		leads, anew := c.noteLead()
		if !leads || anew {
			c.regional.reports.forget()
			c.regional.honours = honours{}
		}
		if !leads || c.State().Cluster.IsZero() {
			continue
		}
		ctx, cancel := context.WithTimeout(c.ctx, governBound)
		var err error
		if c.secondary() {
			err = c.followPrimary(ctx)
		} else {
			err = c.oversee(ctx)
		}
		cancel()
		if err != nil {
			c.cfg.Logger.Debug("the regions could not be looked after", "error", err)
		}
	}
}

// noteLead notes since when this node leads, and says whether it does, and whether it does anew.
func (c *Cluster) noteLead() (leads, anew bool) {
	leads = c.leads()
	c.lead.mu.Lock()
	changes := c.lead.changes
	c.lead.mu.Unlock()
	c.regional.mu.Lock()
	defer c.regional.mu.Unlock()
	anew = leads && (c.regional.since.IsZero() || c.regional.changes != changes)
	if !leads || anew {
		c.regional.since, c.regional.followed, c.regional.failing, c.regional.warned = time.Time{}, time.Time{}, time.Time{}, false
	}
	if anew {
		c.regional.since, c.regional.changes = time.Now(), changes
	}
	return leads, anew
}

// ledFor is for how long this node has led.
func (c *Cluster) ledFor() time.Duration {
	c.regional.mu.Lock()
	defer c.regional.mu.Unlock()
	if c.regional.since.IsZero() {
		return 0
	}
	return time.Since(c.regional.since)
}
