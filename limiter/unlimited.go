package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/rules"
)

// Rules without a limit, and limits of 0, need no counter. So every node
// decides them by itself, whatever happens to owners, regions and memory.

// Unlimited returns the hits of rules that have no limit, or none in some unit.
// It is valid until the Answer's next check.
func (a *Answer) Unlimited() []rules.Hit {
	if a.DecidedBy >= ByList {
		return nil
	}
	return a.scratch.match.Unlimited
}

// UnlimitedRule returns the rule that describes an answer without limits: the
// first rule that applied without limit and is not a shadow rule, or nil.
func (a *Answer) UnlimitedRule() *rules.Rule {
	for _, h := range a.Unlimited() {
		if !h.Rule.Shadow {
			return h.Rule
		}
	}
	return nil
}

// refuseByZero refuses the check if it has a cost for a limit of 0, and reports
// whether it did. It looks at no counter, and begins no block.
func (l *Limiter) refuseByZero(q *Query, a *Answer) bool {
	match := &a.scratch.match
	for i := range match.Hits {
		h := &match.Hits[i]
		subject, costs, mode := q.part(i)
		if h.Rule.Shadow || h.Rule.Envoy || mode == counters.CountMode {
			continue // a descriptor has a status of its own
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
		match.Hits[0] = *h
		match.Hits[0].Limits = h.Limits[j : j+1]
		match.Hits = match.Hits[:1]
		a.conclude(l)
		return true
	}
	return false
}

// concludeZero refuses a cost for a limit of 0. The counters were not asked
// about it: a count would make a counter, and a refusal would begin a block.
func (la *LimitAnswer) concludeZero(op *counters.Op) {
	if la.Cost > op.Cost && la.Limit.RefusesAll() {
		op.Decision.Allowed, op.Decision.RetryAfter = false, algorithms.Never
	}
}

// countUnlimited counts a check for each rule that applied to it without limit, and bills it.
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
			stats.unmatched.Add(1)
		default:
			stats.stripe[l.stripeOf(a)].checks[DecisionAllowed][a.DecidedBy].Add(1)
			l.topOf(h.Rule).count(h, false, 0, q)
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

// uncountedCosts returns the costs of a hit without limit, in the units that
// its rule bills or that the hit covers. It leaves out units that a counter of
// the same rule counts.
func (a *Answer) uncountedCosts(q *Query, h *rules.Hit) (list []UnitCost) {
	var counted []*rules.Limit
	for i := range a.scratch.match.Hits {
		other := &a.scratch.match.Hits[i]
		if other.Rule == h.Rule && other.Subject == h.Subject {
			counted = other.Limits
		}
	}
	add := func(unit string, cost int64) {
		covers := func(limit *rules.Limit) bool { return limit.Unit == unit || limit.Unit == "" }
		isCounted := slices.ContainsFunc(counted, covers)
		if !isCounted && (h.Rule.Bills(unit) || slices.ContainsFunc(h.Limits, covers)) {
			list = append(list, UnitCost{unit, cost})
		}
	}

	requests := int64(1)
	if h.Rule.CostUnitID == 0 {
		requests = h.Cost
	}
	for _, uc := range q.Costs {
		if uc.Unit == rules.Requests {
			requests = uc.Cost
			continue
		}
		add(uc.Unit, uc.Cost)
	}
	add(rules.Requests, requests)
	return list
}
