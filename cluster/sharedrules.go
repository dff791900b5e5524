package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/rules/document"
)

const (
	// informInterval is how often a node updates what it announces to other
	// regions: whether it votes, and how many nodes its region has.
	informInterval = time.Second
	// regionsRoundTimeout bounds one round of runRegionsLoop, which may transfer
	// some megabytes over a slow link.
	regionsRoundTimeout = 20 * time.Second
	// minLeadToRemove is how long a leader must have led to know which regions
	// follow: each one reports once a second.
	minLeadToRemove = 3 * time.Second
)

// sharedRules is this node's part in the rules that regions share. It proposes
// writes. The leader of the primary makes sure that all regions use the rules;
// the leader of a secondary region follows the primary's rules.
type sharedRules struct {
	*core
	wake      chan struct{}  // capacity 1: runRegionsLoop may have work
	writeSlot chan struct{}  // holds an element while a write of rules is being proposed
	progress  honourProgress // of this region; only runRegionsLoop uses it
	paging    entriesPaging  // only runRegionsLoop uses it

	// mu guards the fields below.
	mu                  sync.Mutex
	leadingSince        time.Time     // when runRegionsLoop saw this node begin to lead; zero while it doesn't
	leaderChangesSeen   uint64        // leaderChanges as of leadingSince
	reports             regionReports // from the regions, on the primary's leader
	regionAhead         rulesPosition // of a region that is ahead of the primary; zero if none is
	primaryAnsweredAt   time.Time     // when the primary region last answered this leader; zero if never
	primaryFailingSince time.Time     // when the primary region stopped answering; zero while it answers
	failureLogged       bool          // it was logged that the primary does not answer
	clocksWarned        time.Time     // when it was last logged that the regions' clocks differ; zero if never
}

// informRegions is the loop that keeps the WAN pool informed and warns about misconfigured regions.
func (sr *sharedRules) informRegions() {
	if sr.config.OtherRegions == nil {
		return
	}

	t := time.NewTicker(informInterval)
	defer t.Stop()

	var warned time.Time
	for {
		sr.config.OtherRegions.SetEntryNode(sr.isVoter())
		sr.config.OtherRegions.SetRegionSize(len(sr.aliveNodes()))

		if time.Since(warned) >= warnInterval && sr.warnAboutPrimaries() {
			warned = time.Now()
		}

		select {
		case <-t.C:
		case <-sr.config.OtherRegions.Changed():
			wake.Signal(sr.wake)
		case <-sr.ctx.Done():
			return
		}
	}
}

// warnAboutPrimaries warns if a region considers itself the primary and this
// one follows another, or if the region that this one follows considers another
// the primary. It reports whether it warned.
func (sr *sharedRules) warnAboutPrimaries() (warned bool) {
	if !sr.leads() {
		return false
	}

	for _, r := range sr.config.OtherRegions.Regions() {
		primary := sr.config.Primary
		switch {
		case r.Primary && r.Name != primary:
			sr.config.Logger.Warn("two regions claim to be the primary, or this one follows the wrong region: "+
				"their rules differ; give all nodes the same --primary-region",
				"primary_here", primary, "also", r.Name)
			warned = true
		case r.Name == primary && !r.Primary && r.Follows != "":
			sr.config.Logger.Warn("the primary region considers another region the primary: no rules can be written; "+
				"give all nodes the same --primary-region", "primary_here", primary, "primary_there", r.Follows)
			warned = true
		}
	}

	return warned
}

// runRegionsLoop is the leader's loop. In the primary, it adds regions and
// records which rules all of them use. In a secondary region, it follows the
// primary's rules.
func (sr *sharedRules) runRegionsLoop() {
	if sr.config.OtherRegions == nil && sr.isSecondary() {
		return // the primary can't be reached
	}

	sr.loop(sr.config.Timings.Follow, sr.wake, func() (last bool) {
		if !sr.trackLeadership() || sr.State().Cluster.IsZero() {
			return false
		}

		ctx, cancel := context.WithTimeout(sr.ctx, regionsRoundTimeout)
		defer cancel()

		round := sr.runPrimaryRound
		if sr.isSecondary() {
			round = sr.followPrimary
		}
		if err := round(ctx); err != nil {
			sr.config.Logger.Debug("a round with the other regions failed", "error", err)
		}

		return false
	})
}

// trackLeadership reports whether this node leads. When this node has lost the
// lead, or won it again, it resets what was gathered during the earlier lead.
func (sr *sharedRules) trackLeadership() bool {
	leads := sr.leads()
	changes := sr.leaderChanges.Load()
	sr.mu.Lock()
	defer sr.mu.Unlock()

	// The count shows a lead that was lost and won again between two looks.
	// Other leaders may have acted meanwhile.
	if leads && !sr.leadingSince.IsZero() && sr.leaderChangesSeen == changes {
		return true
	}

	sr.leadingSince = time.Time{}
	sr.primaryAnsweredAt = time.Time{}
	sr.primaryFailingSince = time.Time{}
	sr.failureLogged = false
	sr.reports = regionReports{}
	sr.progress = honourProgress{}
	sr.paging = entriesPaging{}

	if leads {
		sr.leadingSince = time.Now()
		sr.leaderChangesSeen = changes
	}

	return leads
}

// RemoveRegion removes a region that is gone for good. It returns the version
// of the rules that divides the limits among the other regions. It refuses if
// the region still follows the primary. If the region still runs, what it
// admits by its old rules comes on top of the limits. The error wraps
// [ErrNotFound] or [ErrRefused], or is one that [Cluster.Write] returns.
func (c *Cluster) RemoveRegion(ctx context.Context, name string) (int64, error) {
	ctx, cancel := c.withWriteTimeout(ctx)
	defer cancel()

	var result agreement.Result
	err := c.retry(ctx, func(unknown bool) (err error) {
		result, err = parseResult(c.sharedRules.callPrimary(ctx, MethodRemoveRegion, []byte(name)))
		if unknown && errors.Is(result.Err, document.ErrNotFound) {
			result.Err = nil // an earlier attempt removed it, and the reply was lost
		}
		return err
	})

	switch {
	case err != nil:
		return 0, c.primaryError(err)
	case errors.Is(result.Err, document.ErrNotFound):
		return 0, fmt.Errorf("%w: region %q", ErrNotFound, name)
	case result.Err != nil:
		return 0, fmt.Errorf("%w: %w", ErrRefused, result.Err)
	}

	c.awaitPrimaryVersion(ctx, result.Version)
	return max(result.Version, rulesVersion(c.State())), nil
}

// serveRemoveRegion removes a region on the leader of the primary.
func (sr *sharedRules) serveRemoveRegion(ctx context.Context, r request) ([]byte, error) {
	name := string(r.body)
	if err := sr.requirePrimaryLeader(); err != nil {
		return nil, err
	}

	sr.mu.Lock()
	since := sr.leadingSince
	sr.mu.Unlock()

	_, follows := sr.report(name)
	switch {
	case name == "" || len(name) > agreement.MaxRegionName:
		return nil, errBadCall
	case name == sr.config.Self.Region:
		return nil, fmt.Errorf("%w: %q is the primary region; make another one the primary first", ErrRefused, name)
	case !slices.Contains(sr.State().Regions.Committed, name):
		return agreement.Result{Err: fmt.Errorf("region %q: %w", name, document.ErrNotFound)}.MarshalJSON()
	case since.IsZero() || time.Since(since) < minLeadToRemove:
		return nil,
			fmt.Errorf("%w: the leader was elected just now and does not know yet which regions follow",
				ErrLeaderUnavailable)
	case follows:
		return nil, fmt.Errorf("%w: region %q still follows; stop its nodes first", ErrRefused, name)
	}

	result, err := sr.propose(ctx,
		agreement.ChangeRegion{Name: name, Remove: true, By: "remove", When: time.Now().UnixMilli()})
	if err != nil {
		return nil, err
	}

	if result.Err == nil {
		sr.mu.Lock()
		delete(sr.reports, name)
		sr.mu.Unlock()

		result.Version = rulesVersion(sr.State())
		sr.config.Logger.Info("a region was removed", "region", name, "rules_version", result.Version)
		wake.Signal(sr.wake)
	}

	return result.MarshalJSON()
}
