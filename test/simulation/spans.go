package simulation

import (
	"cmp"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
)

func isFixed(s *Subject) bool { return s.Limit.Kind == algorithms.FixedWindow }

// A token bucket admits at most burst + rate × D over any span D. So, with the limit as the burst and limit / window as
// the rate, does a sliding-window counter: let a span hold the end of one window and x of the next. If prev and cur were
// admitted in them, then prev × (W − x) / W + cur <= L at the last admission, so that
//
//	prev + cur <= L + prev × x / W <= L + L × x / W.
//
// Whole windows in between admit at most L each: if the last of them has c, then what follows it is at most
// L − c × (W − x) / W, and c + that is at most L + L × x / W as before. A log admits at most L in any W, which is less; and
// a leaky bucket takes in as much as a token bucket hands out.
//
// Leases are debited up to their TTL before they are spent, which makes a span longer by so much.

// The loosenings of the bound where an owner was lost.
const (
	// beforeLoss is how long before a change of owners what is forgotten by it may have been admitted: a cut-off owner goes
	// on for as long as authority lasts, and it takes as long again, and what gossip needs, until it is ended.
	beforeLoss = 12 * time.Second
	// unsure is how long what a copy lacks of a bucket may have drained, in the copy or in the original.
	drainUncertainty = authorityTime + 500*time.Millisecond
)

// event is the beginning or the end of a check. What excuses an excess is a check with a cost below zero, that begins late
// and ends early.
type event struct {
	at   time.Duration
	ends bool
	cost int64
	held int64 // not a check's: from now on so much more may be given back to spans that have begun later than it was taken
}

// judgeSpans is G2 and G5 for limits that have no fixed windows.
func (l *Ledger) judgeSpans(subject int, history *subjectHistory) (broken []Violation) {
	s := &l.Subjects[subject]
	var checks []*Check
	for _, c := range history.checks {
		if c.Admitted && c.By != limiter.ByFallback {
			checks = append(checks, c)
		}
	}
	if len(checks) == 0 {
		return nil
	}
	l.Counts.Judged.Spans++
	name := "G2"
	if len(history.losses)+len(history.acts) > 0 {
		name = "G5"
	}
	if span, admitted, most := l.densestSpan(s, checks, history); admitted > most {
		broken = append(broken, l.violation(name, subject, "%d were admitted from %v to %v, at most %d are right",
			admitted, span[0], span[1], most))
	}
	return broken
}

// densestSpan finds the span in which most was admitted for its length: what was admitted in it, and what may have been.
//
// Of a check about several subjects what one of them refuses is given back to the others. If that happens in a span that
// began after the check did, a bucket drained meanwhile that might else have been empty: by no more than that cost.
func (l *Ledger) densestSpan(s *Subject, checks []*Check, history *subjectHistory) (span [2]time.Duration, admitted, most int64) {
	w, amount, burst := int64(s.Limit.Window), s.Limit.Amount, s.Limit.Amount
	if s.Limit.Kind.Bucket() {
		burst = s.Limit.Burst
	}
	events := l.events(s, checks, history, amount)
	// In units of 1/w: what a span may admit is burst + amount × (end − start + TTL) / w.
	var begun, ended, held, best, excess int64
	var from time.Duration
	some := false
	for _, e := range events {
		held += e.held
		switch {
		case !e.ends:
			if at := amount*int64(e.at) - (begun+held)*w; e.cost > 0 && (!some || at > best) {
				best, from, some = at, e.at, true
			}
			begun += e.cost
		default:
			ended += e.cost
			if e.cost <= 0 || !some {
				continue
			}
			over := ended*w + best - amount*int64(e.at) - burst*w - amount*int64(s.TTL)
			if over > excess {
				excess, span = over, [2]time.Duration{from, e.at}
			}
		}
	}
	if excess == 0 {
		return span, 0, 0
	}
	most = burst + amount*int64(span[1]-span[0]+s.TTL)/w
	return span, most + (excess+w-1)/w, most
}

// events lists, in order, when checks began and ended, and what excuses an excess of a limit of so much.
func (l *Ledger) events(s *Subject, checks []*Check, history *subjectHistory, amount int64) (events []event) {
	sum := int64(0)
	for _, c := range checks {
		events = append(events, event{at: c.Began, cost: c.Cost}, event{at: c.Ended, ends: true, cost: c.Cost})
		sum += c.Cost
	}
	excuse := func(from, until time.Duration, cost int64) {
		events = append(events, event{at: until, cost: -cost}, event{at: from, ends: true, cost: -cost})
	}
	for _, c := range history.undone {
		events = append(events, event{at: c.Began, held: c.Cost}, event{at: c.Ended + maxCheckTime, ends: true, held: -c.Cost})
	}
	for _, a := range history.acts {
		excuse(a.At-maxCheckTime, a.At+maxCheckTime, a.Cost)
	}
	for _, lost := range history.losses {
		cost := lost.Amount + 1 + amount*int64(drainUncertainty)/int64(s.Limit.Window)
		if lost.Anew {
			cost = sum
		}
		excuse(lost.At-beforeLoss, lost.At+s.TTL+maxCheckTime, cost)
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(btoi(a.ends), btoi(b.ends)))
	})
	return events
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
