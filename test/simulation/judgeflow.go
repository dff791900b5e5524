package simulation

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

// judgeFlow is G8 for token buckets: over any span D, all regions together
// admit at most burst + rate × (D + TTL), by the versions that counted. A lower
// limit counts once the buckets had time to fill since its record; until then,
// the version before it does.
func (l *Ledger) judgeFlow(subject int, histories []*subjectHistory) (broken []Violation) {
	s := &l.Subjects[subject]
	var checks []*Check
	all := &subjectHistory{}

	name := "G8"
	for _, in := range histories {
		for _, c := range in.checks {
			if c.Admitted && c.By != limiter.ByFallback {
				checks = append(checks, c)
			}
		}
		all.undone, all.acts, all.losses = append(all.undone, in.undone...), append(all.acts,
			in.acts...), append(all.losses, in.losses...)
		if len(in.acts)+len(in.losses) > 0 {
			name = "G5"
		}
	}

	if len(checks) == 0 {
		return nil
	}

	l.Counts.Judged.Admissions += len(checks)
	l.Counts.Judged.Flows++
	slices.SortFunc(checks, func(a, b *Check) int { return cmp.Compare(a.Ended, b.Ended) })

	if span, admitted, most := l.densestFlow(s, checks, all, l.rateStepsOf(s)); admitted > most {
		broken = append(broken,
			l.violation(name, subject, "all regions together admitted %d from %v to %v; the bound is %d",
				admitted, span[0], span[1], most))
	}

	return broken
}

// rateSteps is a limit's amount and burst over time. The first step begins with the run.
type rateSteps []step

type step struct {
	from          time.Duration
	amount, burst int64
	sum           int64 // of amount × time, up to from
}

// rateStepsOf finds when which versions counted. It computes a step for each
// second, which is shorter than any window.
func (l *Ledger) rateStepsOf(s *Subject) (p rateSteps) {
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for _, region := range l.Regions {
		least, most = min(least, region.Start.UnixNano()), max(most, region.Start.UnixNano())
	}

	const every = time.Second

	// Bursts equal amounts here, so any share fills within a window. Nodes' clocks
	// may differ by a second.
	before := int64(s.Limit.Window + 2*time.Second)
	for at := time.Duration(0); at < l.End+every; at += every {
		next := step{from: at}
		next.amount, next.burst = l.largestLimit(s, least+int64(at)-before, most+int64(at+every))
		if n := len(p); n > 0 {
			last := &p[n-1]
			if last.amount == next.amount && last.burst == next.burst {
				continue
			}
			next.sum = last.sum + last.amount*int64(at-last.from)
		}

		p = append(p, next)
	}

	return p
}

// allowanceAt returns what a bucket may have received until t, in units of
// 1/window, and the burst at t.
func (p rateSteps) allowanceAt(t time.Duration) (sum, burst int64) {
	i, _ := slices.BinarySearchFunc(p, t, func(s step, t time.Duration) int { return cmp.Compare(s.from, t) })
	if i == len(p) || i > 0 && p[i].from > t {
		i--
	}
	return p[i].sum + p[i].amount*int64(t-p[i].from), p[i].burst
}

// densestFlow is densestSpan for a limit that changes.
func (l *Ledger) densestFlow(
	s *Subject, checks []*Check, history *subjectHistory, p rateSteps,
) (span [2]time.Duration, admitted, most int64) {
	w, amount := int64(s.Limit.Window), int64(0)
	for _, step := range p {
		amount = max(amount, step.amount)
	}

	events := l.events(s, checks, history, amount)
	var begun, ended, held, best, excess int64
	var from time.Duration

	some := false
	for _, e := range events {
		held += e.held
		sum, burst := p.allowanceAt(e.at)
		if !e.ends {
			if at := sum - (begun+held)*w; e.cost > 0 && (!some || at > best) {
				best = at
				from = e.at
				some = true
			}
			begun += e.cost
			continue
		}

		ended += e.cost
		if e.cost <= 0 || !some {
			continue
		}

		if over := ended*w + best - sum - burst*w - amount*int64(s.TTL); over > excess {
			excess, span = over, [2]time.Duration{from, e.at}
		}
	}

	if excess == 0 {
		return span, 0, 0
	}

	sum, burst := p.allowanceAt(span[1])
	since, _ := p.allowanceAt(span[0])
	most = burst + (sum-since+amount*int64(s.TTL))/w
	return span, most + (excess+w-1)/w, most
}
