package limiter

import (
	"slices"

	"github.com/rlnode/rlnode/rules"
)

// Meter counts what is admitted, for bills. *usage.Meter is one.
type Meter interface {
	// Add adds to what a subject was admitted of a unit in the month of wall (nanoseconds since 1970), and reports whether
	// it knows the subject. cost may be below zero.
	Add(wall int64, subject rules.Hash, unit string, cost, checks int64) bool
	// Enter is Add for a subject that is not known yet. It keeps none of the strings. A nil key is one that can't be told.
	Enter(wall int64, subject rules.Hash, rule string, key []string, unit string, cost, checks int64)
}

// UseMeter has what is admitted from now on counted by m. It is called before the first check.
func (l *Limiter) UseMeter(m Meter) { l.meter = m }

// measure counts an admitted check for rules with `usage: monthly`: its cost once for each rule and unit, however many
// limits there are in it.
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

// keyText is subjectText, and not nil for a rule that has one counter for all.
func keyText(r *rules.Rule, q *Query) []string {
	if key := subjectText(r, q); key != nil {
		return key
	}
	return []string{}
}
