package limiter

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// prepare matches q against the rules in force and lists the counters to ask.
// If q needs no counter, prepare decides the check, and done is true.
func (l *Limiter) prepare(now algorithms.Instant, q *Query, a *Answer) (done bool, err error) {
	if err := l.match(now.Wall, q, a); err != nil {
		return false, err
	}

	err = l.listOps(now, q, a)
	return a.scratch.matchDecides, err
}

// match finds the rules and limits for q. (It is one function because a split
// would slow down every check.) It has three outcomes:
//
//  1. q needs no counter: match decides the check (matchDecides).
//  2. q differs from a's last check only in its subjects: match reuses the ops
//     of that check (hasOps).
//  3. Otherwise, listOps lists the ops later.
//
// In (2) and (3), match prefetches the counters. wall is the time of the check
// in Unix nanoseconds; 0 means now.
func (l *Limiter) match(wall int64, q *Query, a *Answer) error {
	active := l.active.Load()
	sameOps := a.countReusableOps(active, q)
	a.begin(active)

	match := &a.scratch.match
	match.ReuseHits = sameOps > 0
	match.Now = wall / int64(time.Millisecond)
	match.Clock = l.wallClock

	// The subjects came with their limits, or a descriptor tree has matched them.
	if len(q.Subjects) > 0 {
		if q.MatchedBy != nil && !q.MatchedBy.SameRules(active.set) {
			return ErrRulesChanged
		}
		if err := a.matchSubjects(q); err != nil {
			return err
		}

		refused := l.refuseByZero(q, a)
		if !refused {
			l.prefetch(match)
		}
		return nil
	}

	var rule *rules.Rule
	if q.Rule != "" || q.ByKey {
		var err error
		rule, err = l.findRule(active, q.Rule)
		if err != nil {
			return err
		}
	}

	if !q.ByKey {
		active.set.Match(q.Attributes, rule, match)
		if match.Undeclared > 0 {
			l.undeclared.Add(int64(match.Undeclared))
		}
	} else if err := active.set.MatchKey(rule, q.Key, match); err != nil {
		return err
	}

	// Most checks find the same rules and limits as the caller's last check. None
	// of these rules may block a subject by hand: see rules.Set.isUniform. Others
	// may need no counter at all.
	switch {
	case match.HitsReused:
		a.listOpsAgain(sameOps)
		if l.table.PrefetchPays() {
			for i := range a.scratch.ops {
				l.table.Prefetch(a.scratch.ops[i].Key)
			}
		}
		l.lookUpTop(a)
		return nil
	case match.List != rules.Unlisted:
		a.decideByMatching(match.List == rules.Allowed, ByList)
		return nil
	case len(match.Hits)+len(match.Unlimited) == 0:
		a.decideByMatching(!active.set.DefaultDeny, ByNone)
		return nil
	case len(match.Hits) == 0:
		a.decideByMatching(true, ByOwner)
		return nil
	}

	// A limit of 0 refuses before a block by hand does.
	if active.set.HasZero() {
		refused := l.refuseByZero(q, a)
		if refused {
			return nil
		}
	}
	if active.set.HasHandBlocks() {
		refused := l.refuseBlocked(q, a)
		if refused {
			return nil
		}
	}

	l.prefetch(match)
	return nil
}

// listOps sets a.Now. Then it lists the counters that a matched check debits,
// with their limits as of now, unless match has listed them or decided the
// check. The error wraps ErrAcquire, ErrInline or ErrLevelTooLow.
func (l *Limiter) listOps(now algorithms.Instant, q *Query, a *Answer) error {
	a.Now = now
	if a.scratch.matchDecides || a.scratch.hasOps {
		return nil
	}

	// Shares change with the time, and steps with the load.
	limitsVary := len(q.Subjects) == 0 && (a.scratch.active.hasDividedLimits || a.scratch.active.steps != nil)
	if limitsVary {
		a.scratch.active.adjustLimits(&a.scratch.match, now.Wall)
	}

	hits := a.scratch.match.Hits
	a.scratch.hasLocal = false

	for i := range hits {
		h := &hits[i]
		subject, costs, mode := q.part(i)

		if err := a.slotsNeedAcquire(h, mode); err != nil {
			return err
		}

		a.scratch.hasLocal = a.scratch.hasLocal || h.Rule.Consistency == rules.Local

		for _, limit := range h.Limits {
			cost := costOf(costs, h, limit)
			if limit.Kind == algorithms.Concurrency && a.scratch.takesSlots {
				cost = cmp.Or(q.Slots, cost, 1)
			}

			op := a.addOp(h, limit, subject, cost)
			op.Shadow = h.Rule.Shadow
			op.Mode = mode
			op.Lends = isLoanable(h.Rule, limit)

			if limit.RefusesAll() && (mode == counters.CountMode || h.Rule.Shadow) {
				op.Cost = 0 // see concludeZero
			}
		}

		if h.Rule.Blocks != nil {
			a.addBlocks(h, mode)
		}
	}

	l.rememberRepeatable(q, a, limitsVary)

	if len(q.Subjects) > 0 {
		if err := a.requireDistinctKeys(); err != nil {
			return err
		}
	} else if q.Mode != counters.CountMode && !a.scratch.takesSlots {
		return nil
	}

	return l.requireLevel(q, a)
}

// rememberRepeatable records in a's scratch whether another check may reuse a's
// ops and, if so, the ruleStripe that takes all that the check counts, if it is a
// single one. limitsVary means that the limits depend on the time or the load.
func (l *Limiter) rememberRepeatable(q *Query, a *Answer, limitsVary bool) {
	sc := &a.scratch
	sc.opsReusable = isUsual(q) && !limitsVary && !sc.takesSlots && !sc.hasBlockOps &&
		len(sc.match.Unlimited) == 0
	sc.soleCounts = nil

	if !sc.opsReusable || len(sc.ops) != 1 || sc.active.hasMonthly {
		return
	}
	rule := sc.match.Hits[0].Rule
	if !rule.Shadow {
		sc.soleCounts = &sc.active.stats[rule.Index].stripe[l.stripeOf(a)]
		l.lookUpTop(a)
	}
}

// matchSubjects finds the limits of q's subjects.
func (a *Answer) matchSubjects(q *Query) error {
	for i := range q.Subjects {
		subj := &q.Subjects[i]
		match := &a.scratch.match
		var err error
		if subj.Node != nil {
			err = a.Set.MatchEnvoy(subj.Node, subj.Entries, subj.Shadow, i == 0, match)
		} else {
			err = a.Set.MatchInline(&subj.InlineSubject, i == 0, match)
		}

		if err != nil {
			if len(q.Subjects) > 1 {
				err = &SubjectError{Subject: i, Err: err}
			}
			return err
		}
	}

	for i := range a.scratch.match.Hits {
		if h := &a.scratch.match.Hits[i]; h.Rule.Inline {
			h.Subject.Lo = counters.InlineCounter(h.Subject.Lo)
		}
	}

	return nil
}

// decideByMatching records the decision on a check that needs no counter.
func (a *Answer) decideByMatching(allowed bool, by DecidedBy) {
	a.Allowed, a.DecidedBy = allowed, by
	a.scratch.matchDecides = true
	a.scratch.soleCounts = nil
}

// prefetch begins to load the counters of match, if that saves time.
func (l *Limiter) prefetch(match *rules.Match) {
	if !l.table.PrefetchPays() {
		return
	}
	for i := range match.Hits {
		h := &match.Hits[i]
		for _, limit := range h.Limits {
			l.table.Prefetch(counterKey(h, limit))
		}
	}
}

// begin clears a for a new check.
func (a *Answer) begin(active *activeRules) {
	a.Set, a.RulesVersion = active.set, active.set.Version
	a.scratch.active = active
	a.scratch.hasBlockOps = false
	a.scratch.opsAsListed = false
	a.scratch.matchDecides = false
	a.scratch.hasOps = false
	a.scratch.countsHandBlocked = false
	a.scratch.failure = nil
	a.Limits = a.Limits[:0]
	a.TightestIndex = -1
	a.Counted = false
	a.IsAtMost, a.Granted = false, 0
	a.queuePlace = nil
	a.scratch.ops = a.scratch.ops[:0]
}

// countReusableOps returns how many ops of a's last check can serve q, or 0. They
// serve q if q turns out to have the same hits with other subjects, as a
// caller's next check usually does. If other nodes took part in the last check,
// dropUndecided may have removed some of its ops, so none is used again.
func (a *Answer) countReusableOps(active *activeRules, q *Query) int {
	sc := &a.scratch
	if sc.active == active && sc.opsAsListed && sc.opsReusable && isUsual(q) {
		return len(sc.ops)
	}
	return 0
}

// isUsual reports whether q is a check in CheckMode, of attributes or a key,
// that gives no costs.
func isUsual(q *Query) bool {
	return q.Mode == counters.CheckMode && len(q.Costs) == 0 && len(q.Subjects) == 0
}

// listOpsAgain is listOps for a check whose hits differ from the last check's
// only in their subjects. It reuses the n ops of the last check.
func (a *Answer) listOpsAgain(n int) {
	sc := &a.scratch
	sc.ops = sc.ops[:n]
	a.Limits = a.Limits[:n]
	sc.hasOps = true

	i := 0
	for j := range sc.match.Hits {
		h := &sc.match.Hits[j]
		for _, limit := range h.Limits {
			op := &sc.ops[i]
			op.Key = counterKey(h, limit)
			op.Decision = algorithms.Decision{}
			op.NoRoom = false
			i++
		}
	}
}

// slotsNeedAcquire returns an error if h has a limit of slots, but the call is
// neither an acquire, nor a reservation, nor a peek.
func (a *Answer) slotsNeedAcquire(h *rules.Hit, mode counters.Mode) error {
	if a.scratch.takesSlots || mode == counters.PeekMode || !rules.HasSlots(h.Limits) {
		return nil
	}
	return fmt.Errorf("rule %q: %w", h.Rule.Name, ErrAcquire)
}

// refuseByZero refuses a check that has a cost for a limit of 0, and reports
// whether it did. It asks no counter, so the refusal begins no block.
func (l *Limiter) refuseByZero(q *Query, a *Answer) bool {
	match := &a.scratch.match
	for i := range match.Hits {
		h := &match.Hits[i]
		subject, costs, mode := q.part(i)
		// Each of Envoy's descriptors has a status, and a count reaches all limits.
		if h.Rule.Shadow || h.Rule.Envoy || mode == counters.CountMode {
			continue
		}
		j := slices.IndexFunc(h.Limits,
			func(limit *rules.Limit) bool { return limit.RefusesAll() && costOf(costs, h, limit) > 0 })
		if j < 0 {
			continue
		}

		limit := h.Limits[j]

		op := a.addOp(h, limit, subject, costOf(costs, h, limit))
		op.Shadow = false
		op.Mode = mode
		op.Decision = algorithms.Decision{RetryAfter: algorithms.Never}

		a.decideByMatching(false, ByOwner)
		// The answer has only the limit that refuses.
		match.Hits[0] = *h
		match.Hits[0].Limits = h.Limits[j : j+1]
		match.Hits = match.Hits[:1]
		a.conclude(l)
		return true
	}
	return false
}
