package simulation

import (
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules"
)

// appliedRules says by which rules a process goes, where they change. It is guarded by the world's mutex.
type appliedRules struct {
	rules     *agreement.State    // applied
	maxShares [2]map[string]int64 // by rule: the most that the region may have, by the state before and this one
}

// nodeDisk is what a node has on disk of what its region agreed on: the last it applied.
type nodeDisk struct {
	disk *agreement.State // nil: nothing
}

// slowApply is how long a node may take, now and then, to apply what was agreed.
const slowApply = 2 * time.Second

// loadRules is for a process that begins: it goes by the rules on its disk. They are read back as a snapshot is.
func (p *process) loadRules() error {
	if p.rules = agreement.New(); p.disk == nil {
		return nil
	}
	b, err := p.disk.AppendBinary(nil)
	if err != nil {
		return fmt.Errorf("write what is agreed: %w", err)
	}
	if p.rules, err = agreement.ThisBuild.Parse(b); err != nil {
		return fmt.Errorf("read what is agreed: %w", err)
	}
	p.noteMaxShares(p.rules)
	if set := p.w.setWithShares(p.rules); set != nil {
		p.limiter.Use(set)
	}
	return nil
}

// setWithShares is a state's rules with the shares of the region.
func (w *World) setWithShares(s *agreement.State) *rules.Set {
	set := s.SetFor(w.name)
	if set == nil || set.Shares() == nil {
		return set
	}
	views := slices.Clone(set.Shares().Views)
	last := &views[len(views)-1]
	switch w.cfg.Sabotage {
	case RaiseAtOnce:
		last.At = 1
		views = views[len(views)-1:]
	case StayUntilRecord:
		if last.At == 0 {
			last.At = rules.MaxRecordedAt
		}
		views = slices.DeleteFunc(views, func(v rules.View) bool { return v.At == 0 })
	default:
		return set
	}
	return set.WithShares(&rules.Shares{Region: w.name, Views: views})
}

// hasRules reports whether p has rules of a version.
func (p *process) hasRules(version int64) bool { return version <= versionOf(p.rules) }

// versionOf is the version of the rules in force, 0 without any.
func versionOf(s *agreement.State) int64 {
	if set := s.History.Set(); set != nil {
		return set.Version
	}
	return 0
}

// applyRules has p apply what its region has agreed on, at once, but outside of the mutex, under which it is called.
func (p *process) applyRules(s *agreement.State) {
	w := p.w
	w.schedule.at(w.now(), func() {
		w.mu.Lock()
		newer := p.alive && s.Index > p.rules.Index
		if newer {
			p.noteMaxShares(s)
		}
		w.mu.Unlock()
		if !newer {
			return
		}
		if set := w.setWithShares(s); set != nil {
			p.limiter.Use(set)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		p.rules, p.disk = s, s
		p.announce()
		if p.contact && w.allApplied(s) {
			w.reportSoon()
		}
	})
}

// allApplied reports whether all who may decide as owners have applied a state.
func (w *World) allApplied(s *agreement.State) bool {
	for _, n := range w.nodes {
		if w.mayDecide(n) && n.process.rules.Index < s.Index {
			return false
		}
	}
	return true
}

// mayDecide reports whether a node may have authority now.
func (w *World) mayDecide(n *node) bool {
	return n.process.alive && n.process.ready && (n.contact || w.now() < n.authorityUntil)
}

// honouredVersion is the newest version of the rules that all who may decide have applied; 0 where one goes by those of another
// world, or of another primary.
func (w *World) honouredVersion() int64 {
	least := versionOf(w.state)
	for _, n := range w.nodes {
		if !w.mayDecide(n) {
			continue
		}
		mine, its := w.state.Regions, n.process.rules.Regions
		if its.World != mine.World || its.Term != mine.Term {
			return 0
		}
		least = min(least, versionOf(n.process.rules))
	}
	return least
}

// propose commits an entry, if there is a leader, and has those who hear it apply it within some time.
func (w *World) propose(e agreement.Entry) agreement.Result {
	if w.leader.index < 0 {
		return agreement.Result{Err: errNoLeader}
	}
	b, err := agreement.ThisBuild.Encode(e)
	if err != nil {
		return agreement.Result{Err: err}
	}
	next, result := w.state.Apply(w.state.Index+1, b)
	w.state = next
	if result.Err != nil {
		return result
	}
	w.globe.noteState(w)
	for _, n := range w.nodes {
		wait := w.randomDelay(time.Millisecond, 60*time.Millisecond)
		if w.control.IntN(40) == 0 {
			wait = w.randomDelay(0, slowApply)
		}
		w.after(wait, func() {
			if n.contact {
				n.process.applyRules(next)
			}
		})
	}
	return result
}
