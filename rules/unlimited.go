package rules

import (
	"cmp"
	"slices"
)

// An unlimited limit says that there is no limit. It has no counter, so no
// node, region or partition matters to it. A list of limits has its unlimited
// ones last, and Match reports them apart from the others.

// unlimitedLast returns the key by which limits are sorted: 1 if l is
// unlimited, else 0.
func unlimitedLast(l *Limit) int {
	if l.Unlimited {
		return 1
	}
	return 0
}

// countLimited returns the number of limits before the unlimited ones, which
// come last.
func countLimited(limits []*Limit) int {
	n := len(limits)
	for n > 0 && limits[n-1].Unlimited {
		n--
	}
	return n
}

// unitsOfRules returns the units that each rule with `usage: monthly` names: in
// its limits, those of tiers, and overrides.
func (d *Document) unitsOfRules() map[string][]string {
	units := map[string][]string{}
	for _, r := range d.Rules {
		if r.Usage == usageMonthly {
			units[r.Name] = nil
		}
	}

	if len(units) == 0 {
		return units
	}

	d.eachLimits("", func(rule string, _ origin, limits []*LimitSpec) {
		for _, l := range limits {
			unit := cmp.Or(l.Unit, Requests)
			if known, billed := units[rule]; billed && !slices.Contains(known, unit) {
				units[rule] = append(known, unit)
			}
		}
	})
	return units
}
