package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/peer"
	"github.com/rlnode/rlnode/cluster/regions"
)

const (
	// probeTimeout is how long the primary has to answer a probe before a write is sent to it.
	probeTimeout = 1500 * time.Millisecond
	// awaitPrimaryBound bounds how long a write waits for this region to adopt a
	// version that the primary has agreed on.
	awaitPrimaryBound = 2 * time.Second
)

// isSecondary reports whether another region is the primary.
func (c *core) isSecondary() bool { return c.config.Primary != c.config.Self.Region }

// requirePrimaryLeader returns an error unless this node leads the primary
// region and the region has agreed on that role.
func (sr *sharedRules) requirePrimaryLeader() error {
	switch {
	case !sr.leads():
		return fmt.Errorf("%w: this node does not lead", ErrLeaderUnavailable)
	case sr.isSecondary():
		return fmt.Errorf("%w: region %q considers %q the primary", ErrNoPrimary,
			sr.config.Self.Region, sr.config.Primary)
	case sr.State().Regions.Primary != sr.config.Self.Region:
		return fmt.Errorf("%w: region %q is about to become the primary", ErrLeaderUnavailable, sr.config.Self.Region)
	}
	return nil
}

// claimPrimary makes this region the primary if it is configured to be and
// isn't yet. The leader calls it after it has applied an entry of its own.
func (sr *sharedRules) claimPrimary(ctx context.Context) error {
	if sr.isSecondary() || sr.State().Regions.Primary == sr.config.Self.Region {
		return nil
	}
	return sr.becomePrimary(ctx, 0)
}

// becomePrimary makes this region the primary, in at least the given primary epoch.
func (sr *sharedRules) becomePrimary(ctx context.Context, primaryEpoch int64) error {
	e := agreement.SetPrimary{Region: sr.config.Self.Region, PrimaryEpoch: primaryEpoch, When: time.Now().UnixMilli()}
	_, _ = rand.Read(e.World[:]) // never fails
	before := sr.State().Regions.Primary
	_, err := sr.agree(ctx, e)
	if err != nil {
		return fmt.Errorf("become the primary region: %w", err)
	}

	level := slog.LevelInfo
	if before == "" { // a new cluster
		level = slog.LevelDebug
	}

	sr.config.Logger.Log(ctx, level, "this region is the primary: rules are written here", "region",
		e.Region, "primary_epoch", sr.State().Regions.PrimaryEpoch)
	return nil
}

// callPrimary makes an idempotent call to the leader of the primary region. The
// error wraps ErrNoPrimary if nothing was changed.
//
// From a secondary region, it sends the call only after the primary has
// answered a probe. If the link was cut and no node has noticed yet, the probe
// fails instead of the call, so the caller knows that nothing was changed.
func (sr *sharedRules) callPrimary(ctx context.Context, m peer.Method, body []byte) ([]byte, error) {
	if !sr.isSecondary() {
		return sr.callLeader(ctx, m, body)
	}

	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := sr.callPrimaryRegion(probe, MethodProbePrimary, nil)
	if errors.Is(err, ErrOutcomeUnknown) {
		// A probe changes nothing, even if its outcome is unknown.
		return nil, fmt.Errorf("%w: region %q does not answer", ErrNoPrimary, sr.config.Primary)
	}
	if err != nil {
		return nil, err
	}

	return sr.callPrimaryRegion(ctx, m, body)
}

// callPrimaryRegion calls any entry node of the primary region, which must not
// be this one. The error wraps ErrNoPrimary if the call certainly did not
// arrive.
func (sr *sharedRules) callPrimaryRegion(ctx context.Context, m peer.Method, body []byte) ([]byte, error) {
	if sr.config.OtherRegions == nil {
		return nil, fmt.Errorf("%w: region %q, from a node that knows no other regions",
			ErrNoPrimary, sr.config.Primary)
	}

	b, err := sr.config.OtherRegions.Call(ctx, sr.config.Primary, m, body)
	if errors.Is(err, regions.ErrNoRoute) {
		return nil, fmt.Errorf("%w: region %q", ErrNoPrimary, sr.config.Primary)
	}
	return b, callError(err)
}

// primaryError adds the primary region's name to the error of a call to it.
func (c *core) primaryError(err error) error {
	switch {
	case !c.isSecondary():
	case errors.Is(err, ErrOutcomeUnknown):
		return fmt.Errorf("%w: the primary region %q did not answer: %w", ErrOutcomeUnknown, c.config.Primary, err)
	case errors.Is(err, ErrLeaderUnavailable):
		return fmt.Errorf("%w: region %q has no leader: %w", ErrNoPrimary, c.config.Primary, err)
	}
	return err
}

// serveProbe answers a probe on the leader.
func (sr *sharedRules) serveProbe(context.Context, request) ([]byte, error) {
	return nil, sr.requirePrimaryLeader()
}

// hasPrimaryRules reports whether a state's rules are the primary's.
func (c *core) hasPrimaryRules(s *agreement.State) bool { return s.Regions.Primary == c.config.Primary }

// awaitPrimaryVersion waits until a version of the primary's rules is in force
// on this node, but at most for awaitPrimaryBound.
func (c *core) awaitPrimaryVersion(ctx context.Context, version int64) {
	ctx, cancel := context.WithTimeout(ctx, awaitPrimaryBound)
	defer cancel()

	// The leader of a secondary region learns of the version only by asking the
	// primary, so it should ask now. In the primary, the leader has agreed on it
	// itself.
	if c.isSecondary() {
		if err := c.callJSON(ctx, toLeader, MethodFollowNow, noBody{}, &noBody{}); err != nil {
			c.config.Logger.Debug("can't notify the leader of a new version", "error", err)
		}
	}

	err := c.awaitState(ctx, func(s *agreement.State) bool { return c.hasPrimaryRules(s) && rulesVersion(s) >= version })
	if err != nil {
		c.config.Logger.Info("a version written through this node is not in force here yet", "rules_version", version)
	}
}
