package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/rules"
)

// Meter counts admitted cost for billing. *usage.Meter implements it.
type Meter interface {
	// Add adds to what a subject was admitted of a unit in the month that contains wall (Unix nanoseconds), and reports whether
	// it knows the subject. cost may be negative.
	Add(wall int64, subject rules.Hash, unit string, cost, checks int64) bool
	// Enter is Add for a subject that is not known yet. It keeps none of the strings. A nil key means that the key is unknown.
	Enter(wall int64, subject rules.Hash, rule string, key []string, unit string, cost, checks int64)
}

// UseMeter makes m count what is admitted from now on. Call it before the first check.
func (l *Limiter) UseMeter(m Meter) { l.meter = m }

// measure counts an admitted check for rules with `usage: monthly`. The cost counts once for each rule and unit, even if the
// rule has several limits in that unit.
func (l *Limiter) measure(q *Query, a *Answer) {
	ops := a.scratch.ops
	for i := range a.scratch.match.Hits {
		h := &a.scratch.match.Hits[i]
		for j, limit := range h.Limits {
			before := slices.ContainsFunc(h.Limits[:j], func(other *rules.Limit) bool { return other.UnitID == limit.UnitID })
			if h.Rule.Monthly && !before && !l.meter.Add(a.Now.Wall, h.Subject, limit.Unit, ops[j].Cost, 1) {
				l.meter.Enter(a.Now.Wall, h.Subject, h.Rule.Name, keyText(h.Rule, q), limit.Unit, ops[j].Cost, 1)
			}
		}
		ops = ops[len(h.Limits):]
	}
}

// keyText is subjectText, but never nil, even for a rule that has one counter for all.
func keyText(r *rules.Rule, q *Query) []string {
	if key := subjectText(r, q); key != nil {
		return key
	}
	return []string{}
}
