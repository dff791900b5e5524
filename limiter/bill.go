package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// billCorrection says whose bill an adjustment corrects, and in which units.
type billCorrection struct {
	hashLo uint64 // of the subject's hash
	rule   string
	key    []string
	units  []string // of the change's first ops
	// billedOnly are costs in units without a limit, which are billed as well.
	billedOnly []UnitCost
}

func (bi *billCorrection) code(c *wire.Coder) {
	wire.Fixed(c, &bi.hashLo)
	c.Text(&bi.rule, maxRuleBytes)
	c.Texts(&bi.key, maxKeyValues, document.MaxShownBytes)
	c.Texts(&bi.units, maxSubjectOps, maxUnitBytes)
	wire.List(c, &bi.billedOnly, MaxCosts, 2, func(cost *UnitCost) {
		c.Text(&cost.Unit, maxUnitBytes)
		wire.Varint(c, &cost.Cost)
		c.Require(cost.Cost >= -algorithms.MaxAmount && cost.Cost <= algorithms.MaxAmount)
	})
}

// Meter counts admitted cost for billing. *usage.Meter implements it.
type Meter interface {
	// Add adds cost and checks to what was admitted for a subject in a unit, in the
	// month that contains wall (Unix nanoseconds). It returns false if it does not
	// know the subject. cost may be negative.
	Add(wall int64, subject rules.Hash, unit string, cost, checks int64) bool
	// AddNamed is Add for a subject that Add does not know. It keeps none of the
	// strings. A nil key means that the key is unknown.
	AddNamed(wall int64, subject rules.Hash, rule string, key []string, unit string, cost, checks int64)
}

// UseMeter makes the limiter report admitted costs to m. Call it before the first check.
func (l *Limiter) UseMeter(m Meter) { l.meter = m }

// billCheck reports an admitted check to the meter, for rules with `usage:
// monthly`. The cost counts once for each rule and unit, even if the rule has
// several limits in the unit.
func (l *Limiter) billCheck(q *Query, a *Answer) {
	limits := a.Limits
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		for j, limit := range h.Limits {
			before := slices.ContainsFunc(h.Limits[:j],
				func(other *rules.Limit) bool { return other.UnitID == limit.UnitID })
			if h.Rule.CountsMonthly && !before {
				l.bill(q, a, h, UnitCost{limit.Unit, limits[j].Cost})
			}
		}
		limits = limits[len(h.Limits):]
	}
}

// bill reports to the meter what one check of h's subject cost.
func (l *Limiter) bill(q *Query, a *Answer, h *rules.Hit, cost UnitCost) {
	if !l.meter.Add(a.Now.Wall, h.Subject, cost.Unit, cost.Cost, 1) {
		l.meter.AddNamed(a.Now.Wall, h.Subject, h.Rule.Name, billingKey(h, q), cost.Unit, cost.Cost, 1)
	}
}

// billingKey is subjectKey, but never nil, even for a rule without key
// attributes: to a Meter, a nil key means that the key is unknown.
func billingKey(h *rules.Hit, q *Query) []string {
	if key := subjectKey(h, q); key != nil {
		return key
	}
	return []string{}
}

// furtherFromZero returns a or, if it is further from zero, b.
func furtherFromZero(a, b int64) int64 {
	if max(b, -b) > max(a, -a) {
		return b
	}
	return a
}
