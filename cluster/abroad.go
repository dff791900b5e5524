package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/wan"
	"github.com/rlnode/rlnode/rules"
)

const (
	// probeBound is how long the primary has to say that it is there, before a write is sent to it.
	probeBound = 1500 * time.Millisecond
	// followedBound is how long a write that the primary has made waits for being followed here.
	followedBound = 2 * time.Second
)

// foreign are the methods that other regions may call. All of them are the leader's.
var foreign = [...]peer.Method{MethodFollow, MethodGoverns, MethodWriteFar, MethodRemoveRegion}

// callFar calls the primary region. The error wraps ErrNoPrimary if it certainly got nothing.
func (c *Cluster) callFar(ctx context.Context, m peer.Method, body []byte) ([]byte, error) {
	if c.cfg.Far == nil {
		return nil, fmt.Errorf("%w: region %q, from a node that knows no other regions", ErrNoPrimary, c.primary())
	}
	b, err := c.cfg.Far.Call(ctx, c.primary(), m, body)
	if errors.Is(err, wan.ErrAway) {
		return nil, fmt.Errorf("%w: region %q", ErrNoPrimary, c.primary())
	}
	return b, callError(err)
}

// agreeFar has an entry agreed on in the primary region; it may be proposed there more than once. The error wraps
// ErrNoPrimary if nothing was changed.
//
// A write is sent only when the primary has just said that it is there, so that one which meets a link that was cut, and
// does not know it yet, is known to have changed nothing.
func (c *Cluster) agreeFar(ctx context.Context, m peer.Method, body []byte) (agreement.Result, error) {
	unknown := false
	for {
		err := c.probe(ctx)
		if err == nil {
			var b []byte
			if b, err = c.callFar(ctx, m, body); err == nil {
				return parseResult(b)
			}
			unknown = unknown || errors.Is(err, ErrUnknown)
		}
		again := errors.Is(err, ErrNoLeader) || errors.Is(err, ErrUnknown)
		if again && c.pause(ctx) {
			continue
		}
		switch {
		case unknown:
			return agreement.Result{}, fmt.Errorf("%w: the primary region %q did not answer: %w", ErrUnknown, c.primary(), err)
		case again:
			return agreement.Result{}, fmt.Errorf("%w: region %q has no leader: %w", ErrNoPrimary, c.primary(), err)
		}
		return agreement.Result{}, err
	}
}

// pause waits a moment before another attempt, and says whether there is time for one.
func (c *Cluster) pause(ctx context.Context) bool {
	t := time.NewTimer(retryPause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

// probe asks the primary whether it is there, leads, and takes itself for the primary. The error wraps ErrNoPrimary if it
// does not answer.
func (c *Cluster) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	_, err := c.callFar(ctx, MethodGoverns, nil)
	if errors.Is(err, ErrUnknown) {
		// A probe changes nothing, whatever became of it.
		return fmt.Errorf("%w: region %q does not answer", ErrNoPrimary, c.primary())
	}
	return err
}

// serveGoverns answers a probe, as the leader.
func (c *Cluster) serveGoverns(context.Context, request) ([]byte, error) {
	return nil, c.governs()
}

// serveWriteFar proposes a write of rules that comes from another region, as the leader of the primary.
func (c *Cluster) serveWriteFar(ctx context.Context, r request) ([]byte, error) {
	if err := c.governs(); err != nil {
		return nil, err
	}
	return c.servePropose(ctx, r)
}

// writeFar has the primary region make a write, and waits a moment until it is followed here. The version is that of the
// primary, whether or not it has come here yet.
func (c *Cluster) writeFar(ctx context.Context, entry []byte, o WriteOptions) (int64, error) {
	if o.IfMatch != 0 && !c.follows(c.State()) {
		return 0, fmt.Errorf("%w: this region has not seen the primary's rules yet, version %d is its own", rules.ErrConflict, o.IfMatch)
	}
	result, err := c.agreeFar(ctx, MethodWriteFar, entry)
	if err = errors.Join(err, result.Err); err != nil {
		return 0, err
	}
	c.awaitFollowed(ctx, result.Version)
	return result.Version, nil
}

// follows says whether a state's rules are the primary's.
func (c *Cluster) follows(s *agreement.State) bool { return s.Regions.Primary == c.primary() }

// awaitFollowed waits until a version of the primary's is in force here, for a moment.
func (c *Cluster) awaitFollowed(ctx context.Context, version int64) {
	ctx, cancel := context.WithTimeout(ctx, followedBound)
	defer cancel()
	if !c.secondary() {
		// Its own leader has agreed on it.
	} else if _, err := c.callLeader(ctx, MethodFollowNow, nil); err != nil {
		c.cfg.Logger.Debug("the leader was not told that there is something to follow", "error", err)
	}
	err := c.wait(ctx, func(s *agreement.State) bool { return c.follows(s) && rulesVersion(s) >= version })
	if err != nil {
		c.cfg.Logger.Info("a version that was written here is not followed here yet", "rules_version", version)
	}
}

// serveFollowNow has the leader of a region that is not the primary ask what is new, without waiting for that.
func (c *Cluster) serveFollowNow(context.Context, request) ([]byte, error) {
	if !c.leads() {
		return nil, fmt.Errorf("%w here", ErrNoLeader)
	}
	poke(c.regional.wake)
	return nil, nil
}

// RemoveRegion takes a region that is gone for good out of the world, and returns the version of the rules that shares
// its limits among the others. A region that follows is refused. What it may still admit by the rules that it has, if it
// is not gone, comes on top of the limits.
func (c *Cluster) RemoveRegion(ctx context.Context, name string) (int64, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	ask := func() (agreement.Result, error) { return c.agreeFar(ctx, MethodRemoveRegion, []byte(name)) }
	if !c.secondary() {
		ask = func() (agreement.Result, error) {
			b, err := c.callLeader(ctx, MethodRemoveRegion, []byte(name))
			if err != nil {
				return agreement.Result{}, err
			}
			return parseResult(b)
		}
	}
	for asked := false; ; {
		result, err := ask()
		switch {
		case err == nil && errors.Is(result.Err, rules.ErrNotFound) && asked, err == nil && result.Err == nil:
			// In the first case a call before this one did it, and its answer was lost.
			c.awaitFollowed(ctx, result.Version)
			return max(result.Version, rulesVersion(c.State())), nil
		case err == nil && errors.Is(result.Err, rules.ErrNotFound):
			return 0, fmt.Errorf("%w: region %q", ErrNotFound, name)
		case err == nil:
			return 0, fmt.Errorf("%w: %w", ErrRefused, result.Err)
		}
		asked = asked || errors.Is(err, ErrUnknown)
		if again := errors.Is(err, ErrUnknown) || errors.Is(err, ErrNoLeader); !again || !c.pause(ctx) {
			return 0, err
		}
	}
}

// settleLead is how long a leader has to have led before it knows which regions follow: each tells it once a second.
const settleLead = 3 * time.Second

// serveRemoveRegion removes a region, as the leader of the primary.
func (c *Cluster) serveRemoveRegion(ctx context.Context, r request) ([]byte, error) {
	name := string(r.body)
	if err := c.governs(); err != nil {
		return nil, err
	}
	switch {
	case name == "" || len(name) > agreement.MaxRegionName:
		return nil, errBadCall
	case name == c.cfg.Self.Region:
		return nil, fmt.Errorf("%w: %q is the primary region; make another one the primary first", ErrRefused, name)
	case !slices.Contains(c.State().Regions.Names, name):
		return appendResult(agreement.Result{Err: fmt.Errorf("region %q: %w", name, rules.ErrNotFound)})
	case c.ledFor() < settleLead:
		return nil, fmt.Errorf("%w that knows who is there: it has just been elected", ErrNoLeader)
	case c.regional.reports.heard(name, time.Now()):
		return nil, fmt.Errorf("%w: region %q is there and follows; stop its nodes first", ErrRefused, name)
	}
	result, err := c.propose(ctx, agreement.Region{Name: name, Remove: true, By: "remove", When: time.Now().UnixMilli()})
	if err != nil {
		return nil, err
	}
	if result.Err == nil {
		c.regional.reports.drop(name)
		result.Version = rulesVersion(c.State())
		c.cfg.Logger.Info("a region is removed", "region", name, "rules_version", result.Version)
		poke(c.regional.wake)
	}
	return appendResult(result)
}
