package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// recordMargin is by how much later than any region's clock said that a version was honoured the record of that counts:
// the clocks of nodes may differ by so much, and what was asked under an older version has been decided by then.
const recordMargin = time.Second

// maxMarks bounds the marks of one look: there is another one within a second.
const maxMarks = 8

// oversee is what the leader of the primary does about regions: it adds those that have begun to follow, asks for the
// version in force to be honoured by all, and records that it is.
func (c *Cluster) oversee(ctx context.Context) error {
	if err := c.governs(); err != nil {
		return err
	}
	if err := c.comeAbreast(ctx); err != nil {
		return err
	}
	s, honoured := c.honoured(ctx)
	own := honour{s.Regions.World, s.Regions.Term, honoured}
	c.regional.reports.note(c.cfg.Self.Region, own, time.Now().UnixMilli(), time.Now())
	if list := c.regional.reports.strangers(namesOf(s), time.Now()); len(list) > 0 {
		if err := c.addRegionsAlone(ctx, list); err != nil {
			return err
		}
	}
	return c.record(ctx)
}

// comeAbreast begins another term, if some region follows something later than what is agreed here: another region was the
// primary meanwhile, or this one has lost what it had. The regions follow the later term, whatever they have.
func (c *Cluster) comeAbreast(ctx context.Context) error {
	c.regional.mu.Lock()
	theirs := c.regional.ahead
	c.regional.ahead = standing{}
	c.regional.mu.Unlock()
	if theirs == (standing{}) {
		return nil
	}
	// A leader that was deposed, or has not applied all yet, is behind, too.
	if _, err := c.propose(ctx, agreement.Empty{}); err != nil {
		return err
	}
	mine := standingOf(c.State())
	if theirs.world != mine.world || !mine.before(theirs) {
		return nil
	}
	c.cfg.Logger.Warn("another region has later rules of an earlier term, or of another primary: what this region has counts",
		"rules_version", mine.version, "rules_version_there", theirs.version, "term", mine.term, "term_there", theirs.term)
	return c.become(ctx, theirs.term+1)
}

// newcomers are the regions that can be reached and will follow this one, and are not committed. Those that have followed
// are added by oversee, whoever writes.
func (c *Cluster) newcomers() (list []string) {
	if c.cfg.Far == nil {
		return nil
	}
	names := namesOf(c.State())
	for _, r := range c.cfg.Far.Regions() {
		if r.Reachable && r.Follows == c.cfg.Self.Region && !names[r.Name] {
			list = append(list, r.Name)
		}
	}
	return list
}

// namesOf is the set of the regions that are committed.
func namesOf(s *agreement.State) map[string]bool {
	names := map[string]bool{}
	for _, name := range s.Regions.Names {
		names[name] = true
	}
	return names
}

// addRegionsAlone is addRegions while nobody writes.
func (c *Cluster) addRegionsAlone(ctx context.Context, list []string) error {
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
func (c *Cluster) addRegions(ctx context.Context, list []string) error {
	names := namesOf(c.State())
	for _, name := range list {
		if names[name] {
			continue
		}
		if len(names) >= agreement.MaxRegions {
			return fmt.Errorf("region %q is one more than the %d that there may be", name, agreement.MaxRegions)
		}
		r, err := c.propose(ctx, agreement.Region{Name: name, By: "region " + name, When: time.Now().UnixMilli()})
		if err = errors.Join(err, r.Err); err != nil {
			return fmt.Errorf("add region %q: %w", name, err)
		}
		names[name] = true
		c.cfg.Logger.Info("a region is added", "region", name, "rules_version", rulesVersion(c.State()))
	}
	return nil
}

// record takes the next step towards every version's being recorded: the candidate is, when all regions have honoured it;
// then the version in force is the next candidate; and when that is recorded, the versions before it are let go of as
// their windows turn.
func (c *Cluster) record(ctx context.Context) error {
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
func (c *Cluster) nextMark(r *agreement.Regions) (m agreement.Mark, ok bool) {
	for _, held := range r.Held {
		if !held.Candidate {
			continue
		}
		clock, all := c.regional.reports.all(r.Names, honour{r.World, r.Term, held.Version})
		return agreement.Mark{Version: held.Version, At: clock + recordMargin.Milliseconds()}, all
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
