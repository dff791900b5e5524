package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
)

// Warnings lists the settings of d that have no effect, and the global limits of which some region gets nothing. Errors have
// positions only if d is unchanged since it was parsed.
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
		if r.MaxDelay.Duration > 0 && cmp.Or(r.OnLimit, d.Defaults.OnLimit) != "delay" && !d.mayBeLeaky(r) {
			w.add(r.position("max_delay"), path+".max_delay", "it has no effect without on_limit: delay")
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

// mayBeLeaky reports whether some subject of r has a leaky bucket. It delays checks by itself, and max_delay bounds how long a
// check with `wait: true` is held.
func (d *Document) mayBeLeaky(r *RuleSpec) bool {
	leaky := func(l *LimitSpec) bool { return d.kind(l) == algorithms.LeakyBucket }
	if slices.ContainsFunc(r.Limits, leaky) {
		return true
	}
	for _, t := range d.Tiers {
		if r.Tiered && slices.ContainsFunc(t.Limits, leaky) {
			return true
		}
	}
	for _, g := range d.Subjects {
		for _, s := range g.Subjects {
			for _, o := range s.Overrides {
				if o.Rule == r.Name && slices.ContainsFunc(o.Limits, leaky) {
					return true
				}
			}
		}
	}
	return false
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
