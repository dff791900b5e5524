package simulation

import (
	"fmt"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
)

// Violation is a promise that was broken.
type Violation struct {
	Guarantee string // G2, …
	Text      string
}

// String is the guarantee and what happened.
func (v Violation) String() string { return v.Guarantee + ": " + v.Text }

// Bounds of what is promised.
const (
	// maxCheckTime is within what time each check is decided.
	maxCheckTime = time.Second
	// together is the least part of a limit, in hundredths, that is admitted where demand lasts.
	minAdmittedPercent = 98
)

// Judge looks at all that happened.
func (l *Ledger) Judge() (broken []Violation) {
	if len(l.Regions) > 0 {
		return l.judgeRegions()
	}
	for _, f := range l.Failures {
		broken = append(broken, Violation{"G10", f})
	}
	for _, text := range l.TooSoon {
		broken = append(broken, Violation{"G8", text})
	}
	index := l.index()
	broken = append(broken, l.judgeTime()...)
	broken = append(broken, l.judgeAuthority()...)
	for i := range l.Subjects {
		switch s, of := &l.Subjects[i], &index[i]; {
		case s.Global: // judged with the other regions
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
	acts   []*Act
	losses []*Loss
	undone []*Check // about other subjects too, and refused: their cost may have been held for a while
}

func (l *Ledger) index() []subjectHistory {
	s := make([]subjectHistory, len(l.Subjects))
	for i := range l.Checks {
		c := &l.Checks[i]
		if c.Joint && !c.Admitted {
			s[c.Subject].undone = append(s[c.Subject].undone, c)
		}
		if c.Joint && (c.By == limiter.ByFallback || c.By == limiter.ByStandby) && c.Admitted {
			continue // whether this subject was the one that was decided so is not known
		}
		s[c.Subject].checks = append(s[c.Subject].checks, c)
	}
	for i := range l.Acts {
		s[l.Acts[i].Subject].acts = append(s[l.Acts[i].Subject].acts, &l.Acts[i])
	}
	for i := range l.Losses {
		s[l.Losses[i].Subject].losses = append(s[l.Losses[i].Subject].losses, &l.Losses[i])
	}
	return s
}

func (l *Ledger) violation(guarantee string, subject int, format string, args ...any) Violation {
	s := &l.Subjects[subject]
	return Violation{guarantee, fmt.Sprintf("%s %s (%d per %v): ", s.Rule, s.Key, s.Limit.Amount, s.Limit.Window) + fmt.Sprintf(format, args...)}
}

// judgeTime is G10: each check is decided soon.
func (l *Ledger) judgeTime() (broken []Violation) {
	for i := range l.Checks {
		if c := &l.Checks[i]; c.Ended-c.Began > maxCheckTime {
			broken = append(broken, l.violation("G10", c.Subject, "a check at node %d at %v took %v", c.Node, c.Began, c.Ended-c.Began))
		}
	}
	return broken
}

// judgeAuthority is the first half of G4: a node that has been cut off for as long as authority lasts decides nothing but
// alone, and a while later, when leases have run out as well, not even by them. In the windows of fixed-window limits that
// begin after authority is over there are no leases to begin with.
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
			if c.By == limiter.ByLease && (s.Limit.Kind != algorithms.FixedWindow || l.windowOf(s, c.Began) == l.windowOf(s, over)) {
				over += s.TTL
			}
			if c.Began > over && c.Ended < cut.Until {
				broken = append(broken, l.violation("G4", c.Subject, "node %d, cut off from %v to %v, admitted %d by %v from %v to %v",
					c.Node, cut.From, cut.Until, c.Cost, c.By, c.Began, c.Ended))
			}
		}
	}
	return broken
}

// windowOf is the number of the window of a time.
func (l *Ledger) windowOf(s *Subject, at time.Duration) int64 {
	return (l.Start.UnixNano() + int64(at)) / int64(s.Limit.Window)
}

// windowStart is when a window does.
func (l *Ledger) windowStart(s *Subject, window int64) time.Duration {
	return time.Duration(window*int64(s.Limit.Window) - l.Start.UnixNano())
}
