package rules

import (
	"cmp"
	"slices"
)

// A limit that says that there is none has no counter: no node, region or
// partition matters to it. In a list of limits, those come last. Match reports
// them apart from the others.

// unlimitedLast returns what limits are sorted by: 1 for a limit that says that
// there is none, else 0.
func unlimitedLast(l *Limit) int {
	if l.Unlimited {
		return 1
	}
	return 0
}

// countLimited returns how many of limits do limit something. Those that say
// unlimited come last.
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
