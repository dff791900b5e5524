package limiter

import (
	"errors"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// A check with AtMost takes as much of its cost as is left. It is made of other
// checks: a peek tells how much is left, and a plain check takes that amount. So
// standbys and shares need not know of AtMost. Both ask the owner and spend no
// lease. If others take what was left in between, the check peeks again.

// ErrAtMost means that a check with AtMost asks several limits or subjects.
var ErrAtMost = errors.New("mode at_most is for checks of one subject and one limit")

// maxPeeks bounds how often a check peeks because others took what was left.
const maxPeeks = 8

func (l *Limiter) checkAtMost(q *Query, a *Answer) error {
	now := l.clock.Now()
	isDone, err := l.prepare(now, q, a)
	if err != nil {
		return err
	}
	unit, cost := a.soleCost()
	if !isDone && unit == "" || len(q.Subjects) > 1 {
		return ErrAtMost
	}

	// If matching decides the check, or the limit's cost is 0, nothing is taken
	// from a counter: a plain check tells whether all of the cost is granted.
	if isDone || cost == 0 {
		err := l.Check(q.withCost(q.Mode, "", 0), a)
		a.IsAtMost = true
		if a.Allowed {
			a.Granted = max(cost, q.costIn(unit))
		}
		return err
	}

	// All rounds together take as long as one check may.
	until := time.Now().Add(checkTimeout - replySlack)
	restore := a.addOptions(func(o *options) {
		o.bypassLeases = true
		o.isAtMost = true
		o.deadline = until
	})
	defer restore()

	for range maxPeeks {
		peek := q.withCost(counters.PeekMode, unit, 0)
		if err := l.Check(peek, a); err != nil {
			return err
		}

		// New rules may come before the peek, with several limits or none. Then try
		// the whole cost.
		take := cost
		if len(a.Limits) == 1 {
			take = min(cost, a.Limits[0].Remaining)
		}

		// Take that much, but at least 1: if nothing is left, the check must be refused
		// like any other.
		take = max(1, take)
		if err := l.Check(q.withCost(counters.CheckMode, unit, take), a); err != nil {
			return err
		}

		a.IsAtMost = true
		if a.Allowed {
			a.Granted = take
			return nil
		}

		// Not even 1 is left, so there is no point in another peek.
		if take == 1 {
			return nil
		}
	}
	return nil
}

// soleCost returns the unit and the cost of the only limit of a prepared check.
// The unit is empty if the check has several limits, or none.
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

// costIn returns the cost of q in a unit or, if unit is empty, in the only unit
// that q names. It returns 1 if q names no costs.
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

// withCost returns a copy of q in a mode, without AtMost, that costs the given
// amount in a unit and nothing else. An empty unit leaves the costs as they
// are.
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
