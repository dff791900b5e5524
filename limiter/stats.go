package limiter

import (
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/latency"
)

// The decisions that RuleStats counts.
const (
	DecisionAllowed = iota
	DecisionRefused
	DecisionShadowRefused // this shadow rule would have refused, if it were not a shadow rule
	decisions
)

// Counts holds numbers of checks, by decision and by DecidedBy.
type Counts [decisions][ByNone + 1]int64

// Add adds other to cs.
func (cs *Counts) Add(other *Counts) {
	for d := range cs {
		for by := range cs[d] {
			cs[d][by] += other[d][by]
		}
	}
}

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

type ruleMetrics struct {
	stripe         [stripes]ruleStripe
	falsePositives atomic.Int64
	refusals       refusalThrottle // by the rule; in activeRules.overall, by the deny list
	byDefault      refusalThrottle // only in activeRules.overall
	// otherUses counts uses that ruleStripe.checks does not count; see
	// countOtherUse.
	otherUses atomic.Int64
	used      usedIntervals

	slotsRefused, slotRenewals atomic.Int64 // checks refused for want of slots; renewals at this node, as an owner
}

type ruleStripe struct {
	// ownerAllowed counts the usual checks, by headroom: one rule matched, and the
	// owner allowed the check. To save time, such a check is counted only here,
	// although it belongs to several metrics: checks, headroom, and
	// activeRules.overall. read adds it there.
	ownerAllowed [11]atomic.Int64
	checks       [decisions][ByNone + 1]atomic.Int64
	headroom     [11]atomic.Int64
	latency      [latency.Buckets]atomic.Int64
	_            [64]byte
}

func (st *ruleMetrics) read(name string) RuleStats {
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

// boundPriorChecks returns estimate, but no more than the checks that this node
// has counted for the rule: costs differ, and an operator may have raised what
// is used.
func (st *ruleMetrics) boundPriorChecks(estimate int64) int64 {
	if estimate == 0 {
		return 0
	}

	n := st.ownerAllowed()
	for i := range st.stripe {
		for d := range st.stripe[i].checks {
			for by := range st.stripe[i].checks[d] {
				n += st.stripe[i].checks[d][by].Load()
			}
		}
	}
	return min(estimate, n)
}

// ownerAllowed returns how many checks were counted in ownerAllowed.
func (st *ruleMetrics) ownerAllowed() (n int64) {
	for i := range st.stripe {
		for h := range st.stripe[i].ownerAllowed {
			n += st.stripe[i].ownerAllowed[h].Load()
		}
	}
	return n
}

// absorb adds what the removed rule's ownerAllowed counted to st, which is
// activeRules.overall. It misses checks that are still in flight under the old
// rules.
func (st *ruleMetrics) absorb(removed *ruleMetrics) {
	st.stripe[0].checks[DecisionAllowed][ByOwner].Add(removed.ownerAllowed())
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
	active := l.active.Load()
	if active == nil {
		return Counts{}
	}
	return active.checks()
}

// Stats returns the counts of each rule in force and, last, the counts of
// checks that no rule decided.
func (l *Limiter) Stats() []RuleStats {
	active := l.active.Load()
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

// CountLatency counts how long a door took to answer a's check, for each rule
// that applied to the check. Call it before the Answer's next check.
func (a *Answer) CountLatency(took time.Duration) {
	sc := &a.scratch
	if !sc.awaitsLatency { // no rule has counted the check, or its latency is counted already
		return
	}

	sc.awaitsLatency = false
	bucket := latency.Bucket(took)
	if sc.soleCounts != nil {
		sc.soleCounts.latency[bucket].Add(1)
		return
	}

	for i := range sc.match.Hits {
		stats := sc.active.stats[sc.match.Hits[i].Rule.Index]
		stats.stripe[max(sc.stripe, 1)-1].latency[bucket].Add(1)
	}
}

// stripeOf returns the stripe that a uses.
func (l *Limiter) stripeOf(a *Answer) uint32 {
	if a.scratch.stripe == 0 {
		a.scratch.stripe = l.answersUsed.Add(1)%stripes + 1
	}
	return a.scratch.stripe - 1
}
