package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/rules"
)

const (
	// exactSamples is the number of checks in a second that are all sampled. Each
	// Answer samples one in sampleEvery of its other checks.
	exactSamples = 256
	sampleEvery  = 128
	// nearHeadroom is the headroom, in tenths of a limit, at or below which every
	// check is noted. Above it, only checks that are sampled are noted.
	nearHeadroom = 2
)

// account adds a decided check to the metrics, and its cost to the bill
// (billCheck). If regions' shares run short, it asks the owners to borrow
// (notifyOwners).
func (l *Limiter) account(q *Query, a *Answer) {
	a.scratch.awaitsLatency = !q.Peeks() && a.DecidedBy < ByList
	l.countLimited(q, a)
	if len(a.scratch.match.Unlimited) > 0 {
		l.countUnlimited(q, a)
	}
}

// countLimited accounts for the rules that limited the check; countUnlimited
// for the others.
func (l *Limiter) countLimited(q *Query, a *Answer) {
	// The usual check: one rule with one limit, allowed by its owner.
	if sc := &a.scratch; sc.soleCounts != nil && a.Allowed && a.DecidedBy == ByOwner {
		headroom := a.Limits[0].headroom()
		sc.soleCounts.ownerAllowed[headroom].Add(1)
		h := &sc.match.Hits[0]
		if sc.mayBeInTop {
			l.refusedListOf(h.Rule).Record(h, false, 0, q)
		}
		weight := l.sampleWeight(sc)
		if weight > 0 || headroom <= nearHeadroom || a.Limits[0].Delay > 0 {
			l.addToTops(h, a, a.Limits[:1], headroom, weight, q)
		}

		return
	}

	active := a.scratch.active
	if q.Peeks() || a.DecidedBy >= ByList {
		active.countOtherUse(q, a)
	}

	if q.Peeks() {
		return
	}

	stripe := l.stripeOf(a)
	if a.DecidedBy < ByList {
		if active.hasMonthly && (a.Allowed || a.Counted) && l.meter != nil {
			l.billCheck(q, a)
		}
		if active.hasDividedLimits && l.cluster != nil {
			l.cluster.loans.notifyOwners(q, a)
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
		l.logDenial(active.overall, a)
	}
}

// lookUpTop looks up whether the list of refused subjects may hold the
// subject of a check with a single limit, as most checks have. Call it before
// the check is decided. The counter is then still on its way from memory, so
// the look-up costs no time.
func (l *Limiter) lookUpTop(a *Answer) {
	sc := &a.scratch
	if sc.soleCounts != nil {
		h := &sc.match.Hits[0]
		sc.mayBeInTop = l.refusedListOf(h.Rule).MayHold(h.Subject)
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
	l.refusedListOf(h.Rule).Record(h, false, 0, q)
	l.addToTops(h, a, a.Limits, headroom, l.sampleWeight(&a.scratch), q)

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
		list := l.refusedListOf(h.Rule)
		priorChecks := int64(0)
		if refused && !list.MayHold(h.Subject) {
			priorChecks = active.stats[h.Rule.Index].boundPriorChecks(estimatePriorChecks(hitLimits, ops))
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
			l.logRefusal(&stats.refusals, a, h, hitLimits, q)
		}

		list.Record(h, refused, priorChecks, q)
		l.addToTops(h, a, hitLimits, headroom, weight, q)
	}
}

// estimatePriorChecks returns how many checks of this cost the refusing counter
// already holds; 0 if no counter refused. Where the counter holds a share, the
// share bounds the result.
func estimatePriorChecks(limits []LimitAnswer, ops []counters.Op) int64 {
	for i := range limits {
		if la := &limits[i]; !la.Allowed && !la.NoRoom {
			return min(la.Used, la.Limit.Capacity()) / max(1, ops[i].Cost)
		}
	}
	return 0
}

// ruleVerdict reports whether one of a rule's limits refused. headroom is the
// least headroom of the limits, in tenths, rounded up.
func ruleVerdict(limits []LimitAnswer) (refused bool, headroom int64) {
	headroom = 10
	for i := range limits {
		refused = refused || !limits[i].Allowed
		headroom = min(headroom, limits[i].headroom())
	}
	return refused, headroom
}

// countSlotRefusal counts a check if hitLimits, the limits of one rule, refused
// it for want of slots.
func (st *ruleMetrics) countSlotRefusal(hitLimits []LimitAnswer) {
	for i := range hitLimits {
		if !hitLimits[i].Allowed && hitLimits[i].Limit.Kind == algorithms.Concurrency {
			st.slotsRefused.Add(1)
			return
		}
	}
}

// logRefusal logs a check that h's rule refused, if the log takes it now.
func (l *Limiter) logRefusal(f *refusalThrottle, a *Answer, h *rules.Hit, limits []LimitAnswer, q *Query) {
	if !l.refusalLog.admits(f) {
		return
	}
	tightest := tightestOf(limits)
	var text []byte
	for _, value := range subjectKey(h, q) {
		text = appendEscaped(text, "", value)
	}
	l.refusalLog.add(f, &Refusal{
		DecidedBy: a.DecidedBy, Rule: h.Rule.Name, Subject: string(text),
		Limit: tightest.share(), Used: tightest.Used, Unit: tightest.Limit.Unit, RetryAfter: tightest.RetryAfter,
	})
}

// logDenial is logRefusal for a check that a list or the default refused.
func (l *Limiter) logDenial(st *ruleMetrics, a *Answer) {
	f := &st.refusals
	if a.DecidedBy == ByNone {
		f = &st.byDefault
	}
	if !l.refusalLog.admits(f) {
		return
	}

	var text []byte
	a.Set.UsedAttributes(&a.scratch.match, func(name, value string) { text = appendEscaped(text, name, value) })
	l.refusalLog.add(f, &Refusal{DecidedBy: a.DecidedBy, Subject: string(text)})
}

// sampleWeight returns how many checks the current one stands for in the list
// of subjects used most; 0 if it is not sampled. Sampling takes a lock. So
// after the first exactSamples checks of a second, only one in sampleEvery is
// sampled.
func (l *Limiter) sampleWeight(sc *scratch) int64 {
	// Read fullSamplesLeft before lowering it: once it is used up, no check
	// writes to it.
	if l.fullSamplesLeft.Load() > 0 && l.fullSamplesLeft.Add(-1) >= 0 {
		return 1
	}
	sc.unsampled++
	if sc.unsampled < sampleEvery {
		return 0
	}
	sc.unsampled = 0
	return sampleEvery
}

// addToTops adds a decided check of h's subject to the lists of those that use
// most, are delayed, or are near to a limit. limits are h's part of a.Limits, and
// headroom is the least that one of them has left, in tenths.
func (l *Limiter) addToTops(h *rules.Hit, a *Answer, limits []LimitAnswer, headroom, weight int64, q *Query) {
	if weight > 0 && a.Allowed {
		l.tops[top.Used].Add(h, weight, q)
	}
	if a.Allowed && !h.Rule.Shadow && isDelayed(limits) {
		l.tops[top.Delayed].Add(h, 1, q)
	}
	if weight > 0 || headroom <= nearHeadroom {
		l.noteNearLimit(h, limits, a.Now.Wall, q)
	}
}

// isDelayed reports whether one of the limits delays the check.
func isDelayed(limits []LimitAnswer) bool {
	for i := range limits {
		if limits[i].Delay > 0 {
			return true
		}
	}
	return false
}

// noteNearLimit notes how near h's subject is at now, in Unix nanoseconds, to
// the limit of which it has the least left. That need not be the one that
// refused the check: a large cost may be refused by a limit of which half is left.
func (l *Limiter) noteNearLimit(h *rules.Hit, limits []LimitAnswer, now int64, q *Query) {
	nearest := &limits[0]
	for i := range limits {
		if limits[i].hasLessLeft(nearest) {
			nearest = &limits[i]
		}
	}

	near := top.Nearness{Used: nearest.Used, Limit: nearest.share(), ResetAfter: nearest.ResetAfter}
	l.nearLimits.Note(h, near, now, q)
}

// refusedListOf returns the list in which the refusals of a rule are counted.
func (l *Limiter) refusedListOf(rule *rules.Rule) *top.List {
	if rule.Shadow {
		return l.tops[top.Shadow]
	}
	return l.tops[top.Refused]
}

// countOtherUse counts the use of rules by a check that changes none of their
// metrics. Such a check is a peek. Or it names a rule, but a list decides the
// check or the rule does not apply to it.
func (active *activeRules) countOtherUse(q *Query, answer *Answer) {
	if answer.DecidedBy < ByList {
		for i := range answer.scratch.match.Hits {
			active.stats[answer.scratch.match.Hits[i].Rule.Index].otherUses.Add(1)
		}
		return
	}
	if q.Rule == "" {
		return
	}
	if rule := active.set.Rule(q.Rule); rule != nil {
		active.stats[rule.Index].otherUses.Add(1)
	}
}

// Tick lets the first checks of the new second all be sampled. If the
// interval of recent events and uses is over, it ends that. Call it every
// second.
func (l *Limiter) Tick() {
	l.fullSamplesLeft.Store(exactSamples)
	active := l.active.Load()
	now := l.interval()
	if active == nil || !l.intervals.advance(now) {
		return
	}
	for _, list := range l.tops {
		list.EndInterval()
	}
	active.endUseInterval(now)
}

// countUnlimited counts and bills a check for rules that applied without limit.
func (l *Limiter) countUnlimited(q *Query, a *Answer) {
	active := a.scratch.active
	hits := a.Unlimited()
	for i := range hits {
		h := &hits[i]
		limited := slices.IndexFunc(a.scratch.match.Hits,
			func(other rules.Hit) bool { return other.Rule == h.Rule && other.Subject == h.Subject })

		stats := active.stats[h.Rule.Index]
		switch {
		case limited >= 0: // it was counted with its limits
		case q.Peeks():
			stats.otherUses.Add(1)
		default:
			stats.stripe[l.stripeOf(a)].checks[DecisionAllowed][a.DecidedBy].Add(1)
			l.refusedListOf(h.Rule).Record(h, false, 0, q)
		}

		if !q.Peeks() && (a.Allowed || a.Counted) && h.Rule.CountsMonthly && l.meter != nil {
			for _, cost := range a.uncountedCosts(q, h) {
				if h.Rule.Bills(cost.Unit) {
					l.bill(q, a, h, cost)
				}
			}
		}
	}
}
