package document

import (
	"cmp"
	"slices"
)

// Document is a complete and valid rules file. It is immutable: a change
// returns a new one. Where no comment says otherwise, an empty string or a 0
// means that the key was left out.
type Document struct {
	Attributes  []*AttributeSpec // nil if left out: any attribute may be named
	Defaults    Defaults
	Default     string // allow or deny
	Headers     *Headers
	Deny, Allow []*ListEntry
	Rules       []*RuleSpec
	Tiers       []*TierSpec
	DefaultTier string
	Subjects    []*Group
	Profiles    []*ProfileSpec
	Inline      *InlineSpec // nil if left out: calls may bring any limits
	Envoy       []*EnvoySpec

	declared  map[string]*AttributeSpec // Attributes by name; nil if left out
	source    string                    // the text it was parsed from; empty in what Apply returns for a piece
	asJSON    bool                      // source is JSON
	days      bool                      // some duration was written in days
	positions positions
	loose     []Error // values that are written as neither text nor plain integers
}

// Source returns the text that d was parsed from. It is empty if d is what
// [Document.Apply] has returned for a change of a piece.
func (d *Document) Source() string { return d.source }

// TextSize returns the length of the text that d was parsed from, in bytes.
func (d *Document) TextSize() int { return len(d.source) }

func (d *Document) ruleIndex(name string) int {
	return slices.IndexFunc(d.Rules, func(r *RuleSpec) bool { return r.Name == name })
}

// TierIndex returns the index of a tier, or -1.
func (d *Document) TierIndex(name string) int {
	return slices.IndexFunc(d.Tiers, func(t *TierSpec) bool { return t.Name == name })
}

// GroupIndex returns the index of an attribute's listed subjects, or -1.
func (d *Document) GroupIndex(attribute string) int {
	return slices.IndexFunc(d.Subjects, func(g *Group) bool { return g.Attribute == attribute })
}

// Subject returns the document's entry for a subject, or nil.
func (d *Document) Subject(attribute, value string) *SubjectSpec {
	gi := d.GroupIndex(attribute)
	if gi < 0 {
		return nil
	}
	i, found := d.Subjects[gi].find(canonicalValue(d.declared, attribute, value))
	if !found {
		return nil
	}
	return d.Subjects[gi].Subjects[i]
}

// Declares reports whether the document allows an attribute: it declares the
// attribute, or none at all.
func (d *Document) Declares(attribute string) bool {
	return d.declared == nil || d.declared[attribute] != nil
}

// Declaration returns the declaration of an attribute, or nil.
func (d *Document) Declaration(attribute string) *AttributeSpec { return d.declared[attribute] }

// Canonical returns the spelling that stands for all spellings of an
// attribute's value: folded as the document declares, and an address in
// canonical notation.
func (d *Document) Canonical(attribute, value string) string {
	return canonicalValue(d.declared, attribute, value)
}

// FeatureLevel returns the feature level that every node of a cluster must
// support to read d; see package agreement.
func (d *Document) FeatureLevel() int {
	if d.days || d.Inline != nil || len(d.Envoy) > 0 || d.Attributes != nil ||
		slices.ContainsFunc(d.Rules, (*RuleSpec).needsLevel2) {
		return 2
	}

	level := 1
	note := func(_ string, _ Origin, limits []*LimitSpec) {
		if slices.ContainsFunc(limits, (*LimitSpec).needsLevel2) {
			level = 2
		}
	}
	d.eachLimits("", note)
	for _, t := range d.Tiers { // a tier that no rule uses counts, too
		note("", Origin{}, t.Limits)
	}

	return level
}

// eachLimits yields each list of limits that the document gives a rule, for any
// subject, with the list's origin. If only is not empty, it yields the lists of
// that rule.
func (d *Document) eachLimits(only string, yield func(rule string, from Origin, limits []*LimitSpec)) {
	for _, r := range d.Rules {
		if only != "" && r.Name != only {
			continue
		}
		yield(r.Name, Origin{}, r.Limits)
		for _, t := range d.Tiers {
			if r.Tiered {
				yield(r.Name, Origin{"tier", "", t.Name}, t.Limits)
			}
		}
	}

	for _, g := range d.Subjects {
		for _, s := range g.Subjects {
			for _, o := range s.Overrides {
				if only == "" || o.Rule == only {
					yield(o.Rule, Origin{"listed", g.Attribute, s.Value}, o.Limits)
				}
			}
		}
	}
}

// EachSlotLimit calls yield for each limit of slots in the document, with the
// name of its rule and its origin.
func (d *Document) EachSlotLimit(yield func(rule string, from Origin, l *LimitSpec)) {
	d.eachLimits("", func(rule string, from Origin, limits []*LimitSpec) {
		for _, l := range limits {
			if l.IsSlots() {
				yield(rule, from, l)
			}
		}
	})
}

// Origin is where a list of limits comes from: a tier, a listed subject or an
// entry. The zero origin is the rule itself.
type Origin struct{ Kind, Attribute, Name string }

// String identifies o among all that may have limits of a rule.
func (o Origin) String() string {
	switch {
	case o.Kind == "":
		return ""
	case o.Attribute == "":
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Attribute + "=" + o.Name
}

// UnitsOfRules returns the units that each rule with `usage: monthly` names: in
// its limits, those of tiers, and overrides.
func (d *Document) UnitsOfRules() map[string][]string {
	units := map[string][]string{}
	for _, r := range d.Rules {
		if r.Usage == UsageMonthly {
			units[r.Name] = nil
		}
	}

	if len(units) == 0 {
		return units
	}

	d.eachLimits("", func(rule string, _ Origin, limits []*LimitSpec) {
		for _, l := range limits {
			unit := cmp.Or(l.Unit, Requests)
			if known, billed := units[rule]; billed && !slices.Contains(known, unit) {
				units[rule] = append(known, unit)
			}
		}
	})
	return units
}
