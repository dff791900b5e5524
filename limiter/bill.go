package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules"
)

// bill says in whose bill an adjustment is counted.
type bill struct {
	hashLo uint64 // of the subject's hash
	rule   string
	key    []string
	units  []string // of the change's first ops
	// uncounted is billed besides: in units without limit.
	uncounted []UnitCost
}

// billOf returns the bill of u, for a change of its limits.
func billOf(u *Usage) *bill {
	b := &bill{hashLo: u.Hash.Lo, rule: u.Rule.Name, key: u.Key, uncounted: u.uncounted}
	for i := range u.Limits {
		b.units = append(b.units, u.Limits[i].Limit.Unit)
	}
	return b
}

func (b *bill) code(c *wire.Coder) {
	wire.Fixed(c, &b.hashLo)
	c.Text(&b.rule, maxUnitBytes)
	c.Texts(&b.key, maxKeyValues, rules.MaxShownBytes)
	c.Texts(&b.units, maxSubjectOps, maxUnitBytes)
	wire.List(c, &b.uncounted, MaxCosts, 2, func(u *UnitCost) {
		c.Text(&u.Unit, maxUnitBytes)
		wire.Varint(c, &u.Cost)
		c.Require(u.Cost >= -algorithms.MaxAmount && u.Cost <= algorithms.MaxAmount)
	})
}

// correctBill counts what c, which has just been carried out here, has applied.
func (c *change) correctBill(l *Limiter, wall int64) {
	b := c.bill
	if b == nil || l.meter == nil {
		return
	}

	key := b.key
	if key == nil {
		key = []string{} // the rule has no key attributes; nil would mean an unknown key
	}

	subject := rules.Hash{Hi: c.subject(), Lo: b.hashLo}
	list := slices.Clone(b.uncounted)
	for i, unit := range b.units {
		if !slices.Contains(b.units[:i], unit) {
			list = append(list, UnitCost{unit, c.mostApplied(unit)})
		}
	}

	for _, one := range list {
		if one.Cost != 0 && !l.meter.Add(wall, subject, one.Unit, one.Cost, 0) {
			l.meter.AddNamed(wall, subject, b.rule, key, one.Unit, one.Cost, 0)
		}
	}
}

// mostApplied returns what was applied to the limits in a unit: of several, the most.
func (c *change) mostApplied(unit string) (most int64) {
	for i := range c.bill.units {
		if c.bill.units[i] == unit {
			most = furtherFromZero(most, c.applied[i])
		}
	}
	return most
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
func (l *Limiter) bill(q *Query, a *Answer, h *rules.Hit, c UnitCost) {
	if !l.meter.Add(a.Now.Wall, h.Subject, c.Unit, c.Cost, 1) {
		l.meter.AddNamed(a.Now.Wall, h.Subject, h.Rule.Name, billingKey(h, q), c.Unit, c.Cost, 1)
	}
}

// billingKey is subjectKey, but never nil, even for a rule without key attributes.
func billingKey(h *rules.Hit, q *Query) []string {
	if key := subjectKey(h, q); key != nil {
		return key
	}
	return []string{}
}
