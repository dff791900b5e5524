package limiter

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/latency"
)

// The decisions that RuleStats counts.
const (
	DecisionAllowed = iota
	DecisionRefused
	DecisionShadowRefused // not refused, although this shadow rule would have refused
	decisions
)

// RuleStats is a copy of one rule's counts since the process started.
type RuleStats struct {
	Rule     string    // empty for checks that a list or the default decided
	Checks   Counts    // by this rule's decision and DecidedBy
	Headroom [11]int64 // checks by ceil(10 × remaining ÷ capacity) of the rule's tightest limit afterwards
	// Latency counts single checks at a door by how long their answers took.
	Latency latency.Counts
	// FalsePositives counts refusals that Feedback reported as wrong.
	FalsePositives int64
}

// stripes is the number of copies of each metric, so that checks on different
// processors seldom write to the same cache line. Each Answer uses one stripe;
// a pooled Answer tends to stay on its processor.
const stripes = 8

type ruleStats struct {
	stripe         [stripes]ruleCounts
	falsePositives atomic.Int64
	refusals       refusals // by the rule; in activeRules.overall, by the deny list
	byDefault      refusals // only in activeRules.overall
	// unmatched counts uses that ruleCounts.checks does not count; see
	// countUnmatched.
	unmatched atomic.Int64
	used      usedIntervals

	slotsRefused, slotRenewals atomic.Int64 // for want of slots; at this node, as an owner
}

type ruleCounts struct {
	// ownerAllowed counts the common case, by headroom: allowed by the owner, one
	// rule matched. To save time, such a check is counted only here, although it
	// belongs to several metrics: checks, headroom, and activeRules.overall.
	ownerAllowed [11]atomic.Int64
	checks       [decisions][ByNone + 1]atomic.Int64
	headroom     [11]atomic.Int64
	latency      [latency.Buckets]atomic.Int64
	_            [64]byte
}

func (st *ruleStats) read(name string) RuleStats {
	out := RuleStats{Rule: name, FalsePositives: st.falsePositives.Load()}
	for i := range st.stripe {
		for d := range out.Checks {
			for by := range out.Checks[d] {
				out.Checks[d][by] += st.stripe[i].checks[d][by].Load()
			}
		}

		for h := range out.Headroom {
			ownerAllowed := st.stripe[i].ownerAllowed[h].Load()
			out.Headroom[h] += st.stripe[i].headroom[h].Load() + ownerAllowed
			out.Checks[DecisionAllowed][ByOwner] += ownerAllowed
		}

		for b := range out.Latency {
			out.Latency[b] += st.stripe[i].latency[b].Load()
		}
	}

	return out
}

// ownerAllowed returns how many checks were counted in ownerAllowed.
func (st *ruleStats) ownerAllowed() (n int64) {
	for i := range st.stripe {
		for h := range st.stripe[i].ownerAllowed {
			n += st.stripe[i].ownerAllowed[h].Load()
		}
	}
	return n
}

// absorb adds the checks in ownerAllowed of a removed rule to st, which is
// activeRules.overall. It misses checks that are still in flight under the old
// rules.
func (st *ruleStats) absorb(gone *ruleStats) {
	st.stripe[0].checks[DecisionAllowed][ByOwner].Add(gone.ownerAllowed())
}

// checks returns the numbers of checks by decision, counting each check once.
func (active *activeRules) checks() Counts {
	all := active.overall.read("").Checks
	for _, st := range active.stats {
		all[DecisionAllowed][ByOwner] += st.ownerAllowed()
	}
	return all
}

// Checks returns the numbers of checks since the process started, by decision,
// counting each check once.
func (l *Limiter) Checks() Counts {
	active := l.inForce.Load()
	if active == nil {
		return Counts{}
	}
	return active.checks()
}

// Stats returns the counts of each rule in force and, last, the counts of
// checks that no rule decided.
func (l *Limiter) Stats() []RuleStats {
	active := l.inForce.Load()
	if active == nil {
		return nil
	}
	out := make([]RuleStats, 0, len(active.stats)+1)
	for i, st := range active.stats {
		out = append(out, st.read(active.set.Names()[i]))
	}
	return append(out, active.statsWithoutRule())
}

// statsWithoutRule returns the counts of checks that no rule decided.
func (active *activeRules) statsWithoutRule() RuleStats {
	stats := active.overall.read("")
	for d := range stats.Checks {
		clear(stats.Checks[d][:ByList])
	}
	return stats
}

// Feedback counts a refusal that was wrong. It returns the subject, and the
// number of the rule's wrong refusals since the process started. The error
// wraps ErrUnknownRule or ErrKey.
func (l *Limiter) Feedback(rule string, key []string) (*Usage, int64, error) {
	u, err := l.Locate(&Query{Rule: rule, Key: key})
	if err != nil {
		return nil, 0, err
	}
	active := l.inForce.Load()
	found := active.set.Rule(rule)
	if found == nil {
		return nil, 0, fmt.Errorf("%w %q", ErrUnknownRule, rule) // the rule has just been removed
	}
	return u, active.stats[found.Index].falsePositives.Add(1), nil
}

// CountLatency counts how long a door took for the check that a answers, for
// each rule that applied to it.
func (a *Answer) CountLatency(took time.Duration) {
	sc := &a.scratch
	if !sc.isCounted { // no rule has counted the check, or its latency is counted already
		return
	}

	sc.isCounted = false
	bucket := latency.Bucket(took)
	if sc.soleStats != nil {
		sc.soleStats.latency[bucket].Add(1)
		return
	}

	for i := range sc.match.Hits {
		stats := sc.active.stats[sc.match.Hits[i].Rule.Index]
		stats.stripe[max(sc.stripe, 1)-1].latency[bucket].Add(1)
	}
}

// recordMetrics adds a decided check to the metrics.
func (l *Limiter) recordMetrics(q *Query, a *Answer) {
	a.scratch.isCounted = !q.Peeks() && a.DecidedBy < ByList
	l.countLimited(q, a)
	if len(a.scratch.match.Unlimited) > 0 {
		l.countUnlimited(q, a)
	}
}

// countLimited is recordMetrics without the rules that applied without limit.
func (l *Limiter) countLimited(q *Query, a *Answer) {
	if sc := &a.scratch; sc.soleStats != nil && a.Allowed && a.DecidedBy == ByOwner {
		headroom := a.Limits[0].headroom()
		sc.soleStats.ownerAllowed[headroom].Add(1)
		h := &sc.match.Hits[0]
		if sc.isTop {
			l.topOf(h.Rule).count(h, false, 0, q)
		}
		weight := l.sampleWeight(sc)
		if weight > 0 || headroom <= nearHeadroom || a.Limits[0].Delay > 0 {
			l.noteUse(h, a.Limits[:1], true, weight, q)
		}

		return
	}

	active := a.scratch.active
	if q.Peeks() || a.DecidedBy >= ByList {
		active.countUnmatched(q, a)
	}

	if q.Peeks() {
		return
	}

	stripe := l.stripeOf(a)
	if a.DecidedBy < ByList {
		if active.hasMonthly && (a.Allowed || a.Counted) && l.meter != nil {
			l.billCheck(q, a)
		}
		if active.hasGlobal && l.membership != nil {
			l.membership.loans.notifyOwners(q, a)
		}
		if a.DecidedBy == ByOwner && a.Allowed && len(a.scratch.match.Hits) == 1 &&
			l.countOwnerAllowed(q, a, active, stripe) {
			return
		}
	}

	decision := DecisionAllowed
	if !a.Allowed {
		decision = DecisionRefused
	}

	active.overall.stripe[stripe].checks[decision][a.DecidedBy].Add(1)

	if a.DecidedBy < ByList {
		l.countRules(q, a, active, stripe)
	} else if !a.Allowed {
		l.recordDenial(active.overall, a)
	}
}

// stripeOf returns the stripe that a uses.
func (l *Limiter) stripeOf(a *Answer) uint32 {
	if a.scratch.stripe == 0 {
		a.scratch.stripe = l.answersUsed.Add(1)%stripes + 1
	}
	return a.scratch.stripe - 1
}

// prepareCount notes whether a list of subjects may hold the subject of a check
// with a single limit, as most checks have. It does so before the check is
// decided, while the counter is still on its way from memory.
func (l *Limiter) prepareCount(a *Answer) {
	sc := &a.scratch
	if sc.soleStats != nil {
		h := &sc.match.Hits[0]
		sc.isTop = l.topOf(h.Rule).mayHold(h.Subject)
	}
}

// countOwnerAllowed counts a check that one rule matched and the owner allowed.
// It counts nothing and returns false if a shadow rule would have refused the
// check.
func (l *Limiter) countOwnerAllowed(q *Query, a *Answer, active *activeRules, stripe uint32) bool {
	refused, headroom := ruleVerdict(a.Limits)
	if refused {
		return false
	}

	h := &a.scratch.match.Hits[0]
	active.stats[h.Rule.Index].stripe[stripe].ownerAllowed[headroom].Add(1)
	l.topOf(h.Rule).count(h, false, 0, q)
	l.noteUse(h, a.Limits, true, l.sampleWeight(&a.scratch), q)

	return true
}

// countRules counts a check for each rule that applied to it.
func (l *Limiter) countRules(q *Query, a *Answer, active *activeRules, stripe uint32) {
	limits, ops := a.Limits, a.scratch.ops
	weight := l.sampleWeight(&a.scratch)
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		hitLimits := limits[:len(h.Limits)]
		refused, headroom := ruleVerdict(hitLimits)
		priorChecks := int64(0)
		if refused {
			priorChecks = countPriorChecks(hitLimits, ops)
		}

		limits, ops = limits[len(h.Limits):], ops[len(h.Limits):]
		d := DecisionAllowed
		switch {
		case refused && h.Rule.Shadow:
			d = DecisionShadowRefused
		case refused:
			d = DecisionRefused
		}

		stats := active.stats[h.Rule.Index]
		if refused {
			stats.countSlotRefusal(hitLimits)
		}

		counts := &stats.stripe[stripe]
		counts.checks[d][a.DecidedBy].Add(1)
		counts.headroom[headroom].Add(1)

		if d == DecisionRefused {
			l.recordRefusal(&stats.refusals, a, h, hitLimits, q)
		}

		l.topOf(h.Rule).count(h, refused, priorChecks, q)
		l.noteUse(h, hitLimits, a.Allowed, weight, q)
	}
}

// countPriorChecks returns how many checks of this cost the refusing counter
// already holds. It returns fewer than the limit allows if the node has only a
// share of the limit, and 0 if no counter refused.
func countPriorChecks(limits []LimitAnswer, ops []counters.Op) int64 {
	for i := range limits {
		if la := &limits[i]; !la.Allowed && !la.Full {
			return min(la.Used, la.Limit.Capacity()) / max(1, ops[i].Cost)
		}
	}
	return 0
}

// ruleVerdict reports whether one of a rule's limits refused, and the least
// headroom of the limits, in tenths, rounded up.
func ruleVerdict(limits []LimitAnswer) (refused bool, headroom int64) {
	headroom = 10
	for i := range limits {
		refused = refused || !limits[i].Allowed
		headroom = min(headroom, limits[i].headroom())
	}
	return refused, headroom
}

// headroom returns what the limit has left, in tenths of its capacity, rounded
// up. It is 0 if the capacity is 0: a region may have no share.
func (la *LimitAnswer) headroom() int64 {
	capacity := la.Limit.Capacity() // at most 2^53, so 64 bits suffice
	tenfold := 10 * min(la.Remaining, capacity)
	if tenfold <= 9*capacity {
		return (tenfold + max(0, capacity-1)) / max(1, capacity)
	}
	return 10
}
