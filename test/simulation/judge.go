package simulation

import (
	"fmt"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
)

// Violation is a broken promise.
type Violation struct {
	Guarantee string // such as G2
	Text      string
}

// String returns the guarantee and what happened.
func (v Violation) String() string { return v.Guarantee + ": " + v.Text }

// Bounds of the promises.
const (
	// maxCheckTime is the time within which each check must be decided.
	maxCheckTime = time.Second
	// minAdmittedPercent is the part of a limit, in percent, that must be admitted
	// while demand lasts.
	minAdmittedPercent = 98
)

// Judge returns all promises that the run broke.
func (l *Ledger) Judge() (broken []Violation) {
	if len(l.Regions) > 0 {
		return l.judgeRegions()
	}

	for _, f := range l.Failures {
		broken = append(broken, Violation{"G10", f})
	}

	index := l.index()
	broken = append(broken, l.judgeTime()...)
	broken = append(broken, l.judgeAuthority()...)
	for i := range l.Subjects {
		switch s, of := &l.Subjects[i], &index[i]; {
		case s.Global: // judgeRegions judges these
		case s.Limit.Kind == algorithms.FixedWindow:
			broken = append(broken, l.judgeWindows(i, of)...)
			broken = append(broken, l.judgeFull(i, of)...)
		default:
			broken = append(broken, l.judgeSpans(i, of)...)
		}
		broken = append(broken, l.judgeShares(i, &index[i])...)
	}

	return broken
}

// subjectHistory is what happened to one subject.
type subjectHistory struct {
	checks []*Check
	acts   []*StandbyAct
	losses []*OwnerLoss
	undone []*Check // refused joint checks: the cost may have been taken for a while
}

func (l *Ledger) index() []subjectHistory {
	s := make([]subjectHistory, len(l.Subjects))
	for i := range l.Checks {
		c := &l.Checks[i]
		if c.Joint && !c.Admitted {
			s[c.Subject].undone = append(s[c.Subject].undone, c)
		}
		if c.Joint && (c.By == limiter.ByFallback || c.By == limiter.ByStandby) && c.Admitted {
			continue // unknown which of its subjects was decided alone or by the standby
		}
		s[c.Subject].checks = append(s[c.Subject].checks, c)
	}

	for i := range l.StandbyActs {
		s[l.StandbyActs[i].Subject].acts = append(s[l.StandbyActs[i].Subject].acts, &l.StandbyActs[i])
	}

	for i := range l.Losses {
		s[l.Losses[i].Subject].losses = append(s[l.Losses[i].Subject].losses, &l.Losses[i])
	}

	return s
}

func (l *Ledger) violation(guarantee string, subject int, format string, args ...any) Violation {
	s := &l.Subjects[subject]
	return Violation{guarantee,
		fmt.Sprintf("%s %s (%d per %v): ", s.Rule, s.Key, s.Limit.Amount, s.Limit.Window) +
			fmt.Sprintf(format, args...)}
}

// judgeTime is G10: each check is decided within maxCheckTime.
func (l *Ledger) judgeTime() (broken []Violation) {
	for i := range l.Checks {
		if c := &l.Checks[i]; c.Ended-c.Began > maxCheckTime {
			broken = append(broken,
				l.violation("G10", c.Subject, "a check at node %d at %v took %v", c.Node, c.Began, c.Ended-c.Began))
		}
	}
	return broken
}

// judgeAuthority is the first half of G4: a node that has been cut off for
// longer than authority lasts decides only alone or by leases, and, once the
// leases have ended, only alone. In windows of fixed-window limits that begin
// after the end of authority, the node has no leases to begin with.
func (l *Ledger) judgeAuthority() (broken []Violation) {
	cuts := make(map[int][]Cut)
	for _, c := range l.Cuts {
		if c.Until-c.From > authorityTime {
			cuts[c.Node] = append(cuts[c.Node], c)
		}
	}

	for i := range l.Checks {
		c := &l.Checks[i]
		if !c.Admitted || c.By == limiter.ByFallback {
			continue
		}

		for _, cut := range cuts[c.Node] {
			s := &l.Subjects[c.Subject]
			over := cut.From + authorityTime
			if c.By == limiter.ByLease &&
				(s.Limit.Kind != algorithms.FixedWindow || l.windowOf(s, c.Began) == l.windowOf(s, over)) {
				over += s.TTL
			}
			if c.Began > over && c.Ended < cut.Until {
				broken = append(broken,
					l.violation("G4", c.Subject, "node %d, cut off from %v to %v, admitted %d by %v from %v to %v",
						c.Node, cut.From, cut.Until, c.Cost, c.By, c.Began, c.Ended))
			}
		}
	}

	return broken
}

// windowOf returns the number of the window at a time.
func (l *Ledger) windowOf(s *Subject, at time.Duration) int64 {
	return (l.Start.UnixNano() + int64(at)) / int64(s.Limit.Window)
}

// windowStart returns the beginning of a window.
func (l *Ledger) windowStart(s *Subject, window int64) time.Duration {
	return time.Duration(window*int64(s.Limit.Window) - l.Start.UnixNano())
}
