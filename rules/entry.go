package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/internal/yaml"
)

// ChangeEntry returns the change that adds an entry to a list of d, allow or deny, or removes it. The entry is YAML or
// JSON, as in the document. Entries that match the same checks are the same entry, however they are written. changed is
// false if the list already has the entry to add.
//
// The error is of type [Errors], with positions in the entry, or wraps [ErrNotFound].
func (d *Document) ChangeEntry(list string, entry []byte, remove bool) (c Change, changed bool, err error) {
	c = Change{Part: ListPart, Name: list}
	entries, ok := map[string][]*Entry{"deny": d.Deny, "allow": d.Allow}[list]
	if !ok {
		return c, false, fmt.Errorf("look for %s: %w", c, ErrNotFound)
	}
	body, err := parseText(entry)
	if err != nil {
		return c, false, err
	}
	e := &edit{}
	e.declared = d.declared
	e.setPath("lists." + list)
	wanted := &Entry{Match: e.conditions(body)}
	if err := e.decoder.err(); err != nil {
		return c, false, err
	}
	text := wanted.canonicalText(d.declared)
	at := slices.IndexFunc(entries, func(one *Entry) bool {
		return len(one.Match) == len(wanted.Match) && one.canonicalText(d.declared) == text
	})
	switch {
	case remove && at < 0:
		return c, false, fmt.Errorf("look for %s in %s: %w", conditionsNode(wanted.Match).AppendJSON(nil), c, ErrNotFound)
	case !remove && at >= 0:
		return c, false, nil
	case remove:
		entries = slices.DeleteFunc(slices.Clone(entries), func(one *Entry) bool { return one.canonicalText(d.declared) == text })
	default:
		entries = append(slices.Clone(entries), wanted)
	}
	c.Body = entriesNode(entries).AppendJSON(nil)
	return c, true, nil
}

// canonicalText renders e so that all entries that match the same checks have the same text.
func (e *Entry) canonicalText(declared map[string]*AttributeSpec) string {
	match := slices.Clone(e.Match)
	for i := range match {
		c := &match[i]
		c.Values, c.single = slices.Clone(c.Values), false
		for n, v := range c.Values {
			c.Values[n] = canonicalCondition(declared, c.Attribute, v)
		}
		slices.Sort(c.Values)
		c.Values = slices.Compact(c.Values)
	}
	slices.SortFunc(match, func(a, b Condition) int { return strings.Compare(a.Attribute, b.Attribute) })
	return string(conditionsNode(match).AppendJSON(nil))
}

// canonicalCondition is canonicalValue for conditions, where a value may also be a CIDR or a glob.
func canonicalCondition(declared map[string]*AttributeSpec, attribute, value string) string {
	if holdsAddresses(attribute) {
		if p, ok := ipaddr.ParsePrefix(value); ok {
			return p.String() // addressMistake has rejected bits behind the prefix
		}
	}
	if strings.Contains(value, "*") {
		return declared[attribute].foldPattern(value)
	}
	return canonicalValue(declared, attribute, value)
}

// ListTiers returns as JSON objects, sorted by name, the first n tiers after the one named after. If there are more, next
// is the name of the last one returned.
func (d *Document) ListTiers(after string, n int) (list []string, next string) {
	tiers := slices.Clone(d.Tiers)
	slices.SortFunc(tiers, func(a, b *TierSpec) int { return strings.Compare(a.Name, b.Name) })
	return page(tiers, after, n, "name", func(t *TierSpec) string { return t.Name })
}

// ListSubjects is ListTiers for the subjects of an attribute, by value.
func (d *Document) ListSubjects(attribute, after string, n int) (list []string, next string) {
	gi := d.group(attribute)
	if gi < 0 {
		return nil, ""
	}
	return page(d.Subjects[gi].Subjects, canonicalValue(d.declared, attribute, after), n, "value", func(s *SubjectSpec) string { return s.Value })
}

// page returns the first n of the sorted pieces after the one named after. Each object has the piece's name in field.
func page[P piece](pieces []P, after string, n int, field string, name func(P) string) (list []string, next string) {
	from := 0
	if after != "" {
		at, found := slices.BinarySearchFunc(pieces, after, func(p P, v string) int { return strings.Compare(name(p), v) })
		if from = at; found {
			from++
		}
	}
	for _, p := range pieces[from:min(len(pieces), from+n)] {
		object := yaml.NewMap()
		object.Set(field, yaml.Text(name(p)))
		object.Items = append(object.Items, p.node().Items...)
		list = append(list, string(object.AppendJSON(nil)))
	}
	if from+n < len(pieces) {
		next = name(pieces[from+n-1])
	}
	return list, next
}
