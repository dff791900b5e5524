package rules

import (
	"slices"
	"strings"

	"github.com/rlnode/rlnode/rules/entries"
)

// UsesTiersOf reports whether the tiers of an attribute's subjects matter to some rule.
func (s *Set) UsesTiersOf(attribute string) bool {
	return slices.ContainsFunc(s.Rules,
		func(r *Rule) bool { return (r.Tiered || r.onTiers != nil) && r.hasInKey(attribute) })
}

// hasInKey reports whether r's key, or that of an alternative, has an attribute.
func (r *Rule) hasInKey(attribute string) bool {
	return slices.ContainsFunc(r.variants(), func(r *Rule) bool { return slices.Contains(r.Key, attribute) })
}

// SameAs returns the entries that are about the same subject or the same checks
// as e, sorted by ID. There may be several: an entry keeps the spelling in
// which it was written, and a newer document may fold two spellings into one,
// or group two addresses. A block that fits no rule of the document is only the
// same as itself.
func (s *Set) SameAs(e *entries.Entry) (list []*entries.Entry) {
	switch {
	case s.overlay == nil:
		return nil
	case e.Kind == entries.Block && s.namesSubject(e):
		items, _ := s.overlay.blocks.Get(s.hashOf(s.byName[e.Rule], e.Key))
		for _, item := range items {
			list = append(list, item.entry)
		}
	default:
		return s.Document.SameAs(e, s.Entries())
	}

	slices.SortFunc(list, func(a, b *entries.Entry) int { return strings.Compare(a.ID(), b.ID()) })
	return list
}

// Entries returns the entries that checks are matched with. It is never nil.
func (s *Set) Entries() *entries.State {
	if s.overlay == nil {
		return entries.New()
	}
	return s.overlay.entries
}

// Asleep returns the number of entries that name a tier or a rule that the document lacks.
func (s *Set) Asleep() int {
	if s.overlay == nil {
		return 0
	}
	return s.overlay.asleep.Len()
}

// IsAsleep reports whether an entry names a tier or a rule that the document lacks.
func (s *Set) IsAsleep(e *entries.Entry) bool {
	if s.overlay == nil {
		return false
	}
	_, ok := s.overlay.asleep.Get(entries.Text(e.ID()))
	return ok
}

// namesSubject reports whether a block names a subject of the document.
func (s *Set) namesSubject(e *entries.Entry) bool {
	r := s.byName[e.Rule]
	return r != nil && !r.Envoy && len(r.Key) == len(e.Key) && s.MissingAttribute(r, e.Key) == ""
}

// hashOf returns the identity of a rule's subject. key has a value for each of
// the rule's key attributes.
func (s *Set) hashOf(r *Rule, key []string) Hash {
	m := &Match{}
	r, key = r.choose(key, nil)
	attrs := make([]Attribute, len(key))
	for i, v := range key {
		attrs[i] = Attribute{r.Key[i], v}
	}
	s.loadAttributes(attrs, m)
	return r.hash(m, &s.seeds[r.variantIndex])
}
