package limiter

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// Decisions, as RuleStats counts them.
const (
	DecisionAllowed = iota
	DecisionRefused
	DecisionShadowRefused // not refused, though this shadow rule would have
	decisions
)

// RuleStats is a copy of one rule's counts since the process began.
type RuleStats struct {
	Rule     string                       // empty: checks decided by a list, by the default, or by no rule
	Checks   [decisions][ByNone + 1]int64 // by this rule's decision, and DecidedBy
	Headroom [11]int64                    // checks by ceil(10 × remaining ÷ capacity) of the rule's tightest limit afterwards
	// FalsePositives are refusals that were said, by Feedback, to be wrong.
	FalsePositives int64
}

// stripes is how many copies of each figure there are, so that checks on different processors seldom write to
// the same cache line. An Answer, which stays on its processor for as long as the pool keeps it there, has one.
const stripes = 8

type ruleStats struct {
	stripe [stripes]struct {
		checks   [decisions][ByNone + 1]atomic.Int64
		headroom [11]atomic.Int64
		_        [64]byte
	}
	falsePositives atomic.Int64
}

func newRuleStats() *ruleStats { return &ruleStats{} }

func (s *ruleStats) read(name string) RuleStats {
	out := RuleStats{Rule: name, FalsePositives: s.falsePositives.Load()}
	for i := range s.stripe {
		for d := range out.Checks {
			for by := range out.Checks[d] {
				out.Checks[d][by] += s.stripe[i].checks[d][by].Load()
			}
		}
		for h := range out.Headroom {
			out.Headroom[h] += s.stripe[i].headroom[h].Load()
		}
	}
	return out
}

// Stats returns the counts of each rule in force, and those of no rule last.
func (l *Limiter) Stats() []RuleStats {
	b := l.inForce.Load()
	if b == nil {
		return nil
	}
	out := make([]RuleStats, 0, len(b.stats)+1)
	for i, s := range b.stats {
		out = append(out, s.read(b.set.Rules[i].Name))
	}
	return append(out, b.unruled())
}

// unruled are the checks that no rule decided.
func (b *book) unruled() RuleStats {
	s := b.whole.read("")
	for d := range s.Checks {
		clear(s.Checks[d][:ByList])
	}
	return s
}

// Feedback counts a refusal of a subject that should not have been, and returns the subject and how many the rule has
// since the process began. The error wraps ErrUnknownRule or ErrKey.
func (l *Limiter) Feedback(rule string, key []string) (*Usage, int64, error) {
	u, err := l.Locate(rule, key)
	if err != nil {
		return nil, 0, err
	}
	b := l.inForce.Load()
	r := b.set.Rule(rule)
	if r == nil {
		return nil, 0, fmt.Errorf("%w %q", ErrUnknownRule, rule) // it went meanwhile
	}
	return u, b.stats[r.Index].falsePositives.Add(1), nil
}

// count adds a decided check to the figures.
func (l *Limiter) count(q *Query, a *Answer) {
	if q.Peek {
		return
	}
	b := a.scratch.book
	if a.scratch.stripe == 0 {
		a.scratch.stripe = l.answers.Add(1)%stripes + 1
	}
	stripe := a.scratch.stripe - 1
	whole := DecisionAllowed
	if !a.Allowed {
		whole = DecisionRefused
	}
	b.whole.stripe[stripe].checks[whole][a.DecidedBy].Add(1)
	if a.DecidedBy >= ByList {
		return
	}
	if l.meter != nil && a.Allowed {
		l.measure(q, a)
	}
	if b.global {
		l.seekLoans(q, a)
	}
	limits, ops := a.Limits, a.scratch.ops
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		refused, headroom := ruleVerdict(limits[:len(h.Limits)])
		before := int64(0)
		if refused {
			before = checksBefore(limits[:len(h.Limits)], ops)
		}
		limits, ops = limits[len(h.Limits):], ops[len(h.Limits):]
		d := DecisionAllowed
		switch {
		case refused && h.Rule.Shadow:
			d = DecisionShadowRefused
		case refused:
			d = DecisionRefused
		}
		s := &b.stats[h.Rule.Index].stripe[stripe]
		s.checks[d][a.DecidedBy].Add(1)
		s.headroom[headroom].Add(1)
		l.top.count(h, d == DecisionRefused, before, q)
	}
}

// checksBefore is how many checks like this one the limit that refused holds.
func checksBefore(limits []LimitAnswer, ops []counters.Op) int64 {
	for i := range limits {
		if la := &limits[i]; !la.Allowed && !la.Full {
			return (la.Limit.Capacity() - la.Remaining) / max(1, ops[i].Cost)
		}
	}
	return 0
}

// ruleVerdict is whether a limit of one rule refused, and the least headroom of them, in tenths rounded up.
func ruleVerdict(limits []LimitAnswer) (refused bool, headroom int64) {
	headroom = 10
	for i := range limits {
		la := &limits[i]
		refused = refused || !la.Allowed
		if la.Limit.Capacity() == 0 {
			headroom = 0 // a region's share of nothing
		} else if la.Remaining < la.Limit.Capacity() {
			hi, lo := bits.Mul64(uint64(la.Remaining), 10)
			tenths, rest := bits.Div64(hi, lo, uint64(la.Limit.Capacity()))
			if rest > 0 {
				tenths++
			}
			headroom = min(headroom, int64(tenths))
		}
	}
	return refused, headroom
}

// scratch is what a check needs beside its answer; it is kept for the next one.
type scratch struct {
	match     rules.Match
	ops       []counters.Op
	stripe    uint32   // 1…stripes; 0 before the first check
	book      *book    // by which the check is decided
	local     bool     // a rule of it has `consistency: local`
	blocks    bool     // ops have those of blocks among them, each behind those of its hit
	reserving bool     // what is taken is to be told: no leases
	journey   *journey // of checks that others decide too; nil before the first
}
