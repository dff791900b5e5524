package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
	"github.com/rlnode/rlnode/rules"
)

// retryPause is between two attempts of a write: an election takes some of them.
const retryPause = 50 * time.Millisecond

// followedBound is how long a write that the primary has made waits for being followed here.
const followedBound = 2 * time.Second

// WriteOptions say on what terms a change is made.
type WriteOptions struct {
	IfMatch int64  // the version that must be in force; 0: any
	By      string // who makes it
}

// Write changes the rules, and returns when the new version is in force on this node. The error is of type
// [rules.Errors], or wraps [rules.ErrConflict] or [rules.ErrNotFound], or [ErrNoLeader] if nothing was changed because
// nobody could agree, [ErrNoPrimary] if nothing was changed because the region where rules are written is away, or
// [ErrUnknown]. It takes Timings.Write at most if ctx has no deadline.
//
// In another region than the primary the change is made there. Then it is waited for only for a moment: the version is the
// primary's, whether or not it has come here yet.
//
// The entry carries a number that the cluster remembers, so it is safe to propose it again when the outcome of an
// attempt is unknown.
func (c *Cluster) Write(ctx context.Context, change rules.Change, o WriteOptions) (int64, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	when := time.Now()
	if change.Part == rules.WholeDocument {
		// A document is wrong or not whatever is in force; a piece depends on it, and the leader decides.
		if _, err := rules.NewHistory().Write(rules.Write{Change: change, By: o.By, When: when}); err != nil {
			return 0, err
		}
	}
	e := agreement.Rules{Change: change, IfMatch: o.IfMatch, By: o.By, When: when}
	_, _ = rand.Read(e.Request[:]) // it never fails
	b, err := c.cfg.Build.Encode(e)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if c.secondary() && o.IfMatch != 0 && !c.follows(c.State()) {
		return 0, fmt.Errorf("%w: this region has not seen the primary's rules yet, version %d is its own", rules.ErrConflict, o.IfMatch)
	}
	var result agreement.Result
	if err := c.insist(ctx, func(bool) (err error) {
		result, err = parseResult(c.governor.callPrimary(ctx, MethodPropose, b))
		return err
	}); err != nil {
		return 0, c.inPrimary(err)
	}
	if result.Err != nil {
		return 0, result.Err
	}
	if c.secondary() {
		c.awaitFollowed(ctx, result.Version)
		return result.Version, nil
	}
	if c.wait(ctx, func(s *agreement.State) bool { return rulesVersion(s) >= result.Version }) != nil {
		return 0, fmt.Errorf("%w here: version %d was agreed on, but is not in force on this node yet", ErrUnknown, result.Version)
	}
	return result.Version, nil
}

// bound gives ctx a deadline if it has none.
func (c *core) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.Timings.Write)
}

// inPrimary is what an error of a call to the primary region means.
func (c *core) inPrimary(err error) error {
	switch {
	case !c.secondary():
	case errors.Is(err, ErrUnknown):
		return fmt.Errorf("%w: the primary region %q did not answer: %w", ErrUnknown, c.cfg.Primary, err)
	case errors.Is(err, ErrNoLeader):
		return fmt.Errorf("%w: region %q has no leader: %w", ErrNoPrimary, c.cfg.Primary, err)
	}
	return err
}

// follows says whether a state's rules are the primary's.
func (c *core) follows(s *agreement.State) bool { return s.Regions.Primary == c.cfg.Primary }

// awaitFollowed waits for a moment until a version of the primary's is in force here.
func (c *core) awaitFollowed(ctx context.Context, version int64) {
	ctx, cancel := context.WithTimeout(ctx, followedBound)
	defer cancel()
	if c.secondary() { // else its own leader has agreed on it
		if err := c.callJSON(ctx, toLeader, MethodFollowNow, done{}, &done{}); err != nil {
			c.cfg.Logger.Debug("the leader does not know that there is something to follow", "error", err)
		}
	}
	err := c.wait(ctx, func(s *agreement.State) bool { return c.follows(s) && rulesVersion(s) >= version })
	if err != nil {
		c.cfg.Logger.Info("a version that was written here is not followed here yet", "rules_version", version)
	}
}

// serveFollowNow has the leader of a region that is not the primary ask what is new, without waiting for that.
func (c *governor) serveFollowNow(context.Context, done) (done, error) {
	if !c.leads() {
		return done{}, fmt.Errorf("%w here", ErrNoLeader)
	}
	poke(c.wake)
	return done{}, nil
}

// servePropose proposes a write of rules as the leader, one at a time. What it leads to is worked out beforehand: Raft's
// goroutine, which authority waits for, would be held up by a large document.
func (c *governor) servePropose(ctx context.Context, r request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timings.Write)
	defer cancel()
	e, err := c.cfg.Build.Decode(r.body)
	write, ok := e.(agreement.Rules)
	if err != nil || !ok {
		return nil, errBadCall // whatever else is agreed, the leader proposes by itself
	}
	if err := c.governs(); err != nil {
		return nil, err
	}
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrNoLeader, ctx.Err())
	}
	// Each write waits until a majority of the ring goes by the one before. So however many there are, nobody is left behind who
	// is no slower than most.
	if !c.giver.Followed(ctx, c.machine.ruled.Load()) {
		return nil, fmt.Errorf("%w: most nodes have not applied the rules that are in force yet", ErrNoLeader)
	}
	// What is written now is to be shared with the regions that are there now, and not from the next window on. A write
	// for a certain version is for certain regions, too.
	if write.IfMatch == 0 {
		if err := c.addRegions(ctx, c.newcomers()); err != nil {
			c.cfg.Logger.Info("a region is not added before a write", "error", err)
		}
	}
	result, err := c.propose(ctx, write)
	if err != nil {
		return nil, err
	}
	return result.MarshalJSON()
}

// parseResult reads an agreement.Result. What can't be read was done all the same: its outcome is unknown.
func parseResult(b []byte, err error) (r agreement.Result, _ error) {
	if err == nil {
		if err = json.Unmarshal(b, &r); err != nil {
			err = fmt.Errorf("%w: %w", ErrUnknown, err)
		}
	}
	return r, err
}

// Catch returns when this node has applied all that had been agreed on when it was called. The error wraps ErrNoLeader,
// or is the context's. It takes Timings.Write at most if ctx has no deadline.
func (c *Cluster) Catch(ctx context.Context) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var index uint64
	err := c.insist(ctx, func(bool) error {
		err := c.callJSON(ctx, toLeader, authority.MethodCommitted, done{}, &index)
		if err != nil {
			err = &agreement.Told{Text: err.Error(), Kind: ErrNoLeader} // it is only a question
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := c.wait(ctx, func(s *agreement.State) bool { return s.Index >= index }); err != nil {
		return fmt.Errorf("wait for what was agreed: %w", err)
	}
	return nil
}

// begin is the loop that founds the cluster and seeds its rules, on whichever node leads first: a founder may die
// between its first entries.
func (c *Cluster) begin() {
	c.loop(c.cfg.Timings.Founding, c.found, func() (last bool) {
		if !c.leads() {
			return false
		}
		err := c.beginOnce()
		if err != nil {
			c.cfg.Logger.Debug("the cluster has not begun", "error", err)
		}
		return err == nil
	})
}

func (c *Cluster) beginOnce() error {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.Timings.Write)
	defer cancel()
	// Only after an entry of its own has been applied does a leader know what there is.
	if _, err := c.propose(ctx, agreement.Empty{}); err != nil {
		return err
	}
	if c.State().Cluster.IsZero() {
		e := agreement.Found{Secret: make([]byte, 32)}
		if conf, _ := c.configuration(); len(conf.Servers) == 1 {
			e.Level = c.cfg.Build.Level // there is nobody who could know less
		}
		_, _ = rand.Read(e.Cluster[:]) // these never fail
		_, _ = rand.Read(e.Secret)
		if _, err := c.propose(ctx, e); err != nil {
			return err
		}
	}
	if err := c.governor.claim(ctx); err != nil {
		return err
	}
	if rulesVersion(c.State()) != 0 || c.cfg.Seed == nil {
		return nil
	}
	text, by := c.cfg.Seed()
	r, err := c.propose(ctx, agreement.Rules{Change: rules.Change{Body: text}, OnlyFirst: true, By: by, When: time.Now()})
	if err != nil {
		return err
	}
	if r.Err != nil && !errors.Is(r.Err, rules.ErrConflict) {
		c.cfg.Logger.Error("the first rules are not valid; write others", "error", r.Err)
	}
	return nil
}
