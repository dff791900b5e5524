package simulation

import (
	"maps"
	"slices"

	"github.com/rlnode/rlnode/limiter"
)

// windowTotals is the cost admitted in the windows of a fixed-window limit. A
// check that spans a window's end may have been counted in either window.
type windowTotals struct {
	certain map[int64]int64
	either  map[int64]int64 // admitted in this window or the next
}

func newWindowTotals() windowTotals {
	return windowTotals{certain: map[int64]int64{}, either: map[int64]int64{}}
}

func (a windowTotals) add(l *Ledger, c *Check) {
	s := &l.Subjects[c.Subject]
	first, last := l.windowOf(s, c.Began), l.windowOf(s, c.Ended)
	if first == last {
		a.certain[first] += c.Cost
	} else {
		a.either[last-1] += c.Cost
	}
}

// findExceeded finds the windows that exceed their bound however the doubtful
// cost is assigned: it puts as much as fits into the earlier window.
func (a windowTotals) findExceeded(bound func(window int64) int64, found func(window, admitted, bound int64)) {
	windows := slices.Sorted(maps.Keys(a.certain))
	for w := range a.either {
		windows = append(windows, w, w+1)
	}

	slices.Sort(windows)
	carried := int64(0)

	before := int64(0)
	for _, w := range slices.Compact(windows) {
		if w != before+1 {
			carried = 0
		}
		before = w
		most, have := bound(w), a.certain[w]+carried
		if have > most {
			found(w, have, most)
		}
		carried = max(0, a.either[w]-max(0, most-have))
	}
}

// judgeWindows is G2 and G5 for a fixed-window limit: owners and standbys admit
// in a window no more than the limit, plus what was forgotten with a lost
// owner, plus what standbys admitted in an owner's place.
func (l *Ledger) judgeWindows(subject int, history *subjectHistory) (broken []Violation) {
	s := &l.Subjects[subject]
	all := newWindowTotals()
	for _, c := range history.checks {
		if c.Admitted && c.By != limiter.ByFallback {
			all.add(l, c)
		}
	}

	l.Counts.Judged.Windows += len(all.certain)
	guarantee := map[int64]string{}
	bound := func(w int64) int64 {
		most := s.Limit.Amount
		for _, lost := range history.losses {
			if l.windowOf(s, lost.At) != w {
				continue
			}
			most += lost.Amount
			if lost.Anew {
				most += s.Limit.Amount
			}
			guarantee[w] = "G5"
		}

		for _, act := range history.acts {
			if l.windowOf(s, act.At) == w {
				most += act.Cost
				guarantee[w] = "G5"
			}
		}

		return most
	}
	all.findExceeded(bound, func(w, admitted, most int64) {
		name := "G2"
		if guarantee[w] != "" {
			name = guarantee[w]
		}
		broken = append(broken, l.violation(name, subject, "in the window from %v, %d were admitted; the bound is %d",
			l.windowStart(s, w), admitted, most))
	})

	return broken
}

// judgeShares is the second half of G4: a node that decides alone admits at
// most its share, and so does an acting standby.
func (l *Ledger) judgeShares(subject int, history *subjectHistory) (broken []Violation) {
	alone := map[int][]*Check{}
	for _, c := range history.checks {
		if c.Admitted && c.By == limiter.ByFallback {
			alone[c.Node] = append(alone[c.Node], c)
		}
	}

	for _, a := range history.acts {
		// Use −1 − node, because acting as a standby has a separate allowance.
		node := -1 - a.Node
		alone[node] = append(alone[node], &Check{
			Began: a.At, Ended: a.At, Node: a.Node, Subject: subject, Cost: a.Cost, Share: a.Share,
			By: limiter.ByStandby, Admitted: true,
		})
	}

	for _, node := range slices.Sorted(maps.Keys(alone)) {
		broken = append(broken, l.judgeShare(subject, alone[node], history)...)
	}

	return broken
}

func (l *Ledger) judgeShare(subject int, checks []*Check, history *subjectHistory) (broken []Violation) {
	s := &l.Subjects[subject]
	share := int64(0)
	for _, c := range checks {
		share = max(share, c.Share)
	}

	first := checks[0]
	if !isFixed(s) {
		l.Counts.Judged.Alone++
		scaled := *s
		scaled.Limit.Amount = share
		scaled.Limit.Burst = share
		scaled.TTL = 0

		if span, admitted, most := l.densestSpan(&scaled, checks,
			&subjectHistory{undone: history.undone}); admitted > most {
			broken = append(broken,
				l.violation("G4", subject,
					"by %v, node %d with a share of %d admitted %d from %v to %v; the bound is %d",
					first.By, first.Node, share, admitted, span[0], span[1], most))
		}

		return broken
	}

	all := newWindowTotals()
	for _, c := range checks {
		all.add(l, c)
	}

	l.Counts.Judged.Alone += len(all.certain)
	all.findExceeded(func(w int64) int64 {
		if s.Global {
			return l.shareIn(s, checks, w)
		}
		return share
	}, func(w, admitted, most int64) {
		broken = append(broken,
			l.violation("G4", subject, "in the window from %v, node %d with a share of %d admitted %d by %v",
				l.windowStart(s, w), first.Node, most, admitted, first.By))
	})
	return broken
}

// shareIn returns the largest share that a check in a window, or at its edge, was decided with.
func (l *Ledger) shareIn(s *Subject, checks []*Check, w int64) (share int64) {
	for _, c := range checks {
		if l.windowOf(s, c.Began) <= w && l.windowOf(s, c.Ended) >= w {
			share = max(share, c.Share)
		}
	}
	return share
}
