package simulation

import (
	"cmp"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
)

func isFixed(s *Subject) bool { return s.Limit.Kind == algorithms.FixedWindow }

// A token bucket admits at most burst + rate × D over any span D. So does a
// sliding-window counter, with the limit L as the burst and L / W as the rate:
// let a span contain the end of one window and a time x of the next, in which
// prev and cur were admitted. Then prev × (W − x) / W + cur <= L at the last
// admission, so that
//
//	prev + cur <= L + prev × x / W <= L + L × x / W.
//
// Whole windows in between admit at most L each: if the last of them admitted
// c, then at most L − c × (W − x) / W follows it, and the sum of both is at
// most L + L × x / W as before. A log admits at most L in any W, which is less.
// A leaky bucket accepts as much as a token bucket hands out.
//
// Leases are debited up to their TTL before they are spent, so a span counts as longer by the TTL.

// What loosens the bound after the loss of an owner.
const (
	// beforeLoss is how long before a change of owners the forgotten cost may have
	// been admitted: a cut-off owner continues for as long as its authority lasts,
	// and its end takes as long again, plus the time that gossip needs.
	beforeLoss = 12 * time.Second
	// drainUncertainty is the time for which a bucket's missing cost may have
	// drained in the copy or in the original.
	drainUncertainty = authorityTime + 500*time.Millisecond
)

// event is the beginning or the end of a check. An excuse for an excess is a
// check with a negative cost that begins late and ends early.
type event struct {
	at   time.Duration
	ends bool
	cost int64
	held int64 // not a check: cost that may be given back, from now on, to spans that began after it was taken
}

// judgeSpans is G2 and G5 for limits without fixed windows.
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
		broken = append(broken, l.violation(name, subject, "%d were admitted from %v to %v; the bound is %d",
			admitted, span[0], span[1], most))
	}

	return broken
}

// densestSpan finds the span that exceeds its bound by most, and returns what
// it admitted and the bound.
//
// If one subject of a joint check refuses, the cost is given back to the
// others. In a span that began after the check did, a bucket may meanwhile have
// drained that would otherwise have been empty: by no more than that cost.
func (l *Ledger) densestSpan(
	s *Subject, checks []*Check, history *subjectHistory,
) (span [2]time.Duration, admitted, most int64) {
	w := int64(s.Limit.Window)
	amount := s.Limit.Amount
	burst := s.Limit.Amount
	if s.Limit.Kind.IsBucket() {
		burst = s.Limit.Burst
	}

	events := l.events(s, checks, history, amount)

	// In units of 1/w: a span may admit burst + amount × (end − start + TTL) / w.
	var begun, ended, held, best, excess int64
	var from time.Duration

	some := false
	for _, e := range events {
		held += e.held
		switch {
		case !e.ends:
			if at := amount*int64(e.at) - (begun+held)*w; e.cost > 0 && (!some || at > best) {
				best = at
				from = e.at
				some = true
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

// events lists, in order, the beginnings and ends of checks, and the excuses
// for exceeding a limit of amount.
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
		events = append(events, event{at: c.Began, held: c.Cost},
			event{at: c.Ended + maxCheckTime, ends: true, held: -c.Cost})
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
