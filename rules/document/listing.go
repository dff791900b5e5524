package document

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
	"github.com/rlnode/rlnode/rules/entries"
)

// ListTiers returns as JSON objects, sorted by name, the first n tiers after
// the one named after. If there are more, next is the name of the last one
// returned.
func (d *Document) ListTiers(after string, n int) (list []string, next string) {
	tiers := slices.Clone(d.Tiers)
	slices.SortFunc(tiers, func(a, b *TierSpec) int { return strings.Compare(a.Name, b.Name) })
	return page(tiers, after, n, "name", func(t *TierSpec) string { return t.Name })
}

// page returns the first n of the sorted pieces after the one named after. Each
// object has the piece's name in field.
func page[P interface{ node() *yaml.Node }](
	pieces []P, after string, n int, field string, name func(P) string,
) (list []string, next string) {
	from := 0
	if after != "" {
		at, found := slices.BinarySearchFunc(pieces, after,
			func(p P, v string) int { return strings.Compare(name(p), v) })
		from = at
		if found {
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

// The origins of what callers see: the document, an entry beside it, or both for a subject.
const (
	fromDocument = "document"
	fromEntry    = "entry"
	fromBoth     = "both"
)

// MergedList returns a list, Deny or Allow, as JSON and as YAML: the document's
// entries, and then those beside it that have not ended at now, in Unix ms.
// Each says its origin.
func (d *Document) MergedList(kind entries.Kind, beside *entries.State, now int64) (asJSON, asYAML []byte) {
	written := d.Deny
	if kind == entries.Allow {
		written = d.Allow
	}

	list := &yaml.Node{Kind: yaml.List}
	for _, e := range written {
		n := conditionsNode(e.Match)
		n.Set("origin", yaml.Text(fromDocument))
		list.Items = append(list.Items, n)
	}

	keep := func(e *entries.Entry) bool { return e.Kind == kind && !e.IsOver(now) }
	for _, e := range sortedEntries(beside, keep) {
		n := entryNode(e)
		addMeta(n, e)
		n.Set("origin", yaml.Text(fromEntry))
		list.Items = append(list.Items, n)
	}

	return list.AppendJSON(nil), list.AppendYAML(nil)
}

// sortedEntries returns the entries that keep accepts, sorted by ID.
func sortedEntries(beside *entries.State, keep func(*entries.Entry) bool) (list []*entries.Entry) {
	for e := range beside.All {
		if keep(e) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *entries.Entry) int { return strings.Compare(a.ID(), b.ID()) })
	return list
}

// mergedSubject is a subject with what the document and an entry say about it.
// One of them may be missing.
type mergedSubject struct {
	written *SubjectSpec
	entry   *entries.Entry
	value   string
}

// node renders the subject: an entry's tier replaces the document's, and its
// override that of the same rule. An entry that is asleep is shown, too.
func (m *mergedSubject) node() *yaml.Node {
	merged := &SubjectSpec{Value: m.value}
	origin := fromDocument
	if m.written != nil {
		*merged = *m.written
	}

	if m.entry != nil {
		origin = fromEntry
		if spec, err := SubjectOf(m.entry); err == nil {
			merged.mergeWith(spec)
		}
		if m.written != nil {
			origin = fromBoth
		}
	}

	n := merged.node()
	if m.entry != nil {
		addMeta(n, m.entry)
	}

	n.Set("origin", yaml.Text(origin))
	return n
}

// mergeWith makes an entry's fields replace those of spec. spec itself must not
// be part of a document; its list of overrides may be, because it is copied.
func (spec *SubjectSpec) mergeWith(entry *SubjectSpec) {
	if entry.Tier != "" {
		spec.Tier = entry.Tier
	}
	spec.Overrides = slices.Clone(spec.Overrides)
	for _, o := range entry.Overrides {
		i := slices.IndexFunc(spec.Overrides, func(have Override) bool { return have.Rule == o.Rule })
		if i < 0 {
			spec.Overrides = append(spec.Overrides, o)
		} else {
			spec.Overrides[i] = o
		}
	}
}

// MergedSubject returns what the document and the entries that have not ended
// at now, in Unix ms, say about a subject, as JSON and as YAML. The error wraps
// [ErrNotFound].
func (d *Document) MergedSubject(
	attribute, value string, beside *entries.State, now int64,
) (asJSON, asYAML []byte, err error) {
	value = d.Canonical(attribute, value)
	m := mergedSubject{written: d.Subject(attribute, value), value: value}
	wanted := entries.Entry{Kind: entries.Subject, Attribute: attribute, Value: value}
	for _, e := range d.SameAs(&wanted, beside) {
		if m.entry == nil && !e.IsOver(now) {
			m.entry = e // as for checks, the first in textual order
		}
	}
	if m.written == nil && m.entry == nil {
		return nil, nil, fmt.Errorf("look for subject %s %q: %w", attribute, value, ErrNotFound)
	}
	n := m.node()
	return n.AppendJSON(nil), n.AppendYAML(nil), nil
}

// ListSubjects is [Document.ListTiers] for the subjects of an attribute, by
// value, in the document and beside it.
func (d *Document) ListSubjects(
	attribute, after string, n int, beside *entries.State, now int64,
) (list []string, next string) {
	byValue := map[string]*mergedSubject{}
	if gi := d.GroupIndex(attribute); gi >= 0 {
		for _, written := range d.Subjects[gi].Subjects {
			byValue[written.Value] = &mergedSubject{written: written, value: written.Value}
		}
	}

	for e := range beside.All {
		switch {
		case e.Kind != entries.Subject || e.Attribute != attribute || e.IsOver(now):
		case byValue[e.Value] != nil:
			byValue[e.Value].entry = e
		default:
			byValue[e.Value] = &mergedSubject{entry: e, value: e.Value}
		}
	}

	all := make([]*mergedSubject, 0, len(byValue))
	for _, m := range byValue {
		all = append(all, m)
	}

	slices.SortFunc(all, func(a, b *mergedSubject) int { return strings.Compare(a.value, b.value) })
	return page(all, d.Canonical(attribute, after), n, "value",
		func(m *mergedSubject) string { return m.value })
}
