package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/regions"
	"github.com/rlnode/rlnode/rules"
)

// Far reaches the other regions. *regions.Pool is one.
type Far interface {
	// Call calls some entry node of a region. The error wraps regions.ErrAway if nothing was sent.
	Call(ctx context.Context, region string, m peer.Method, body []byte) ([]byte, error)
	// Regions lists the other regions, by name.
	Regions() []regions.Region
	// SetEntry says whether this node is an entry node, one that other regions may call. It may be said again.
	SetEntry(yes bool)
	// SetMembers says how many nodes this region has. It may be said again.
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
	// probeBound is how long the primary has to say that it is there, before a write is sent to it.
	probeBound = 1500 * time.Millisecond
	// removalLead is how long a leader has to have led before it knows which regions follow: each reports once a second.
	removalLead = 3 * time.Second
)

// governor is this node's part in the rules that several regions share: it writes them, follows the primary's, or, as the leader
// of the primary, sees that all regions go by them.
type governor struct {
	*core
	wake    chan struct{} // capacity 1: there may be something to do about regions
	writing chan struct{} // holds a token for the write of rules that is being proposed
	honours honours       // how far this region is; the loop's alone

	// mu guards what follows.
	mu       sync.Mutex
	since    time.Time // since when this node leads, as the loop saw it; zero: it doesn't
	changes  uint64    // of leadership, as of since
	reports  reports   // of the regions, the primary's leader's
	ahead    standing  // of a region that has something later than the primary; zero: none has
	followed time.Time // when the primary region last answered the leader of this one; zero: never
	failing  time.Time // since when it does not; zero: it does
	warned   bool      // that was logged
}

// secondary says that rules are written in another region than this.
func (c *core) secondary() bool { return c.cfg.Primary != c.cfg.Self.Region }

// governs is nil if this node leads the primary region, and this is agreed on.
func (c *governor) governs() error {
	switch {
	case !c.leads():
		return fmt.Errorf("%w here", ErrNoLeader)
	case c.secondary():
		return fmt.Errorf("%w: region %q takes %q for it", ErrNoPrimary, c.cfg.Self.Region, c.cfg.Primary)
	case c.State().Regions.Primary != c.cfg.Self.Region:
		return fmt.Errorf("%w: region %q is about to become the primary", ErrNoLeader, c.cfg.Self.Region)
	}
	return nil
}

// claim makes this region the primary, if it is to be and is not. Its leader calls it, after an entry of its own.
func (c *governor) claim(ctx context.Context) error {
	if c.secondary() || c.State().Regions.Primary == c.cfg.Self.Region {
		return nil
	}
	return c.become(ctx, 0)
}

// become makes this region the primary, with a term at least.
func (c *governor) become(ctx context.Context, term int64) error {
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
func (c *governor) attendRegions() {
	if c.cfg.Far == nil {
		return
	}
	t := time.NewTicker(attendEvery)
	defer t.Stop()
	var warned time.Time
	for {
		c.cfg.Far.SetEntry(c.votes())
		c.cfg.Far.SetMembers(len(c.alive()))
		if time.Since(warned) >= warnEvery && c.warnOfPrimaries() {
			warned = time.Now()
		}
		select {
		case <-t.C:
		case <-c.cfg.Far.Changed():
			poke(c.wake)
		case <-c.ctx.Done():
			return
		}
	}
}

// warnOfPrimaries says it, and that it did, if a region takes itself for the primary and this one goes by another, or if
// the one that this region goes by does not.
func (c *governor) warnOfPrimaries() (warned bool) {
	if !c.leads() {
		return false
	}
	for _, r := range c.cfg.Far.Regions() {
		switch own := c.cfg.Primary; {
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
func (c *governor) governRegions() {
	if c.cfg.Far == nil && c.secondary() {
		return // there is no way to the primary
	}
	c.loop(c.cfg.Timings.Follow, c.wake, func() (last bool) {
		if !c.noteLead() || c.State().Cluster.IsZero() {
			return false
		}
		ctx, cancel := context.WithTimeout(c.ctx, governBound)
		defer cancel()
		govern := c.oversee
		if c.secondary() {
			govern = c.followPrimary
		}
		if err := govern(ctx); err != nil {
			c.cfg.Logger.Debug("the regions could not be looked after", "error", err)
		}
		return false
	})
}

// noteLead says whether this node leads. What an earlier leadership knew is forgotten.
func (c *governor) noteLead() bool {
	leads := c.leads()
	changes := c.leaderChanges.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	if leads && !c.since.IsZero() && c.changes == changes {
		return true
	}
	c.since, c.followed, c.failing, c.warned = time.Time{}, time.Time{}, time.Time{}, false
	c.reports, c.honours = reports{}, honours{}
	if leads {
		c.since, c.changes = time.Now(), changes
	}
	return leads
}

// report is what a region has reported lately, as the leader of the primary.
func (c *governor) report(region string) (r report, there bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, there = c.reports[region]
	return r, there && r.fresh(time.Now())
}

// callFar calls the primary region. The error wraps ErrNoPrimary if it certainly got nothing.
func (c *governor) callFar(ctx context.Context, m peer.Method, body []byte) ([]byte, error) {
	if c.cfg.Far == nil {
		return nil, fmt.Errorf("%w: region %q, from a node that knows no other regions", ErrNoPrimary, c.cfg.Primary)
	}
	b, err := c.cfg.Far.Call(ctx, c.cfg.Primary, m, body)
	if errors.Is(err, regions.ErrAway) {
		return nil, fmt.Errorf("%w: region %q", ErrNoPrimary, c.cfg.Primary)
	}
	return b, callError(err)
}

// callPrimary brings a call that may be made twice to the leader of the primary region. The error wraps ErrNoPrimary if
// nothing was changed.
//
// From another region it is sent only when the primary has just said that it is there, so that a call which meets a link that was
// cut, and does not know it yet, is known to have changed nothing.
func (c *governor) callPrimary(ctx context.Context, m peer.Method, body []byte) ([]byte, error) {
	if !c.secondary() {
		return c.callLeader(ctx, m, body)
	}
	probe, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	if _, err := c.callFar(probe, MethodGoverns, nil); errors.Is(err, ErrUnknown) {
		// A probe changes nothing, whatever became of it.
		return nil, fmt.Errorf("%w: region %q does not answer", ErrNoPrimary, c.cfg.Primary)
	} else if err != nil {
		return nil, err
	}
	return c.callFar(ctx, m, body)
}

// serveGoverns answers a probe, as the leader.
func (c *governor) serveGoverns(context.Context, request) ([]byte, error) {
	return nil, c.governs()
}

// RemoveRegion takes a region that is gone for good out of the world, and returns the version of the rules that shares
// its limits among the others. A region that follows is refused. What it may still admit by the rules that it has, if it
// is not gone, comes on top of the limits.
func (c *Cluster) RemoveRegion(ctx context.Context, name string) (int64, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var result agreement.Result
	err := c.insist(ctx, func(again bool) (err error) {
		result, err = parseResult(c.governor.callPrimary(ctx, MethodRemoveRegion, []byte(name)))
		if again && errors.Is(result.Err, rules.ErrNotFound) {
			result.Err = nil // a call before this one did it, and its answer was lost
		}
		return err
	})
	switch {
	case err != nil:
		return 0, c.inPrimary(err)
	case errors.Is(result.Err, rules.ErrNotFound):
		return 0, fmt.Errorf("%w: region %q", ErrNotFound, name)
	case result.Err != nil:
		return 0, fmt.Errorf("%w: %w", ErrRefused, result.Err)
	}
	c.awaitFollowed(ctx, result.Version)
	return max(result.Version, rulesVersion(c.State())), nil
}

// serveRemoveRegion removes a region, as the leader of the primary.
func (c *governor) serveRemoveRegion(ctx context.Context, r request) ([]byte, error) {
	name := string(r.body)
	if err := c.governs(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	since := c.since
	c.mu.Unlock()
	_, there := c.report(name)
	switch {
	case name == "" || len(name) > agreement.MaxRegionName:
		return nil, errBadCall
	case name == c.cfg.Self.Region:
		return nil, fmt.Errorf("%w: %q is the primary region; make another one the primary first", ErrRefused, name)
	case !slices.Contains(c.State().Regions.Names, name):
		return agreement.Result{Err: fmt.Errorf("region %q: %w", name, rules.ErrNotFound)}.MarshalJSON()
	case since.IsZero() || time.Since(since) < removalLead:
		return nil, fmt.Errorf("%w that knows who is there: it has just been elected", ErrNoLeader)
	case there:
		return nil, fmt.Errorf("%w: region %q is there and follows; stop its nodes first", ErrRefused, name)
	}
	result, err := c.propose(ctx, agreement.Region{Name: name, Remove: true, By: "remove", When: time.Now().UnixMilli()})
	if err != nil {
		return nil, err
	}
	if result.Err == nil {
		c.mu.Lock()
		delete(c.reports, name)
		c.mu.Unlock()
		result.Version = rulesVersion(c.State())
		c.cfg.Logger.Info("a region is removed", "region", name, "rules_version", result.Version)
		poke(c.wake)
	}
	return result.MarshalJSON()
}
