package limiter

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// listOps lists the counters that a matched check debits, with their limits as
// of now. If match has listed the counters or decided the check, it only sets
// a.Now.
func (l *Limiter) listOps(now algorithms.Instant, q *Query, a *Answer) error {
	a.Now = now
	if a.scratch.matchDecides || a.scratch.hasOps {
		return nil
	}

	hasOtherLimits := len(q.Subjects) == 0 && (a.scratch.active.hasGlobal || a.scratch.active.steps != nil)
	if hasOtherLimits {
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

	a.scratch.isRepeatable = isUsual(q) && !hasOtherLimits && !a.scratch.takesSlots &&
		!a.scratch.hasBlocks && len(a.scratch.match.Unlimited) == 0
	a.scratch.soleStats = nil

	if active := a.scratch.active; a.scratch.isRepeatable && len(a.scratch.ops) == 1 &&
		!hits[0].Rule.Shadow && !active.hasMonthly {
		a.scratch.soleStats = &active.stats[hits[0].Rule.Index].stripe[l.stripeOf(a)]
		l.prepareCount(a)
	}

	if len(q.Subjects) > 0 {
		if err := a.requireDistinctKeys(); err != nil {
			return err
		}
	} else if q.Mode != counters.CountMode && !a.scratch.takesSlots {
		return nil
	}

	return l.requireLevel(q, a)
}

// addOp appends a limit to the check and returns its op for the caller to fill
// in. It writes both in place, because copying these large structs would cost
// more than filling them in. subject is an index in Query.Subjects.
func (a *Answer) addOp(h *rules.Hit, limit *rules.Limit, subject int, cost int64) *counters.Op {
	sc := &a.scratch
	if len(sc.ops) == cap(sc.ops) {
		sc.ops = slices.Grow(sc.ops, 1)
	}

	sc.ops = sc.ops[:len(sc.ops)+1]
	op := &sc.ops[len(sc.ops)-1]
	op.Key = counterKey(h, limit)
	op.Limit = &limit.Limit
	op.Cost = cost
	op.Block = false
	op.Lends = false
	op.Full = false
	op.Decision = algorithms.Decision{}

	if len(a.Limits) == cap(a.Limits) {
		a.Limits = slices.Grow(a.Limits, 1)
	}

	a.Limits = a.Limits[:len(a.Limits)+1]
	la := &a.Limits[len(a.Limits)-1]

	// conclude writes the rest
	la.Rule = h.Rule
	la.Limit = limit
	la.Subject = int32(subject)
	la.Cost = cost
	la.ByHand = false
	la.Blocked = false
	la.byNodeShare = false
	la.lack = lackNothing
	la.isRegionIsolated = false

	return op
}

// costOf returns the cost in the limit's unit.
func costOf(costs []UnitCost, h *rules.Hit, limit *rules.Limit) int64 {
	for i := range costs {
		if costs[i].Unit == limit.Unit {
			return costs[i].Cost
		}
	}
	switch {
	case limit.UnitID == h.Rule.CostUnitID:
		return h.Cost
	case limit.UnitID == 0:
		return 1 // the rule's cost table is about another unit
	}
	return 0
}

func counterKey(h *rules.Hit, limit *rules.Limit) counters.Key {
	k := counters.Key{Subject: h.Subject.Hi, Counter: h.Subject.Lo ^ limit.ID}
	if h.Rule.Inline {
		k.Counter = counters.InlineCounter(k.Counter)
	}
	return k
}

// requireDistinctKeys returns an error if two of the check's counters have the same key.
func (a *Answer) requireDistinctKeys() error {
	for i := range a.scratch.ops {
		for j := range i {
			if a.scratch.ops[i].Key == a.scratch.ops[j].Key { // the hashes of their IDs collide: one chance in 2^32
				return fmt.Errorf("%w: two of the windows have the same hash; change one of them slightly", ErrInline)
			}
		}
	}
	return nil
}

// modesLevel is the feature level at which all nodes support the modes of ops,
// windows that begin with the first hit, and slots.
const modesLevel = 2

// requireLevel returns an error if the check needs something that not all nodes
// of the cluster support.
func (l *Limiter) requireLevel(q *Query, a *Answer) error {
	if l.membership == nil || l.membership.Level == nil || l.membership.Level() >= modesLevel {
		return nil
	}
	for i := range a.scratch.ops {
		op := &a.scratch.ops[i]
		if op.Limit.Kind == algorithms.FirstWindow || op.Limit.Kind == algorithms.Concurrency ||
			op.Mode != counters.CheckMode && !q.Peeks() {
			return fmt.Errorf("%w: mode count, different modes in one check, windows from the first hit and slots need level %d, but the cluster is at %d",
				ErrLevelTooLow, modesLevel, l.membership.Level())
		}
	}
	return nil
}
