package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// Levels are the agreed feature level and the levels that the members know.
type Levels struct {
	Agreed agreement.Level `json:"level"`
	// Highest is the highest level that all members know. The agreed level can be raised up to it.
	Highest agreement.Level `json:"highest"`
	Members []MemberLevel   `json:"members"` // by name
}

// MemberLevel is the feature level that a member's last process knows. Members
// are Raft's servers and the nodes that were in a ring, alive or not.
type MemberLevel struct {
	Name    string          `json:"name"`
	ID      ring.NodeID     `json:"id"`
	Knows   agreement.Level `json:"knows"` // 0: it never had authority
	Release string          `json:"release"`
	Zones   string          `json:"zones"` // version of its time zone data
}

// Levels returns the feature levels as this node knows them.
func (c *Cluster) Levels() Levels { return c.tracker.levels(c.StateInUse()) }

func (nt *nodeTracker) levels(s *agreement.State) Levels {
	l := Levels{Agreed: s.Level}
	for _, m := range nt.listMembers(s) {
		p := s.Processes[m.ID]
		if m.inRaft || m.inState {
			l.Members = append(l.Members,
				MemberLevel{ID: m.ID, Name: m.Name, Knows: s.KnownLevel(m.ID), Release: p.Release, Zones: p.Zones})
		}
	}

	for i, m := range l.Members {
		if i == 0 || m.Knows < l.Highest {
			l.Highest = m.Knows
		}
	}

	l.Highest = max(l.Highest, l.Agreed)
	return l
}

// Raise permanently raises the feature level; 0 means the highest level that
// all members know. It returns the agreed level. The error wraps
// ErrLeaderUnavailable or ErrOutcomeUnknown, or ErrRefused, for example if a
// member does not know the level.
func (c *Cluster) Raise(ctx context.Context, to agreement.Level) (agreement.Level, error) {
	ctx, cancel := c.withWriteTimeout(ctx)
	defer cancel()
	var level agreement.Level
	err := c.retry(ctx, func(bool) error { return c.callJSON(ctx, toLeader, MethodRaise, to, &level) })
	if err != nil {
		return 0, err
	}
	return level, c.awaitState(ctx, func(s *agreement.State) bool { return s.Level >= level })
}

// raise raises the feature level on the leader; see Cluster.Raise.
func (rc *reconciler) raise(ctx context.Context, to agreement.Level) (agreement.Level, error) {
	if !rc.leads() {
		return 0, fmt.Errorf("%w: this node does not lead", ErrLeaderUnavailable)
	}

	select {
	case rc.changeSlot <- struct{}{}:
		defer func() { <-rc.changeSlot }()
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %w", ErrLeaderUnavailable, ctx.Err())
	}

	// A leader knows the current state only after applying an entry of its own.
	if _, err := rc.propose(ctx, agreement.Empty{}); err != nil {
		return 0, err
	}

	l := rc.tracker.levels(rc.State())
	switch {
	case to == 0:
		to = l.Highest
	case to < l.Agreed:
		return 0, fmt.Errorf("%w: the feature level is %d and can't be lowered", ErrRefused, l.Agreed)
	}

	if to == l.Agreed {
		return to, nil
	}
	if err := rc.checkRaise(l, to); err != nil {
		return 0, err
	}

	r, err := rc.propose(ctx, agreement.Raise{Level: to})
	if err != nil {
		return 0, err
	}
	if r.Err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, r.Err)
	}

	rc.config.Logger.Info("the feature level was raised: older releases can no longer join", "level", to)
	return to, nil
}

// checkRaise returns an error that names a node or region that does not know
// the level. Regions that follow this one's rules must reach the level first,
// because their nodes read what this region writes.
func (rc *reconciler) checkRaise(l Levels, to agreement.Level) error {
	for _, m := range l.Members {
		if m.Knows < to {
			return fmt.Errorf("%w: %s knows feature level %d, not %d (release %q): run a later release on it, or remove it if it is gone",
				ErrRefused, m.Name, m.Knows, to, m.Release)
		}
	}

	if rc.isSecondary() {
		return nil
	}

	for _, name := range rc.State().Regions.Committed {
		r, fresh := rc.sharedRules.report(name)
		if name != rc.config.Self.Region && (!fresh || r.level < to) {
			return fmt.Errorf("%w: region %q is not known to be at feature level %d: raise it there first, or remove the region if it is gone",
				ErrRefused, name, to)
		}
	}

	return nil
}

// pendingRaise is the highest level that all members know, and when this leader
// first saw that they do.
type pendingRaise struct {
	to    agreement.Level
	since time.Time
}

// raiseWhenDue raises the level once all members have known a higher one for
// Timings.RaiseAfter. Until then, the operator can roll back to an older release.
func (rc *reconciler) raiseWhenDue(r *pendingRaise) {
	l := rc.tracker.levels(rc.State())
	if l.Highest <= l.Agreed || rc.checkRaise(l, l.Highest) != nil {
		*r = pendingRaise{}
		return
	}

	if r.to != l.Highest {
		*r = pendingRaise{l.Highest, time.Now()}
	}

	if time.Since(r.since) < rc.config.Timings.RaiseAfter {
		return
	}

	ctx, cancel := context.WithTimeout(rc.ctx, changeTimeout)
	defer cancel()

	if _, err := rc.raise(ctx, r.to); err != nil {
		rc.config.Logger.Info("can't raise the feature level", "level", r.to, "error", err)
	}
}
