package rules

import (
	"cmp"
	"fmt"
	"strings"
)

// Warnings lists settings of d that have no effect, so that none is ignored silently, and global limits of which some region
// gets nothing. Errors have positions only if d is unchanged since it was parsed.
func (d *Document) Warnings() []Error {
	var w collector
	for i, r := range d.Rules {
		path := fmt.Sprintf("rules[%d]", i)
		d.warnShares(&w, r, path+".limits", r.Limits)
		for _, t := range d.Tiers {
			if r.Tiered {
				d.warnShares(&w, r, keyPath("tiers", t.Name)+".limits", t.Limits)
			}
		}
		if r.Usage != "" && r.Shadow {
			w.add(r.position("usage"), path+".usage", "a shadow rule is not counted for bills")
		}
	}
	if d.source == "" {
		for i := range w.errs {
			w.errs[i].Line, w.errs[i].Column = 0, 0
		}
	}
	w.sort()
	return w.errs
}

// warnShares looks for limits that are too small to divide among the regions that a rule lists.
func (d *Document) warnShares(w *collector, r *RuleSpec, path string, limits []*LimitSpec) {
	var names, none []string
	for _, g := range r.Regions {
		names = append(names, g.Name)
	}
	for i, l := range limits {
		amounts, bursts := Split(l.Limit, names, r.Regions), Split(cmp.Or(l.Burst, l.Limit), names, r.Regions)
		none = none[:0]
		for j, g := range r.Regions {
			if g.Part > 0 && (amounts[j] == 0 || d.kind(l).Bucket() && bursts[j] == 0) {
				none = append(none, g.Name)
			}
		}
		if len(none) > 0 {
			w.add(l.pos, fmt.Sprintf("%s[%d]", path, i), "too small to divide among the regions in whole units: these refuse everything: %s", shorten(strings.Join(none, ", ")))
		}
	}
}
