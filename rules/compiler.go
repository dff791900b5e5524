package rules

import (
	"maps"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/rules/document"
)

// compiler is one Compile in progress.
type compiler struct {
	set          *Set
	doc          *document.Document
	tables       map[tableKey]*subjectTable
	tiers        map[string]int32                   // their numbers; nil until the first is needed
	listed       map[*document.SubjectSpec]*subject // filled only if there are global rules
	globalLists  int32                              // number of limit lists of global rules
	sharesTables bool                               // the set shares its tables of attributes and units
	err          error                              // the first error
}

// tableKey identifies a table of subjects: rules may group the same addresses differently.
type tableKey struct {
	attribute string
	grouping  grouping // zero for attributes that don't hold addresses
}

func (c *compiler) attributeNumber(name string) int {
	if n := c.set.attributes.find(name); n >= 0 {
		return n
	}
	c.extend()
	return c.set.attributes.add(name)
}

func (c *compiler) unitID(name string) int {
	n, ok := c.set.unitIDs[name]
	if !ok {
		c.extend()
		n = len(c.set.Units)
		c.set.unitIDs[name] = n
		c.set.Units = append(c.set.Units, name)
	}
	return n
}

// extend gives the set its own copies of the tables of attributes and units
// before the first of them gets another number.
func (c *compiler) extend() {
	if !c.sharesTables {
		return
	}
	c.sharesTables = false
	s := c.set
	s.attributes.named, s.attributes.numbers = slices.Clip(s.attributes.named), maps.Clone(s.attributes.numbers)
	s.Units, s.unitIDs = slices.Clip(s.Units), maps.Clone(s.unitIDs)
}

func (c *compiler) foldingOf(attribute string) *document.Folding {
	return c.set.attributes.folding(attribute)
}

func (c *compiler) compileConditions(specs []document.Condition) []condition {
	out := make([]condition, 0, len(specs))
	for _, spec := range specs {
		cond := condition{attribute: c.attributeNumber(spec.Attribute),
			address: document.HoldsAddresses(spec.Attribute)}
		declared := c.doc.Declaration(spec.Attribute)
		for _, v := range spec.Values {
			if strings.IndexByte(v, '*') >= 0 {
				v = declared.FoldPattern(v)
			} else {
				v = declared.FoldValue(v)
			}
			cond.add(v)
		}

		cond.finish()
		out = append(out, cond)
	}

	return out
}

func (c *compiler) compileList(specs []*document.ListEntry) list {
	items := make([]indexed, len(specs))
	for i, e := range specs {
		items[i].match = c.compileConditions(e.Match)
	}
	return list{items, buildIndex(items)}
}

func (c *compiler) compileCostTable(spec *document.CostTable) *costTable {
	t := &costTable{attribute: c.attributeNumber(spec.By),
		byText: make(map[string]int64, len(spec.Values)), fallback: spec.Default}
	for _, v := range spec.Values {
		t.byText[c.doc.Canonical(spec.By, v.Value)] = v.Cost
	}
	return t
}
