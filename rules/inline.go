package rules

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/rules/document"
)

// Inline limits come with the call. They are compiled to a rule that is in no
// document. A Set keeps the rule under what it was compiled from, so that the
// next call with the same limits finds it.

const (
	// MaxInlineLimits bounds the limits of one subject, MaxInlineSubjects the subjects of one call.
	MaxInlineLimits   = 8
	MaxInlineSubjects = 16
)

// Errors of calls with inline limits.
var (
	// ErrInline means that a call's limits are invalid or beyond what the rules
	// document allows. The message names the field.
	ErrInline = errors.New("inline limits")
	// ErrNamespace means that the rules document does not allow inline limits, or
	// not in this namespace.
	ErrNamespace = errors.New("the rules do not allow it")
)

// inlineError is an ErrInline whose message begins with the field.
type inlineError struct{ error }

// Is makes it an ErrInline.
func (inlineError) Is(target error) bool { return target == ErrInline }

// InlineSubject is a subject that brings its own limits.
type InlineSubject struct {
	Namespace string // empty for InlineName
	Key       []string
	Limits    []document.InlineLimit // 1…MaxInlineLimits
	Exact     bool                   // ask the owner each time
	Shadow    bool                   // count and report, but never refuse
}

// Interned returns the number of sets of inline limits that s keeps, at most 4,096.
func (s *Set) Interned() int64 { return s.inline.count.Load() }

// Names returns, by Rule.Index, the names under which metrics count checks:
// those of the rules, then those of inline limits and of Envoy's domains and
// paths. A rule with one of those names counts these checks, too.
func (s *Set) Names() []string { return s.names }

// MatchInline adds a hit for a subject that brings its limits. first is true
// for the first subject of a check: it clears m. All subjects of a check must
// use the same Set. The error wraps ErrInline or ErrNamespace.
func (s *Set) MatchInline(q *InlineSubject, first bool, m *Match) error {
	if first {
		s.loadAttributes(nil, m)
		m.List = Unlisted
	}

	// The key has all that the compiled rule depends on, except for the document,
	// which is the same for all calls of the set.
	b := m.inline[:0]
	flags := byte(0)
	if q.Exact {
		flags |= 1
	}
	if q.Shadow {
		flags |= 2
	}

	onlyKind := soleCounterKinds[q.Namespace]
	flags |= byte(onlyKind) << 2
	name, named := s.inlineNames[cmp.Or(q.Namespace, InlineName)]
	if !named {
		name = s.inlineNames[""]
	}

	b = binary.AppendUvarint(append(b, flags), uint64(name.index))
	for i := range q.Limits {
		b = appendInline(b, &q.Limits[i])
	}

	m.inline = b
	if err := s.namespaceAllowed(q.Namespace); err != nil {
		return err
	}

	r := s.inline.find(b)
	if r == nil {
		var err error
		r, err = s.compileInline(q, name, onlyKind)
		if err != nil {
			return err
		}
		r = s.inline.add(b, r)
	}

	subject := r.inlineSubject(q)
	for i := range m.Hits {
		if m.Hits[i].Subject == subject {
			return inlineError{fmt.Errorf("the namespace and key are the same as those of subjects[%d]", i)}
		}
	}

	m.Hits = append(m.Hits, Hit{Rule: r, Limits: r.ownLimits, Subject: subject, Cost: 1})
	return nil
}

// LocateInline returns the identity of a subject, which does not depend on its
// limits. The error wraps ErrNamespace.
func (s *Set) LocateInline(q *InlineSubject) (Hash, error) {
	return (&Rule{inlineSeed: s.inlineSeed}).inlineSubject(q), s.namespaceAllowed(q.Namespace)
}

// InternedLimits yields the limits of all sets that s keeps.
func (s *Set) InternedLimits() iter.Seq[*Limit] {
	return func(yield func(*Limit) bool) {
		for i := range s.inline.slots {
			e := s.inline.slots[i].Load()
			if e == nil {
				continue
			}
			for _, l := range e.rule.ownLimits {
				if !yield(l) {
					return
				}
			}
		}
	}
}

// appendInline encodes l so that no two limits yield the same bytes.
func appendInline(b []byte, l *document.InlineLimit) []byte {
	for _, n := range [...]int64{l.Limit, l.PerMS, l.TTLMS, l.Burst} {
		b = binary.AppendVarint(b, n)
	}
	for _, text := range [...]string{l.Per, l.TTL, l.Algorithm, l.Unit, l.Name, l.TZ, l.From} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	return b
}

// namespaceAllowed returns an error if the document does not allow inline limits in namespace.
func (s *Set) namespaceAllowed(namespace string) error {
	spec := s.Document.Inline
	switch {
	case spec == nil:
		return nil
	case spec.Refuse:
		return fmt.Errorf("limits: %w: inline.allow is false", ErrNamespace)
	case len(spec.Namespaces) == 0 || s.inlineNamespaces.Has(namespace):
		return nil
	}
	return fmt.Errorf("namespace: %w: %q is not in inline.namespaces", ErrNamespace,
		document.Shorten(cmp.Or(namespace, InlineName)))
}

// inlineSubject returns the identity of q's subject. The hash begins with
// another state than that of any rule, so no subject of a rule has the same
// identity. Each text is followed by its length.
func (r *Rule) inlineSubject(q *InlineSubject) Hash {
	namespace := cmp.Or(q.Namespace, InlineName)
	h := r.inlineSeed.addText(namespace).addWord(uint64(len(namespace)))
	for _, v := range q.Key {
		h = h.addText(v).addWord(uint64(len(v)))
	}
	return h.finish(uint64(len(q.Key)), titleBytes)
}

// InlineKey returns the key of q as people see it: with its namespace in front,
// unless r's name has the namespace. It returns nil if q is not the subject
// that hi, the first half of its hash, identifies. r must be Inline.
func (r *Rule) InlineKey(q *InlineSubject, hi uint64) []string {
	if r.inlineSubject(q).Hi != hi {
		return nil
	}
	if r.Name != InlineName {
		return slices.Clone(q.Key)
	}
	return append([]string{cmp.Or(q.Namespace, InlineName)}, q.Key...)
}

// compileInline compiles the limits of q, sorted by their IDs, so that the
// caller's order does not matter to counters. The rule refers to no string of
// the call, because s may keep it after the call. onlyKind is the kind of the
// only counter that a key has in the namespace, or 0.
func (s *Set) compileInline(q *InlineSubject, name inlineName, onlyKind algorithms.Kind) (*Rule, error) {
	doc := s.Document
	spec := &document.RuleSpec{Name: name.name, Shadow: q.Shadow,
		Settings: document.Settings{OnLimit: "refuse", Consistency: "hybrid"}}
	if doc.Inline != nil {
		spec.OnPartition = doc.Inline.OnPartition
	}

	var err error
	spec.Limits, err = doc.ReadInline(q.Namespace, q.Limits, onlyKind)
	if err != nil {
		return nil, inlineError{err}
	}

	if q.Exact {
		spec.Consistency = "exact"
	}

	// The rule gets a set of its own, because s has only the document's units.
	c := &compiler{set: &Set{Units: []string{document.Requests}, unitIDs: map[string]int{document.Requests: 0}}, doc: doc}
	r := c.compileRule(spec, nil)

	if c.err != nil {
		return nil, inlineError{c.err}
	}

	r.Index = name.index
	r.Inline = true
	r.inlineSeed = s.inlineSeed

	for i, l := range r.ownLimits {
		l.CallIndex = i

		if q.Limits[i].From == document.FromFirst {
			id := doc.Identity(spec.Limits[i], "")
			id.Kind = algorithms.FirstWindow
			l.Kind = algorithms.FirstWindow
			r.Consistency = Exact
			l.ID = hashIdentity(id)
		}

		if onlyKind != 0 {
			l.Kind = onlyKind
			l.ID = soleCounterID(onlyKind)
			r.Consistency = Exact
		}
	}

	slices.SortFunc(r.ownLimits, func(a, b *Limit) int { return cmp.Compare(a.ID, b.ID) })
	return r, nil
}
