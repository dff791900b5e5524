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
	// recordMargin is added to the latest clock that any region reported when it honoured a version, to get the time from
	// which the record counts. It covers the difference between nodes' clocks; requests under an older version are decided
	// by then.
	recordMargin = time.Second
	// maxMarks bounds the marks of one round: the next round follows within a second.
	maxMarks = 8
	// freshFor bounds the age of the last report of a region that counts as present.
	freshFor = 5 * time.Second
	// maxReports bounds the regions whose reports are kept: the committed ones, and as many others.
	maxReports = 2 * agreement.MaxRegions
)

// honourProgress is how far this whole region is, as its leader knows: the rules version that every node that may have
// authority has applied. It waits for one version at a time, so that it gets there however fast new ones are written.
type honourProgress struct {
	honoured standing // zero: none in this leadership
	next     standing // being waited for; zero: none
	index    uint64   // an index as of which next is in force
}

// waitFor sets the version to wait for, given what is in force now. Before there are rules, there is none.
func (h *honourProgress) waitFor(now standing, index uint64) {
	if !h.honoured.sameLine(now) {
		h.honoured = standing{}
	}
	if h.next.Version > 0 && h.next.sameLine(now) {
		return
	}
	h.next, h.index = standing{}, 0
	if now.Version > h.honoured.Version {
		h.next, h.index = now, index
	}
}

// reached records that next is reached.
func (h *honourProgress) reached() { h.honoured, h.next, h.index = h.next, standing{}, 0 }

// honoured returns the state s and the newest version in its line that every node of this region that may have authority
// has applied, 0 if there is none. Only the governing loop calls it.
//
// It reads the index after the state, so that the index is not before the entry that brought the version. What this leader
// finds stays true under the next one: see [authority.Giver.RequireApplied].
func (g *governor) honoured(ctx context.Context) (*agreement.State, int64) {
	h := &g.progress
	s := g.State()
	h.waitFor(standingOf(s), g.machine.ruled.Load())
	if h.next.Version > 0 && g.giver.RequireApplied(ctx, h.index) {
		h.reached()
	}
	return s, h.honoured.Version
}

// report is what a region has reported.
type report struct {
	standing // its Version is the newest that the region honours; an honoured version stays honoured
	level    agreement.Level
	clock    int64 // the latest wall clock that it reported, Unix ms
	at       time.Time
}

func (r *followRequest) report(now time.Time) report {
	honoured := standing{World: r.World, Term: r.Term, Version: r.Honoured}
	return report{standing: honoured, level: r.Level, clock: r.Clock, at: now}
}

// fresh reports whether the region counts as present.
func (r report) fresh(now time.Time) bool { return now.Sub(r.at) < freshFor }

// reports are the regions' last reports, by name. A new leader hears them all again within moments.
type reports map[string]report

// note stores a report; ok is false if there are too many regions.
func (r reports) note(region string, now report) (ok bool) {
	before, known := r[region]
	if !known && len(r) >= maxReports {
		for name, one := range r {
			if !one.fresh(now.at) {
				delete(r, name)
				break
			}
		}
		if len(r) >= maxReports {
			return false
		}
	}
	if before.sameLine(now.standing) {
		now.Version = max(now.Version, before.Version)
	}
	now.clock = max(now.clock, before.clock)
	r[region] = now
	return true
}

// all returns the latest clock of the regions, and whether each has honoured the version or a later one of its line.
func (r reports) all(names []string, h standing) (clock int64, ok bool) {
	for _, name := range names {
		one, known := r[name]
		if !known || !one.sameLine(h) || one.Version < h.Version {
			return 0, false
		}
		clock = max(clock, one.clock)
	}
	return clock, true
}

// oversee is one round of the primary's leader: it adds regions that have begun to follow, asks all regions to honour the
// version in force, and records that they do.
func (g *governor) oversee(ctx context.Context) error {
	if err := g.requireGoverning(); err != nil {
		return err
	}
	if err := g.overtakeRegionAhead(ctx); err != nil {
		return err
	}
	s, honoured := g.honoured(ctx)
	own := followRequest{standing: standingOf(s), Honoured: honoured, Clock: time.Now().UnixMilli(), Level: s.Level}
	var list []string
	g.mu.Lock()
	g.reports.note(g.cfg.Self.Region, own.report(time.Now()))
	for name, one := range g.reports {
		if one.fresh(time.Now()) {
			list = append(list, name)
		}
	}
	g.mu.Unlock()
	if list = g.uncommitted(list); len(list) > 0 {
		if err := g.addRegionsExclusively(ctx, list); err != nil {
			return err
		}
	}
	return g.record(ctx)
}

// overtakeRegionAhead begins a new term if some region is ahead of this one: another region was the primary meanwhile, or this one
// has lost data. The regions then follow the new term, whatever they have.
func (g *governor) overtakeRegionAhead(ctx context.Context) error {
	g.mu.Lock()
	theirs := g.ahead
	g.ahead = standing{}
	g.mu.Unlock()
	if theirs == (standing{}) {
		return nil
	}
	// A deposed leader, or one that has not applied everything yet, is behind as well.
	if _, err := g.propose(ctx, agreement.Empty{}); err != nil {
		return err
	}
	mine := standingOf(g.State())
	if !mine.before(theirs) {
		return nil
	}
	g.cfg.Logger.Warn("another region has later rules of an earlier term, or of another primary: what this region has counts",
		"rules_version", mine.Version, "rules_version_there", theirs.Version, "term", mine.Term, "term_there", theirs.Term)
	return g.become(ctx, theirs.Term+1)
}

// newcomers returns the reachable regions that will follow this one. oversee adds regions that already follow, with or
// without a write.
func (g *governor) newcomers() (list []string) {
	if g.cfg.Far == nil {
		return nil
	}
	for _, r := range g.cfg.Far.Regions() {
		if r.Reachable && r.Follows == g.cfg.Self.Region {
			list = append(list, r.Name)
		}
	}
	return list
}

// uncommitted returns list without the committed regions.
func (g *governor) uncommitted(list []string) []string {
	names := g.State().Regions.Names
	return slices.DeleteFunc(list, func(name string) bool { return slices.Contains(names, name) })
}

// addRegionsExclusively takes the writing token and calls addRegions.
func (g *governor) addRegionsExclusively(ctx context.Context, list []string) error {
	select {
	case g.writing <- struct{}{}:
		defer func() { <-g.writing }()
		return g.addRegions(ctx, list)
	case <-ctx.Done():
		return fmt.Errorf("add regions: %w", ctx.Err())
	}
}

// addRegions commits the uncommitted regions of list, each with a new version of the rules. It runs on the leader of the
// primary, with the writing token held.
func (g *governor) addRegions(ctx context.Context, list []string) error {
	for _, name := range g.uncommitted(list) {
		if len(g.State().Regions.Names) >= agreement.MaxRegions {
			return fmt.Errorf("region %q is one more than the %d that there may be", name, agreement.MaxRegions)
		}
		r, err := g.propose(ctx, agreement.Region{Name: name, By: "region " + name, When: time.Now().UnixMilli()})
		if err = errors.Join(err, r.Err); err != nil {
			return fmt.Errorf("add region %q: %w", name, err)
		}
		g.cfg.Logger.Info("a region is added", "region", name, "rules_version", rulesVersion(g.State()))
	}
	return nil
}

// record takes the next steps towards recording every version. The candidate is recorded once all regions have honoured it;
// then the version in force becomes the next candidate. Once that is recorded, earlier versions are dropped as their
// windows turn.
func (g *governor) record(ctx context.Context) error {
	for range maxMarks {
		r := g.State().Regions
		m, ok := g.nextMark(r)
		if !ok || r.Refuses(m) != nil {
			return nil // not yet
		}
		result, err := g.propose(ctx, m)
		if err = errors.Join(err, result.Err); err != nil {
			return fmt.Errorf("record that version %d is honoured: %w", m.Version, err)
		}
		if held := r.Held[len(r.Held)-1]; m.At != 0 && held.At == 0 {
			g.cfg.Logger.Info("all regions use a version of the rules", "rules_version", m.Version, "regions", len(r.Names))
		}
	}
	return nil
}

// nextMark returns the mark to propose now, if there is one.
func (g *governor) nextMark(r *agreement.Regions) (m agreement.Mark, ok bool) {
	for _, held := range r.Held {
		if held.Candidate {
			g.mu.Lock()
			defer g.mu.Unlock()
			clock, all := g.reports.all(r.Names, standing{World: r.World, Term: r.Term, Version: held.Version})
			return agreement.Mark{Version: held.Version, At: clock + recordMargin.Milliseconds()}, all
		}
	}
	if len(r.Held) == 0 {
		return m, false
	}
	last := r.Held[len(r.Held)-1]
	if last.At == 0 {
		return agreement.Mark{Version: last.Version}, true
	}
	return agreement.Mark{Version: last.Version, At: time.Now().UnixMilli()}, len(r.Held) > 1
}
