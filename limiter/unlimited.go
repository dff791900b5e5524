package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
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

// uncountedCosts returns q's costs that no counter counts for h, a hit without
// limit. They are in the units that h's rule bills or that h covers, except for
// those that a limit of the same rule and subject counts.
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
		if uc.Unit == document.Requests {
			requests = uc.Cost
			continue
		}
		add(uc.Unit, uc.Cost)
	}
	add(document.Requests, requests)
	return list
}
