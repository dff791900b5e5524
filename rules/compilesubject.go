package rules

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/rules/document"
)

// subjectTable returns the table of an attribute for rules that group by g.
// fillSubjectTables fills it later.
func (c *compiler) subjectTable(attribute string, g grouping) *subjectTable {
	key := tableKey{attribute: attribute}
	if document.HoldsAddresses(attribute) {
		key.grouping = g
	}
	t := c.tables[key]
	if t == nil {
		t = &subjectTable{byText: map[string]*subject{}, byAddress: map[netip.Addr]*subject{}}
		c.tables[key] = t
	}
	return t
}

// fillSubjectTables fills the tables that rules use. All rules must have been
// compiled, because a subject's overrides name rules.
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
			if document.HoldsAddresses(g.Attribute) {
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
func (c *compiler) compileSubject(kind, attribute string, spec *document.SubjectSpec) *subject {
	s := &subject{tier: c.tierNumber(spec.Tier)}
	for _, o := range spec.Overrides {
		for _, r := range c.set.byName[o.Rule].variants() {
			if slices.Contains(r.Key, attribute) {
				from := document.Origin{Kind: kind, Attribute: attribute, Name: spec.Value}
				s.overrides = append(s.overrides,
					override{int32(r.variantIndex), c.compileLimits(c.doc.Rules[r.Index], r, from, o.Limits)})
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
