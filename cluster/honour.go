package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

const (
	// recordMargin is added to the latest clock that a region reported when it
	// honoured a version. The record counts from that time on. The margin covers
	// clocks that differ, and checks that an older version is still deciding.
	recordMargin = time.Second
	// maxMarksPerRound bounds the marks proposed in one round. The next round
	// follows within a second.
	maxMarksPerRound = 8
	// regionReportTTL bounds the age of the last report of a region that counts as present.
	regionReportTTL = 5 * time.Second
	// maxReports bounds the regions whose reports are kept: the committed ones, and as many others.
	maxReports = 2 * agreement.MaxRegions
)

// honourProgress tracks, on a region's leader, which version of the rules the
// region honours: every node that may have authority has applied it. The leader
// waits for one version at a time, so that it makes progress no matter how fast
// new versions are written.
type honourProgress struct {
	honoured rulesPosition // zero: none in this leadership
	next     rulesPosition // the leader waits for this one; zero: none
	index    uint64        // a node that has applied this index uses next
}

// waitFor sets the version to wait for, given what is in force now. Before the
// first rules, it sets none.
func (h *honourProgress) waitFor(now rulesPosition, index uint64) {
	if !h.honoured.samePrimaryEpoch(now) {
		h.honoured = rulesPosition{}
	}
	if h.next.Version > 0 && h.next.samePrimaryEpoch(now) {
		return
	}

	if now.Version > h.honoured.Version {
		h.next = now
		h.index = index
	} else {
		h.waitForNothing()
	}
}

// waitForNothing records that the leader waits for no version.
func (h *honourProgress) waitForNothing() {
	h.next = rulesPosition{}
	h.index = 0
}

// markReached records that the region honours next.
func (h *honourProgress) markReached() {
	h.honoured = h.next
	h.waitForNothing()
}

// updateHonoured returns the current state and the newest version of its rules
// that this region honours, or 0 if there is none. Only runRegionsLoop calls
// it.
//
// It reads the index after the state, so that the index is not older than the
// entry with the version. The result stays true under the next leader: see
// [authority.Granter.RequireApplied].
func (sr *sharedRules) updateHonoured(ctx context.Context) (*agreement.State, int64) {
	h := &sr.progress
	s := sr.State()
	h.waitFor(positionOf(s), sr.machine.rulesIndex.Load())
	if h.next.Version > 0 && sr.granter.RequireApplied(ctx, h.index) {
		h.markReached()
	}
	return s, h.honoured.Version
}

// regionReport is a region's last report.
type regionReport struct {
	rulesPosition // Version is the newest version that the region honours; once honoured, a version stays honoured
	level         agreement.Level
	clock         int64 // the wall clock of the region's leader, Unix ms
	latest        int64 // the latest wall clock that the region ever reported, Unix ms
	at            time.Time
}

func (r *followRequest) report(now time.Time) regionReport {
	honoured := rulesPosition{World: r.World, PrimaryEpoch: r.PrimaryEpoch, Version: r.Honoured}
	return regionReport{rulesPosition: honoured, level: r.Level, clock: r.Clock, latest: r.Clock, at: now}
}

// isFresh reports whether the region counts as present.
func (report regionReport) isFresh(now time.Time) bool { return now.Sub(report.at) < regionReportTTL }

// regionReports are the regions' last reports, by name. A new leader receives
// all of them again within seconds.
type regionReports map[string]regionReport

// add stores a report. ok is false if too many regions report.
func (rr regionReports) add(region string, now regionReport) (ok bool) {
	before, known := rr[region]
	if !known && len(rr) >= maxReports {
		for name, old := range rr {
			if !old.isFresh(now.at) {
				delete(rr, name)
				break
			}
		}
		if len(rr) >= maxReports {
			return false
		}
	}

	if before.samePrimaryEpoch(now.rulesPosition) {
		// A region's new leader begins with no version, but the versions that the
		// region has honoured stay honoured.
		now.Version = max(now.Version, before.Version)
	}

	now.latest = max(now.latest, before.latest)
	rr[region] = now
	return true
}

// allHonour reports whether all regions honour the version or a later one of the
// same world and primary epoch.
func (rr regionReports) allHonour(names []string, h rulesPosition) bool {
	for _, name := range names {
		report, known := rr[name]
		if !known || !report.samePrimaryEpoch(h) || report.Version < h.Version {
			return false
		}
	}
	return true
}

// clockRange is what the regions' reports tell of their clocks.
type clockRange struct {
	earliest int64 // Unix ms: what the slowest clock shows now
	latest   int64 // Unix ms: the latest that any clock ever showed
	slow     string
	fast     string // the regions they are in
}

// isNarrow reports whether the clocks agree well enough to record a version.
func (c *clockRange) isNarrow() bool {
	return c.latest-c.earliest <= agreement.MaxClockSpread.Milliseconds()
}

// clocks returns what the regions' clocks show at now. ok is false if one of
// them has not reported.
func (rr regionReports) clocks(names []string, now time.Time) (c clockRange, ok bool) {
	for i, name := range names {
		report, known := rr[name]
		if !known {
			return c, false
		}

		shows := report.clock + now.Sub(report.at).Milliseconds()
		if i == 0 || shows < c.earliest {
			c.earliest = shows
			c.slow = name
		}
		if report.latest > c.latest {
			c.latest = report.latest
			c.fast = name
		}
	}
	return c, len(names) > 0
}

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

	s, honoured := sr.updateHonoured(ctx)
	ours := followRequest{rulesPosition: positionOf(s), Honoured: honoured,
		Clock: time.Now().UnixMilli(), Level: s.Level}
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
	names := sr.State().Regions.Names
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
		if len(sr.State().Regions.Names) >= agreement.MaxRegions {
			return fmt.Errorf("add region %q: there are already %d regions, the most allowed", name,
				agreement.MaxRegions)
		}

		r, err := sr.propose(ctx, agreement.Region{Name: name, By: "region " + name, When: time.Now().UnixMilli()})
		if err = errors.Join(err, r.Err); err != nil {
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
		if !ok || r.Refuses(m) != nil {
			return nil // not yet
		}

		result, err := sr.propose(ctx, m)
		if err = errors.Join(err, result.Err); err != nil {
			return fmt.Errorf("record that version %d is honoured: %w", m.Version, err)
		}

		held := r.Held[len(r.Held)-1]
		if m.RecordedAt != 0 && held.RecordedAt == 0 {
			sr.config.Logger.Info("all regions now use a version of the rules",
				"rules_version", m.Version, "regions", len(r.Names))
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
	clocks, known := sr.reports.clocks(r.Names, now)

	for _, held := range r.Held {
		if !held.Candidate {
			continue
		}
		version := rulesPosition{World: r.World, PrimaryEpoch: r.PrimaryEpoch, Version: held.Version}
		if !known || !sr.reports.allHonour(r.Names, version) {
			return m, false
		}
		if !clocks.isNarrow() {
			sr.warnAboutClocks(&clocks, now)
			return m, false
		}
		return agreement.Mark{Version: held.Version, RecordedAt: clocks.latest + recordMargin.Milliseconds()}, true
	}

	last := r.Held[len(r.Held)-1]
	if last.RecordedAt == 0 {
		return agreement.Mark{Version: last.Version}, true
	}

	// The earliest clock says which windows have ended everywhere.
	return agreement.Mark{Version: last.Version, RecordedAt: clocks.earliest}, known && len(r.Held) > 1
}

// warnAboutClocks logs that regions' clocks differ too much. The caller must hold
// sr.mu.
func (sr *sharedRules) warnAboutClocks(c *clockRange, now time.Time) {
	if now.Sub(sr.clocksWarned) < warnInterval {
		return
	}
	sr.clocksWarned = now
	sr.config.Logger.Warn("the regions' clocks differ too much: older divisions of global limits count until they agree; look at NTP",
		"region_ahead", c.fast, "region_behind", c.slow,
		"difference", (time.Duration(c.latest-c.earliest) * time.Millisecond).String())
}
