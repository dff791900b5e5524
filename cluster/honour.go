package cluster

import (
	"cmp"
	"context"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/authority"
)

// rulesPosition identifies the rules and the agreed regions that a region has applied.
type rulesPosition struct {
	World        agreement.WorldID `json:"world"`
	PrimaryEpoch int64             `json:"term"`
	Version      int64             `json:"version"`
	Revision     uint64            `json:"revision"`
}

func positionOf(s *agreement.State) rulesPosition {
	return rulesPosition{s.Regions.World, s.Regions.PrimaryEpoch, rulesVersion(s), s.Regions.Revision}
}

// samePrimaryEpoch reports whether p and o have the same world and primary
// epoch. Only then can their versions be compared.
func (p rulesPosition) samePrimaryEpoch(o rulesPosition) bool {
	return p.World == o.World && p.PrimaryEpoch == o.PrimaryEpoch
}

// isBefore reports whether p is older than o, in the same world.
func (p rulesPosition) isBefore(o rulesPosition) bool {
	return p.World == o.World &&
		cmp.Or(cmp.Compare(p.PrimaryEpoch, o.PrimaryEpoch), cmp.Compare(p.Version, o.Version),
			cmp.Compare(p.Revision, o.Revision)) < 0
}

// honourProgress tracks, on a region's leader, which version of the rules the
// region honours: every node that may have authority has applied it. The leader
// waits for one version at a time, even if newer ones come into force
// meanwhile. So it makes progress no matter how fast new versions are written.
type honourProgress struct {
	honoured     rulesPosition // zero: none in this leadership
	awaited      rulesPosition // the leader waits for this one; zero: none
	awaitedIndex uint64        // a node that has applied this index uses awaited
}

// setAwaited sets the version to wait for, given what is in force now. Before the
// first rules, it sets none.
func (h *honourProgress) setAwaited(now rulesPosition, index uint64) {
	if !h.honoured.samePrimaryEpoch(now) {
		h.honoured = rulesPosition{}
	}
	if h.awaited.Version > 0 && h.awaited.samePrimaryEpoch(now) {
		return
	}

	if now.Version > h.honoured.Version {
		h.awaited = now
		h.awaitedIndex = index
	} else {
		h.clearAwaited()
	}
}

// clearAwaited records that the leader waits for no version.
func (h *honourProgress) clearAwaited() {
	h.awaited = rulesPosition{}
	h.awaitedIndex = 0
}

// markReached records that the region honours the awaited version.
func (h *honourProgress) markReached() {
	h.honoured = h.awaited
	h.clearAwaited()
}

// confirmHonoured returns the current state, the newest version of its rules
// that this region honours, or 0 if there is none, and the region's clocks. Only
// runRegionsLoop calls it.
//
// It reads the index after the state, so that the index is not older than the
// entry with the version. The result stays true under the next leader: see
// [authority.Granter.RequireApplied].
func (sr *sharedRules) confirmHonoured(ctx context.Context) (*agreement.State, int64, authority.Clocks) {
	h := &sr.progress
	s := sr.State()
	h.setAwaited(positionOf(s), sr.machine.rulesIndex.Load())

	// While there is no version to wait for, the index is 0, and only the clocks
	// matter.
	clocks, applied := sr.granter.RequireApplied(ctx, h.awaitedIndex)
	if applied && h.awaited.Version > 0 {
		h.markReached()
	}
	return s, h.honoured.Version, clocks
}

// report returns a region's last report, and whether it is fresh. It is called
// on the leader of the primary.
func (sr *sharedRules) report(region string) (r regionReport, fresh bool) {
	sr.mu.Lock()
	defer sr.mu.Unlock()
	r, fresh = sr.reports[region]
	return r, fresh && r.isFresh(time.Now())
}

const (
	// regionReportTTL bounds the age of the last report of a region that counts as present.
	regionReportTTL = 5 * time.Second
	// maxReports bounds the regions whose reports are kept: the committed ones, and as many others.
	maxReports = 2 * agreement.MaxRegions
)

// regionReport is a region's last report.
type regionReport struct {
	rulesPosition // Version is the newest version that the region honours; once honoured, a version stays honoured
	level         agreement.Level
	clocks        authority.Clocks // Latest is the latest that the region has reported to this leader
	at            time.Time
}

// isFresh reports whether the region counts as present.
func (report regionReport) isFresh(now time.Time) bool { return now.Sub(report.at) < regionReportTTL }

// regionReports are the regions' last reports, by name. A new leader receives
// all of them again within seconds.
type regionReports map[string]regionReport

// add stores a report. ok is false if too many regions report.
func (rr regionReports) add(region string, report regionReport) (ok bool) {
	before, known := rr[region]
	if !known && len(rr) >= maxReports {
		for name, old := range rr {
			if !old.isFresh(report.at) {
				delete(rr, name)
				break
			}
		}
		if len(rr) >= maxReports {
			return false
		}
	}

	if before.samePrimaryEpoch(report.rulesPosition) {
		// A region's new leader begins with no version, but the versions that the
		// region has honoured stay honoured.
		report.Version = max(report.Version, before.Version)
	}

	report.clocks.Latest = max(report.clocks.Latest, before.clocks.Latest)
	rr[region] = report
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
	earliest int64  // Unix ms: what the slowest clock shows now
	latest   int64  // Unix ms: the latest that any clock has shown, in reports to this leader
	slowest  string // the region of the earliest clock
	fastest  string // the region of the latest clock
}

// isNarrow reports whether the clocks agree well enough to record a version.
func (c *clockRange) isNarrow() bool {
	return c.latest-c.earliest <= agreement.MaxClockSpread.Milliseconds()
}

// clocks returns what the regions' clocks show at now. ok is false if those of a
// region are unknown.
func (rr regionReports) clocks(names []string, now time.Time) (c clockRange, ok bool) {
	for i, name := range names {
		report, known := rr[name]
		if !known || report.clocks.Earliest == 0 {
			return c, false
		}

		shows := report.clocks.Earliest + now.Sub(report.at).Milliseconds()
		if i == 0 || shows < c.earliest {
			c.earliest = shows
			c.slowest = name
		}
		if report.clocks.Latest > c.latest {
			c.latest = report.clocks.Latest
			c.fastest = name
		}
	}
	return c, len(names) > 0
}
