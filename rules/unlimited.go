package rules

import (
	"cmp"
	"slices"
)

// A limit that says that there is none has no counter: no node, region or partition matters to it. In a list of limits,
// those come last. Match reports them apart from the others.

// order returns 0 for a limit, and 1 for one that says that there is none.
func order(l *Limit) int {
	if l.Unlimited {
		return 1
	}
	return 0
}

// countLimited returns how many of a list of limits are limits.
func countLimited(limits []*Limit) int {
	n := len(limits)
	for n > 0 && limits[n-1].Unlimited {
		n--
	}
	return n
}

// unitsOfRules returns the units that each rule with `usage: monthly` names: in its limits, those of tiers, and overrides.
func (d *Document) unitsOfRules() map[string][]string {
	units := map[string][]string{}
	add := func(rule string, limits []*LimitSpec) {
		for _, l := range limits {
			if unit := cmp.Or(l.Unit, Requests); !slices.Contains(units[rule], unit) {
				units[rule] = append(units[rule], unit)
			}
		}
	}
	for _, r := range d.Rules {
		if r.Usage != usageMonthly {
			continue
		}
		units[r.Name] = nil
		add(r.Name, r.Limits)
		for _, t := range d.Tiers {
			if r.Tiered {
				add(r.Name, t.Limits)
			}
		}
	}
	if len(units) == 0 {
		return units
	}

	for _, g := range d.Subjects {
		for _, s := range g.Subjects {
			for _, o := range s.Overrides {
				if _, billed := units[o.Rule]; billed {
					add(o.Rule, o.Limits)
				}
			}
		}
	}
	return units
}
