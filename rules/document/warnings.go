package document

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/rlnode/rlnode/algorithms"
)

// Warnings lists what is legal in d, but probably a mistake:
//
//   - what [Review] would refuse;
//   - settings that have no effect;
//   - values that are written as neither text nor plain integers;
//   - names that look misspelled, and values that no check has;
//   - global limits of which some region gets nothing.
//
// The warnings have positions only if d is unchanged since it was parsed.
func (d *Document) Warnings() []Error {
	w := collector{errs: d.Objections()}
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
		if r.Refusal != nil && r.Shadow {
			w.add(r.position("refusal"), path+".refusal", "a shadow rule refuses nothing")
		}
		if r.Refusal != nil && r.Refusal.looksLikeAnObject() {
			w.add(r.position("refusal"), path+".refusal.body",
				"it begins like a JSON object, but is none, and is sent as plain text")
		}
		if r.Usage != "" && r.Shadow {
			w.add(r.position("usage"), path+".usage", "a shadow rule is not counted for bills")
		}

		if r.Cost != nil {
			for _, v := range r.Cost.Values {
				warnExact(&w, r.position("cost"), path+".cost.values", v.Value)
			}
		}
	}

	w.errs = append(w.errs, d.loose...)
	d.warnValues(&w)
	for _, g := range d.Subjects {
		for _, s := range g.Subjects {
			warnExact(&w, s.pos, keyPath("subjects", g.Attribute), s.Value)
		}
	}
	d.warnNames(&w)

	return d.placed(&w)
}

// mayBeLeaky reports whether some subject of r has a leaky bucket. A leaky
// bucket delays checks without on_limit: delay, and max_delay bounds how long a
// check with `wait: true` is held.
func (d *Document) mayBeLeaky(r *RuleSpec) bool {
	return d.someLimit(r, func(l *LimitSpec) bool { return d.kind(l) == algorithms.LeakyBucket })
}

// warnShares looks for limits that are too small to divide among the regions that a rule lists.
func (d *Document) warnShares(w *collector, r *RuleSpec, path string, limits []*LimitSpec) {
	var names, empty []string
	for _, g := range r.Regions {
		names = append(names, g.Name)
	}

	for i, l := range limits {
		if l.Unlimited || l.Limit == 0 {
			continue
		}

		amounts := Split(l.Limit, names, r.Regions)
		bursts := Split(cmp.Or(l.Burst, l.Limit), names, r.Regions)
		empty = empty[:0]
		for j, g := range r.Regions {
			if g.Part > 0 && (amounts[j] == 0 || d.kind(l).IsBucket() && bursts[j] == 0) {
				empty = append(empty, g.Name)
			}
		}

		if len(empty) > 0 {
			w.add(l.pos, fmt.Sprintf("%s[%d]", path, i),
				"too small to divide among the regions in whole units: these refuse everything: %s",
				Shorten(strings.Join(empty, ", ")))
		}
	}
}
