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
