package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
)

const (
	// A version is recorded with the latest reported clock plus recordMargin. A node
	// that was cut off right after its report may use the older version until its
	// authority ends (EndingWait); the extra second is for its last check.
	recordMargin = authority.EndingWait + time.Second
	// maxMarksPerRound bounds the marks proposed in one round. The next round
	// follows within a second.
	maxMarksPerRound = 8
	// warnInterval is the minimum interval between warnings about misconfigured regions.
	warnInterval = 30 * time.Second
)

// runPrimaryRound is one round on the primary's leader: it adds regions that
// have begun to follow, checks which version of the rules this region honours,
// and records versions that all regions honour.
func (sr *sharedRules) runPrimaryRound(ctx context.Context) error {
	if err := sr.requirePrimaryLeader(); err != nil {
		return err
	}
	if err := sr.overtakeRegionAhead(ctx); err != nil {
		return err
	}

	s, honoured, clocks := sr.confirmHonoured(ctx)
	ours := followRequest{rulesPosition: positionOf(s), Honoured: honoured, Clocks: clocks, Level: s.Level}
	var list []string
	sr.mu.Lock()
	sr.reports.add(sr.config.Self.Region, ours.report(time.Now()))
	for name, report := range sr.reports {
		if report.isFresh(time.Now()) {
			list = append(list, name)
		}
	}
	sr.mu.Unlock()

	list = sr.uncommitted(list)
	if len(list) > 0 {
		if err := sr.addRegionsExclusively(ctx, list); err != nil {
			return err
		}
	}

	return sr.recordVersions(ctx)
}

// overtakeRegionAhead begins a new primary epoch if a region is ahead of this
// one, because another region was the primary in the meantime, or because this
// region has lost data. All regions then follow the new epoch, even if they
// have newer rules.
func (sr *sharedRules) overtakeRegionAhead(ctx context.Context) error {
	sr.mu.Lock()
	theirs := sr.regionAhead
	sr.regionAhead = rulesPosition{}
	sr.mu.Unlock()

	if theirs == (rulesPosition{}) {
		return nil
	}

	// A deposed leader, or one that has not applied everything yet, only seems to
	// be behind. Applying an entry rules that out.
	if _, err := sr.propose(ctx, agreement.Empty{}); err != nil {
		return err
	}

	mine := positionOf(sr.State())
	if !mine.isBefore(theirs) {
		return nil
	}

	sr.config.Logger.Warn("another region has newer rules, from an earlier primary or lost in this region: this region's rules replace them",
		"rules_version", mine.Version, "rules_version_there", theirs.Version, "primary_epoch", mine.PrimaryEpoch, "primary_epoch_there", theirs.PrimaryEpoch)
	return sr.becomePrimary(ctx, theirs.PrimaryEpoch+1)
}

// prospectiveFollowers returns the reachable regions that are configured to
// follow this one. Regions that already follow are added by runPrimaryRound.
func (sr *sharedRules) prospectiveFollowers() (list []string) {
	if sr.config.OtherRegions == nil {
		return nil
	}
	for _, r := range sr.config.OtherRegions.Regions() {
		if r.Reachable && r.Follows == sr.config.Self.Region {
			list = append(list, r.Name)
		}
	}
	return list
}

// uncommitted returns list without the regions that are committed.
func (sr *sharedRules) uncommitted(list []string) []string {
	names := sr.State().Regions.Committed
	return slices.DeleteFunc(list, func(name string) bool { return slices.Contains(names, name) })
}

// addRegionsExclusively waits until no write of rules is in progress, and calls
// addRegions.
func (sr *sharedRules) addRegionsExclusively(ctx context.Context, list []string) error {
	select {
	case sr.writeSlot <- struct{}{}:
		defer func() { <-sr.writeSlot }()
		return sr.addRegions(ctx, list)
	case <-ctx.Done():
		return fmt.Errorf("add regions: %w", ctx.Err())
	}
}

// addRegions commits the uncommitted regions of list, each with a new version
// of the rules. The caller must lead the primary and hold sr.writeSlot.
func (sr *sharedRules) addRegions(ctx context.Context, list []string) error {
	for _, name := range sr.uncommitted(list) {
		if len(sr.State().Regions.Committed) >= agreement.MaxRegions {
			return fmt.Errorf("add region %q: there are already %d regions, the most allowed", name,
				agreement.MaxRegions)
		}

		_, err := sr.agree(ctx, agreement.ChangeRegion{Name: name, By: "region " + name, When: time.Now().UnixMilli()})
		if err != nil {
			return fmt.Errorf("add region %q: %w", name, err)
		}
		sr.config.Logger.Info("a region was added", "region", name, "rules_version", rulesVersion(sr.State()))
	}
	return nil
}

// recordVersions takes the next steps towards recording the version in force. A
// candidate is recorded once all regions honour it. Then the version in force
// becomes the next candidate. Once that is recorded, earlier versions are
// dropped as their windows end.
func (sr *sharedRules) recordVersions(ctx context.Context) error {
	for range maxMarksPerRound {
		r := sr.State().Regions
		m, ok := sr.nextMark(r)
		if !ok || r.MarkRejection(m) != nil {
			return nil // not yet
		}

		wasRecorded := r.Held[len(r.Held)-1].RecordedAt != 0
		_, err := sr.agree(ctx, m)
		if err != nil {
			return fmt.Errorf("record that version %d is honoured: %w", m.Version, err)
		}

		if m.At != 0 && !wasRecorded {
			sr.config.Logger.Info("all regions now use a version of the rules",
				"rules_version", m.Version, "regions", len(r.Committed))
		}
	}

	return nil
}

// nextMark returns the mark to propose now, if there is one.
func (sr *sharedRules) nextMark(r *agreement.Regions) (m agreement.Mark, ok bool) {
	if len(r.Held) == 0 {
		return m, false
	}

	now := time.Now()
	sr.mu.Lock()
	defer sr.mu.Unlock()
	clocks, known := sr.reports.clocks(r.Committed, now)

	last := r.Held[len(r.Held)-1]
	candidate := slices.IndexFunc(r.Held, func(h agreement.Held) bool { return h.Candidate })
	switch {
	case candidate >= 0:
		return sr.recordedMark(r, r.Held[candidate].Version, &clocks, known, now)
	case last.RecordedAt == 0:
		// No candidate is left, so the version in force becomes one.
		return agreement.Mark{Version: last.Version}, true
	}

	// The earliest clock says which windows have ended everywhere.
	return agreement.Mark{Version: last.Version, At: clocks.earliest}, known && len(r.Held) > 1
}

// recordedMark returns the mark that records a candidate, if all regions honour
// it and their clocks agree. It warns if only the clocks are in the way. known
// means that all clocks are known. The caller must hold sr.mu.
func (sr *sharedRules) recordedMark(
	r *agreement.Regions, version int64, clocks *clockRange, known bool, now time.Time,
) (m agreement.Mark, ok bool) {
	position := rulesPosition{World: r.World, PrimaryEpoch: r.PrimaryEpoch, Version: version}
	if !known || !sr.reports.allHonour(r.Committed, position) {
		return m, false
	}
	if !clocks.isNarrow() {
		sr.warnAboutClocks(clocks, now)
		return m, false
	}

	return agreement.Mark{Version: version, At: clocks.latest + recordMargin.Milliseconds()}, true
}

// warnAboutClocks logs that regions' clocks differ too much. The caller must hold
// sr.mu.
func (sr *sharedRules) warnAboutClocks(c *clockRange, now time.Time) {
	if now.Sub(sr.clocksWarned) < warnInterval {
		return
	}
	sr.clocksWarned = now
	sr.config.Logger.Warn("the regions' clocks differ too much: older divisions of global limits count until they agree; look at NTP",
		"region_ahead", c.fastest, "region_behind", c.slowest,
		"difference", (time.Duration(c.latest-c.earliest) * time.Millisecond).String())
}
