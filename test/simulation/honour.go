package simulation

import (
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/rules"
)

// appliedRules is the rules that a process applies, for regions whose rules change. The world's mutex guards it.
type appliedRules struct {
	rules     *agreement.State    // the state applied last
	maxShares [2]map[string]int64 // by rule: the region's largest share, by the state before and by this one
}

// nodeDisk is what a node has stored of its region's agreed state: the one applied last.
type nodeDisk struct {
	disk *agreement.State // nil if nothing is stored
}

// slowApply bounds the time that a slow node takes to apply an entry.
const slowApply = 2 * time.Second

// loadRules makes a new process apply the rules on its disk. They take the way through the encoding, like a snapshot.
func (p *process) loadRules() error {
	if p.rules = agreement.New(); p.disk == nil {
		return nil
	}

	b, err := p.disk.AppendBinary(nil)
	if err != nil {
		return fmt.Errorf("encode the agreed state: %w", err)
	}
	if p.rules, err = agreement.ThisBuild.Parse(b); err != nil {
		return fmt.Errorf("decode the agreed state: %w", err)
	}

	p.noteMaxShares(p.rules)
	if set := p.w.setWithShares(p.rules); set != nil {
		p.limiter.SetRules(set)
	}

	return nil
}

// setWithShares returns a state's rules with the shares of the region.
func (w *World) setWithShares(s *agreement.State) *rules.Set {
	set := s.SetFor(w.name)
	if set == nil || set.Shares() == nil {
		return set
	}

	views := slices.Clone(set.Shares().Views)
	last := &views[len(views)-1]
	switch w.config.Sabotage {
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

// hasRules reports whether p has applied a version of the rules or a later one.
func (p *process) hasRules(version int64) bool { return version <= versionOf(p.rules) }

// versionOf returns the version of the rules in force, or 0.
func versionOf(s *agreement.State) int64 {
	if set := s.History.Set(); set != nil {
		return set.Version
	}
	return 0
}

// applyRules makes p apply an agreed state at once, but in the schedule, because the caller holds the mutex.
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
			p.limiter.SetRules(set)
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

// allApplied reports whether all nodes that may decide as owners have applied a state.
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

// honouredVersion returns the newest version of the rules that all nodes which may decide have applied. It is 0 if one of
// them applies those of another world or of another primary.
func (w *World) honouredVersion() int64 {
	least := versionOf(w.state)
	for _, n := range w.nodes {
		if !w.mayDecide(n) {
			continue
		}
		mine, its := w.state.Regions, n.process.rules.Regions
		if its.World != mine.World || its.PrimaryEpoch != mine.PrimaryEpoch {
			return 0
		}
		least = min(least, versionOf(n.process.rules))
	}
	return least
}

// propose commits an entry if there is a leader. Nodes in contact with it apply the entry after some time.
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
