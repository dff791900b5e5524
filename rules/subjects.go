package rules

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

// tableKey identifies a table of subjects: rules may group the same addresses differently.
type tableKey struct {
	attribute string
	grouping  grouping // zero for attributes that don't hold addresses
}

// subjectTable finds the listed subject for an attribute's value.
type subjectTable struct {
	byText    map[string]*subject
	byAddress map[netip.Addr]*subject // grouped
}

// subject is a compiled SubjectSpec.
type subject struct {
	tier      int32      // number of the tier, −1 for none
	overrides []override // by rule
}

// override is a compiled Override.
type override struct {
	rule   int32 // Rule.number
	limits []*Limit
}

// subjectTable returns the table of an attribute for rules that group by g.
// fillSubjectTables fills it later.
func (c *compiler) subjectTable(attribute string, g grouping) *subjectTable {
	key := tableKey{attribute: attribute}
	if holdsAddresses(attribute) {
		key.grouping = g
	}
	t := c.tables[key]
	if t == nil {
		t = &subjectTable{byText: map[string]*subject{}, byAddress: map[netip.Addr]*subject{}}
		c.tables[key] = t
	}
	return t
}

// fillSubjectTables fills the tables that rules use.
func (c *compiler) fillSubjectTables() {
	for _, g := range c.doc.Subjects {
		var tables []*subjectTable
		var groupings []grouping
		for key, t := range c.tables {
			if key.attribute == g.Attribute {
				tables, groupings = append(tables, t), append(groupings, key.grouping)
				t.byText = make(map[string]*subject, len(g.Subjects))
			}
		}

		if len(tables) == 0 {
			continue
		}

		for _, spec := range g.Subjects {
			s := c.compileSubject("listed", g.Attribute, spec)
			if c.globalLists > 0 {
				c.listed[spec] = s
			}

			a := netip.Addr{}
			ok := false
			if holdsAddresses(g.Attribute) {
				a, ok = ipaddr.Parse(spec.Value)
			}

			for i, t := range tables {
				if !ok {
					t.byText[spec.Value] = s
				} else if grouped := groupings[i].of(a); t.byAddress[grouped] == nil {
					t.byAddress[grouped] = s // the first in textual order wins for the whole group
				}
			}
		}
	}
}

// compileSubject compiles what the document or an entry says about a subject.
// kind is "listed" or "entry".
func (c *compiler) compileSubject(kind, attribute string, spec *SubjectSpec) *subject {
	s := &subject{tier: c.tierNumber(spec.Tier)}
	for _, o := range spec.Overrides {
		for _, r := range c.set.byName[o.Rule].all() {
			if slices.Contains(r.Key, attribute) {
				s.overrides = append(s.overrides,
					override{int32(r.number),
						c.compileLimits(c.doc.Rules[r.Index], r, origin{kind, attribute, spec.Value}, o.Limits)})
			}
		}
	}

	slices.SortFunc(s.overrides, func(a, b override) int { return cmp.Compare(a.rule, b.rule) })
	return s
}

// tierNumber returns the number of a tier, or -1.
func (c *compiler) tierNumber(name string) int32 {
	if c.tiers == nil {
		c.tiers = make(map[string]int32, len(c.doc.Tiers))
		for i, t := range c.doc.Tiers {
			c.tiers[t.Name] = int32(i)
		}
	}
	if n, ok := c.tiers[name]; ok {
		return n
	}
	return -1
}

func (t *subjectTable) find(v *value, k *keyAttribute, g grouping) *subject {
	if k.address && v.isAddress() {
		return t.byAddress[g.of(v.address)]
	}
	return t.byText[v.text]
}

// override returns the limits that replace a rule's for sub, or nil.
func (sub *subject) override(rule int32) []*Limit {
	i, found := slices.BinarySearchFunc(sub.overrides, rule,
		func(o override, rule int32) int { return cmp.Compare(o.rule, rule) })
	if !found {
		return nil
	}
	return sub.overrides[i].limits
}

// limits returns the limits of m's subject: an override's, its tier's, or the
// rule's own. nil means that the rule does not apply, because it is tiered and
// the subject has no tier, or because it is for other tiers.
func (r *Rule) limits(m *Match, beside *overlay) []*Limit { return r.limitsOf(m, r, beside) }

// limitsOf is limits for a subject that was matched by hit, the rule of the
// same name in another version. What entries beside the document say counts
// first; beside may be nil.
func (r *Rule) limitsOf(m *Match, hit *Rule, beside *overlay) []*Limit {
	tier, override := r.tierOf(m, hit, beside)
	switch {
	case r.onTiers != nil && (tier < 0 || !r.onTiers[tier]):
		return nil
	case override != nil:
		return override
	case !r.Tiered:
		return r.ownLimits
	case tier >= 0:
		return r.byTier[tier]
	}
	return nil
}

// tierOf returns the number of the tier that m's subject has, -1 for none, and
// the limits of its first override, if it has one.
func (r *Rule) tierOf(m *Match, hit *Rule, beside *overlay) (tier int32, override []*Limit) {
	tier = -1
	for i := range r.key {
		k := &r.key[i]
		var subjects [2]*subject // beside the document, and in it
		if beside != nil {
			subjects[0] = beside.subject(m, r, k)
		}
		if k.subjects != nil {
			subjects[1] = k.subjects.find(m.value(hit.key[i].number), k, r.grouping)
		}

		for _, s := range subjects {
			if s == nil {
				continue
			}
			if override == nil {
				override = s.override(int32(r.number))
			}
			if tier < 0 {
				tier = s.tier
			}
		}

		if override != nil && r.onTiers == nil {
			return tier, override // no tier matters any more
		}
	}

	if tier < 0 {
		tier = r.fallbackTier
	}
	return tier, override
}
