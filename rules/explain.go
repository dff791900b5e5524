package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/rules/document"
)

// Explanation says whether a rule applies to a check and, if not, which of its conditions fail.
type Explanation struct {
	Rule    string   `json:"rule"`
	Applies bool     `json:"applies"`
	Why     []string `json:"why,omitempty"` // such as: method: "post" is not "POST"
}

// Bounds of an explanation.
const (
	maxExplainedValue  = 128 // bytes of a value
	maxExplainedValues = 8   // of a condition
)

// Explain says whether each rule applies to attrs, and if not, why. If only is
// not nil, it explains no other rule. It leaves out the lists, which decide
// before any rule.
func (s *Set) Explain(attrs []Attribute, only *Rule) []Explanation {
	var m Match
	s.Match(attrs, only, &m)
	applies := map[int]bool{}
	for i := range m.Hits {
		applies[m.Hits[i].Rule.Index] = true
	}

	out := []Explanation{}
	for i, spec := range s.Document.Rules {
		if only != nil && only.Index != i {
			continue
		}
		e := Explanation{Rule: spec.Name, Applies: applies[i]}
		if !e.Applies {
			e.Why = s.whyNot(spec, s.Rules[i], &m)
		}
		out = append(out, e)
	}
	return out
}

// whyNot lists the conditions of a rule that the check in m fails.
func (s *Set) whyNot(spec *document.RuleSpec, r *Rule, m *Match) (why []string) {
	add := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	valueOf := func(name string) *value {
		if n := s.attributes.find(name); n >= 0 {
			return m.value(n)
		}
		return nil
	}

	for _, part := range spec.Key {
		if slices.ContainsFunc(part, func(name string) bool { return valueOf(name) != nil }) {
			continue
		}

		if len(part) == 1 {
			add("key: %s is absent", part[0])
		} else {
			add("key: none of %s is present", strings.Join(part, ", "))
		}
	}

	for i, c := range spec.Match {
		v := valueOf(c.Attribute)
		switch {
		case v == nil:
			add("%s: it is absent, not %s", c.Attribute, explainValues(c.Values))
		case !r.match[i].isMetBy(m, v):
			add("%s: %s is not %s", c.Attribute, explainValue(v.text), explainValues(c.Values))
		}
	}

	for i, c := range spec.Not {
		if v := valueOf(c.Attribute); v != nil && r.not[i].isMetBy(m, v) {
			add("not %s: %s is %s", c.Attribute, explainValue(v.text), explainValues(c.Values))
		}
	}

	for _, name := range spec.Absent {
		if v := valueOf(name); v != nil {
			add("absent: %s is present, %s", name, explainValue(v.text))
		}
	}

	if len(why) > 0 {
		return why
	}

	// All other conditions hold, so the subject's tier excludes the rule.
	tier := s.tierIn(r, m)
	switch {
	case tier == "" && spec.Tiered:
		add("tiered: the subject has no tier, and there is no default_tier")
	case tier == "":
		add("tiers: the subject has no tier, not %s", explainValues(spec.OnTiers))
	default:
		add("tiers: %s is not %s", explainValue(tier), explainValues(spec.OnTiers))
	}

	return why
}

// tierIn returns the tier of the subject that m has for r, or "" if there is none.
func (s *Set) tierIn(r *Rule, m *Match) string {
	for _, variant := range r.variants() {
		if slices.ContainsFunc(variant.key, func(k keyAttribute) bool { return m.valueIndex[k.number] == 0 }) {
			continue
		}

		var beside *overlay
		if s.mayHaveEntry(variant) {
			beside = s.overlay
		}
		if tier, _ := variant.tierOf(m, variant, beside); tier >= 0 {
			return s.Document.Tiers[tier].Name
		}
		break
	}

	return ""
}

// explainValue quotes a value, and cuts a long one.
func explainValue(text string) string {
	if len(text) > maxExplainedValue {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(text[:maxExplainedValue], ""))
	}
	return fmt.Sprintf("%q", text)
}

// explainValues quotes the values of a condition.
func explainValues(values []string) string {
	var quoted []string
	for _, v := range values[:min(len(values), maxExplainedValues)] {
		quoted = append(quoted, explainValue(v))
	}
	text := strings.Join(quoted, ", ")
	if more := len(values) - maxExplainedValues; more > 0 {
		text += fmt.Sprintf(" or one of %d more", more)
	}
	if len(values) > 1 {
		return "one of " + text
	}
	return text
}
