package limiter

import (
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// A check may take as much as there is of its cost. It looks how much that is,
// and then asks for it, like any check: so standbys and shares need not know of
// it. It asks the owner both times, and spends no lease. If others were faster,
// it looks again.

// ErrAtMost means that a check takes at most its cost, but is not about one limit.
var ErrAtMost = errors.New("mode at_most is for checks of one subject and one limit")

// maxLooks bounds how often a check looks again because others took what was left.
const maxLooks = 8

// checkAtMost decides q, which has AtMost.
func (l *Limiter) checkAtMost(q *Query, a *Answer) error {
	now := l.clock.Now()
	isDone, err := l.prepare(now, q, a)
	if err != nil {
		return err
	}
	unit, cost := a.soleCost()
	if !isDone && unit == "" || len(q.Subjects) > 1 {
		return fmt.Errorf("%w; this one asks %d limits", ErrAtMost, a.countLimits())
	}

	// No limit, or no cost: nothing can be less than asked for, so this is a plain
	// check.
	if isDone || cost == 0 {
		err := l.Check(q.withCost(q.Mode, "", 0), a)
		a.IsAtMost = true
		if a.Allowed {
			a.Granted = max(cost, q.costIn(unit))
		}
		return err
	}

	defer a.addTerms(func(t *terms) {
		t.atCounters = true
		t.isAtMost = true
	})()

	for range maxLooks {
		// Look how much there is.
		look := q.withCost(counters.PeekMode, unit, 0)
		if err := l.Check(look, a); err != nil {
			return err
		}
		take := cost
		if len(a.Limits) == 1 {
			take = min(cost, a.Limits[0].Remaining)
		}

		// Ask for that much. If nothing is left, one is asked for, so that the refusal
		// is one like any other. Others may have been faster: then look again.
		take = max(1, take)
		if err := l.Check(q.withCost(counters.CheckMode, unit, take), a); err != nil {
			return err
		}

		a.IsAtMost = true
		if a.Allowed {
			a.Granted = take
			return nil
		}

		// There was nothing left, so there is no point in another look.
		if take == 1 {
			return nil
		}
	}
	return nil
}

// soleCost returns the unit and the cost of the only limit of a prepared check.
// The unit is empty if there are more, or none.
func (a *Answer) soleCost() (unit string, cost int64) {
	if a.countLimits() != 1 {
		return "", 0
	}
	for i := range a.scratch.ops {
		if op := &a.scratch.ops[i]; !op.Block && i < len(a.Limits) {
			return a.Limits[i].Limit.Unit, min(op.Cost, algorithms.MaxAmount)
		}
	}
	return "", 0
}

// countLimits returns how many limits a prepared check asks.
func (a *Answer) countLimits() (n int) {
	for i := range a.scratch.ops {
		if !a.scratch.ops[i].Block {
			n++
		}
	}
	return n
}

// costIn returns the cost that q names in a unit, or in its only one.
func (q *Query) costIn(unit string) int64 {
	costs := q.subjectCosts()
	for _, cost := range costs {
		if cost.Unit == unit || unit == "" && len(costs) == 1 {
			return cost.Cost
		}
	}
	if len(costs) == 0 {
		return 1
	}
	return 0
}

// withCost returns q as a query of a mode that costs that much in a unit and
// nothing else. An empty unit leaves the costs as they are.
func (q *Query) withCost(mode counters.Mode, unit string, cost int64) *Query {
	part := *q
	part.AtMost = false
	costs := q.subjectCosts()
	if unit != "" {
		costs = []UnitCost{{Unit: unit, Cost: cost}}
	}

	if len(q.Subjects) == 0 {
		part.Mode, part.Costs = mode, costs
		return &part
	}

	subj := q.Subjects[0]
	subj.Mode, subj.Costs = mode, costs
	part.Subjects = []Subject{subj}
	return &part
}
