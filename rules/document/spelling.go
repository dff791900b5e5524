package document

import (
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/internal/yaml"
	"github.com/rlnode/rlnode/rules/entries"
)

// canonicalMatch returns conditions in canonical form, in which those that
// match the same checks are equal.
func canonicalMatch(declared map[string]*AttributeSpec, match []Condition) []entries.Condition {
	out := make([]entries.Condition, len(match))
	for i, c := range match {
		values := make([]string, len(c.Values))
		for n, v := range c.Values {
			values[n] = canonicalCondition(declared, c.Attribute, v)
		}
		slices.Sort(values)
		out[i] = entries.Condition{Attribute: c.Attribute, Values: slices.Compact(values)}
	}
	slices.SortFunc(out, func(a, b entries.Condition) int { return strings.Compare(a.Attribute, b.Attribute) })
	return out
}

// canonicalCondition is canonicalValue for conditions, where a value may also
// be a CIDR or a glob. A CIDR of one address is the address.
func canonicalCondition(declared map[string]*AttributeSpec, attribute, value string) string {
	if p, ok := ipaddr.ParsePrefix(value); ok && HoldsAddresses(attribute) {
		if p.IsSingleIP() {
			return p.Addr().String()
		}
		return p.String() // addressMistake has rejected bits behind the prefix
	}
	if strings.Contains(value, "*") {
		return declared[attribute].FoldPattern(value)
	}
	return canonicalValue(declared, attribute, value)
}

// ConditionsOf returns an entry's conditions as those of the document.
func ConditionsOf(e *entries.Entry) []Condition {
	out := make([]Condition, len(e.Match))
	for i, c := range e.Match {
		out[i] = Condition{Attribute: c.Attribute, Values: c.Values, single: len(c.Values) == 1}
	}
	return out
}

// SameAs returns those of the entries beside the document that are about the
// same subject or the same checks as e, sorted by ID. There may be several: an
// entry keeps the spelling in which it was written, and a newer document may
// fold two spellings into one. A block is only the same as itself.
func (d *Document) SameAs(e *entries.Entry, beside *entries.State) (list []*entries.Entry) {
	switch {
	case e.Kind != entries.Block && d.folds(e):
		canonical := d.canonicalEntry(e)
		for other := range beside.All {
			if d.isSpelling(other, canonical) {
				list = append(list, other)
			}
		}
	default:
		if same := beside.Get(e.ID()); same != nil {
			list = append(list, same)
		}
	}

	slices.SortFunc(list, func(a, b *entries.Entry) int { return strings.Compare(a.ID(), b.ID()) })
	return list
}

// folds reports whether the document folds an attribute that e names. The
// spellings of addresses don't matter: they are stored as one.
func (d *Document) folds(e *entries.Entry) bool {
	isFolded := func(attribute string) bool {
		a := d.declared[attribute]
		return a != nil && a.Folding != Folding{}
	}
	return isFolded(e.Attribute) ||
		slices.ContainsFunc(e.Match, func(c entries.Condition) bool { return isFolded(c.Attribute) })
}

// canonicalEntry returns what identifies an entry about a subject or of a list,
// in the spelling of the document.
func (d *Document) canonicalEntry(e *entries.Entry) *entries.Entry {
	return &entries.Entry{Kind: e.Kind, Attribute: e.Attribute, Value: d.Canonical(e.Attribute, e.Value),
		Match: canonicalMatch(d.declared, ConditionsOf(e))}
}

// isSpelling reports whether e, of a subject or a list, is about the same as
// canonical. SameAs calls it for all entries, so cheap comparisons come first.
func (d *Document) isSpelling(e, canonical *entries.Entry) bool {
	sameAttribute := func(a, b entries.Condition) bool { return a.Attribute == b.Attribute }
	sameCondition := func(a, b entries.Condition) bool {
		return sameAttribute(a, b) && slices.Equal(a.Values, b.Values)
	}
	return e.Kind == canonical.Kind && e.Attribute == canonical.Attribute &&
		d.Canonical(e.Attribute, e.Value) == canonical.Value &&
		slices.EqualFunc(e.Match, canonical.Match, sameAttribute) &&
		slices.EqualFunc(canonicalMatch(d.declared, ConditionsOf(e)), canonical.Match, sameCondition)
}

// FindEntry looks for an entry in the document: an entry of a list with the
// same conditions, or the same subject. line is its line in the text, from 1.
func (d *Document) FindEntry(e *entries.Entry) (line int, found bool) {
	if !d.hasEntry(e) {
		return 0, false
	}

	text, err := d.Text()
	if err != nil {
		return 0, true
	}

	// After a change of a piece, positions refer to the text of the piece. So the
	// whole text is parsed to find the line in it.
	written, err := Parse([]byte(text))
	if err != nil {
		return 0, true
	}

	at, _ := written.positionOf(e)
	return int(at.Line), true
}

func (d *Document) hasEntry(e *entries.Entry) bool {
	_, found := d.positionOf(e)
	return found
}

func (d *Document) positionOf(e *entries.Entry) (yaml.Pos, bool) {
	list := d.Deny
	switch e.Kind {
	case entries.Subject:
		s := d.Subject(e.Attribute, e.Value)
		if s == nil {
			return yaml.Pos{}, false
		}
		return s.pos, true
	case entries.Allow:
		list = d.Allow
	case entries.Block:
		return yaml.Pos{}, false
	}

	id := e.ID()
	for _, one := range list {
		same := entries.Entry{Kind: e.Kind, Match: canonicalMatch(d.declared, one.Match)}
		if len(one.Match) == len(e.Match) && same.ID() == id {
			return one.pos, true
		}
	}

	return yaml.Pos{}, false
}
