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
	// recordMargin is by how much later than any region's clock said that a version was honoured the record of that counts:
	// the clocks of nodes may differ by so much, and what was asked under an older version has been decided by then.
	recordMargin = time.Second
	// maxMarks bounds the marks of one look: there is another one within a second.
	maxMarks = 8
	// fresh is how old the last report of a region may be that counts as there.
	fresh = 5 * time.Second
	// maxReports bounds the regions of which reports are noted: those that are committed, and as many that are not.
	maxReports = 2 * agreement.MaxRegions
)

// honours is how far all of this region is, as its leader knows: up to which version every node that may have authority
// has applied the rules. One version is waited for at a time, so that it is reached however fast others are written.
type honours struct {
	reached standing // zero: none under this leadership
	next    standing // waited for; zero: none
	index   uint64   // an entry as of which next is in force
}

// want says what to wait for, by what is in force now. Before there are rules that is nothing.
func (h *honours) want(now standing, index uint64) {
	if !h.reached.sameLine(now) {
		h.reached = standing{}
	}
	if h.next.Version > 0 && h.next.sameLine(now) {
		return
	}
	h.next, h.index = standing{}, 0
	if now.Version > h.reached.Version {
		h.next, h.index = now, index
	}
}

// got takes note that what was waited for is reached.
func (h *honours) got() { h.reached, h.next, h.index = h.next, standing{}, 0 }

// honoured is the newest version in s's line that every node of this region that may have authority has applied, 0 for
// none. The governing loop alone calls it.
//
// The index is read after the state, so that it is not before the entry that brought the version. What the leader finds
// stays true under the next one: see [authority.Giver.Honoured].
func (c *governor) honoured(ctx context.Context) (*agreement.State, int64) {
	h := &c.honours
	s := c.State()
	h.want(standingOf(s), c.machine.ruled.Load())
	if h.next.Version > 0 && c.giver.Honoured(ctx, h.index) {
		h.got()
	}
	return s, h.reached.Version
}

// report is what a region has reported.
type report struct {
	standing // of Version, the newest that it honours: what was honoured once stays so
	level    agreement.Level
	clock    int64 // its wall clock, Unix ms, when it reported that; the latest that was heard
	at       time.Time
}

func (q *followRequest) report(now time.Time) report {
	honoured := standing{World: q.World, Term: q.Term, Version: q.Honoured}
	return report{standing: honoured, level: q.Level, clock: q.Clock, at: now}
}

// fresh says whether the region is there.
func (r report) fresh(now time.Time) bool { return now.Sub(r.at) < fresh }

// reports are what the regions have reported last, by name. A new leader hears all of it anew within a moment.
type reports map[string]report

// note takes a report in; ok is false if there are too many regions.
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

// all returns the latest clock of the regions, if each has honoured a version, or a later one of its line.
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

// oversee is what the leader of the primary does about regions: it adds those that have begun to follow, asks for the
// version in force to be honoured by all, and records that it is.
func (c *governor) oversee(ctx context.Context) error {
	if err := c.governs(); err != nil {
		return err
	}
	if err := c.comeAbreast(ctx); err != nil {
		return err
	}
	s, honoured := c.honoured(ctx)
	own := followRequest{standing: standingOf(s), Honoured: honoured, Clock: time.Now().UnixMilli(), Level: s.Level}
	var list []string
	c.mu.Lock()
	c.reports.note(c.cfg.Self.Region, own.report(time.Now()))
	for name, one := range c.reports {
		if one.fresh(time.Now()) {
			list = append(list, name)
		}
	}
	c.mu.Unlock()
	if list = c.uncommitted(list); len(list) > 0 {
		if err := c.addRegionsAlone(ctx, list); err != nil {
			return err
		}
	}
	return c.record(ctx)
}

// comeAbreast begins another term, if some region follows something later than what is agreed here: another region was the
// primary meanwhile, or this one has lost what it had. The regions follow the later term, whatever they have.
func (c *governor) comeAbreast(ctx context.Context) error {
	c.mu.Lock()
	theirs := c.ahead
	c.ahead = standing{}
	c.mu.Unlock()
	if theirs == (standing{}) {
		return nil
	}
	// A leader that was deposed, or has not applied all yet, is behind, too.
	if _, err := c.propose(ctx, agreement.Empty{}); err != nil {
		return err
	}
	mine := standingOf(c.State())
	if !mine.before(theirs) {
		return nil
	}
	c.cfg.Logger.Warn("another region has later rules of an earlier term, or of another primary: what this region has counts",
		"rules_version", mine.Version, "rules_version_there", theirs.Version, "term", mine.Term, "term_there", theirs.Term)
	return c.become(ctx, theirs.Term+1)
}

// newcomers are the regions that can be reached and will follow this one. Those that have followed are added by oversee,
// whoever writes.
func (c *governor) newcomers() (list []string) {
	if c.cfg.Far == nil {
		return nil
	}
	for _, r := range c.cfg.Far.Regions() {
		if r.Reachable && r.Follows == c.cfg.Self.Region {
			list = append(list, r.Name)
		}
	}
	return list
}

// uncommitted is a list without the regions that are committed.
func (c *governor) uncommitted(list []string) []string {
	names := c.State().Regions.Names
	return slices.DeleteFunc(list, func(name string) bool { return slices.Contains(names, name) })
}

// addRegionsAlone is addRegions while nobody writes.
func (c *governor) addRegionsAlone(ctx context.Context, list []string) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
		return c.addRegions(ctx, list)
	case <-ctx.Done():
		return fmt.Errorf("add regions: %w", ctx.Err())
	}
}

// addRegions commits those of a list that are not committed, as the leader of the primary, who holds the token of writing:
// each makes a version of the rules.
func (c *governor) addRegions(ctx context.Context, list []string) error {
	for _, name := range c.uncommitted(list) {
		if len(c.State().Regions.Names) >= agreement.MaxRegions {
			return fmt.Errorf("region %q is one more than the %d that there may be", name, agreement.MaxRegions)
		}
		r, err := c.propose(ctx, agreement.Region{Name: name, By: "region " + name, When: time.Now().UnixMilli()})
		if err = errors.Join(err, r.Err); err != nil {
			return fmt.Errorf("add region %q: %w", name, err)
		}
		c.cfg.Logger.Info("a region is added", "region", name, "rules_version", rulesVersion(c.State()))
	}
	return nil
}

// record takes the next step towards every version's being recorded: the candidate is, when all regions have honoured it;
// then the version in force is the next candidate; and when that is recorded, the versions before it are let go of as
// their windows turn.
func (c *governor) record(ctx context.Context) error {
	for range maxMarks {
		r := c.State().Regions
		m, ok := c.nextMark(r)
		if !ok || r.Refuses(m) != nil {
			return nil // not yet
		}
		result, err := c.propose(ctx, m)
		if err = errors.Join(err, result.Err); err != nil {
			return fmt.Errorf("record that version %d is honoured: %w", m.Version, err)
		}
		if held := r.Held[len(r.Held)-1]; m.At != 0 && held.At == 0 {
			c.cfg.Logger.Info("all regions go by a version of the rules", "rules_version", m.Version, "regions", len(r.Names))
		}
	}
	return nil
}

// nextMark is the mark to propose now, if there is one.
func (c *governor) nextMark(r *agreement.Regions) (m agreement.Mark, ok bool) {
	for _, held := range r.Held {
		if held.Candidate {
			c.mu.Lock()
			defer c.mu.Unlock()
			clock, all := c.reports.all(r.Names, standing{World: r.World, Term: r.Term, Version: held.Version})
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
