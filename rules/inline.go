package rules

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/yaml"
)

// Inline limits come with the call. They are compiled to a rule that is in no
// document. A Set interns the rule by its content, so that the next call with
// the same limits finds it.

const (
	// MaxInlineLimits bounds the limits of one subject, MaxInlineSubjects the subjects of one call.
	MaxInlineLimits   = 8
	MaxInlineSubjects = 16
	// maxInterned bounds the sets of limits that a Set keeps. Further ones are
	// compiled for their call alone.
	maxInterned = 4096
	// InlineName is the name under which metrics count inline limits, and the
	// namespace of limits that name none. Limits in a namespace that the document
	// names are counted separately, under InlineName, a slash and the namespace.
	InlineName = "inline"

	// The values of InlineLimit.From.
	fromFirst, fromClock = "first", "clock"
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

// InlineLimit is a limit as a call gives it. Its fields are those of a limit in the document.
type InlineLimit struct {
	Limit     int64
	Per       string
	PerMS     int64 // in place of Per; 0 if not given
	TTL       string
	TTLMS     int64 // in place of TTL; 0 if not given
	Algorithm string
	Burst     int64
	Unit      string
	Name      string
	TZ        string
	From      string // "first": a fixed window begins with its first hit; empty or "clock": with the clock
}

// InlineSubject is a subject that brings its own limits.
type InlineSubject struct {
	Namespace string // empty for InlineName
	Key       []string
	Limits    []InlineLimit // 1…MaxInlineLimits
	Exact     bool          // ask the owner each time
	Shadow    bool          // count and report, but never refuse
}

// InlineSpec is a document's section about inline limits.
type InlineSpec struct {
	Refuse      bool     // allow: false
	Namespaces  []string // names, or globs with *; empty for all
	MaxLimit    int64    // 0 for no bound
	MaxPer      Span
	OnPartition string
}

// Namespaces is a set of namespaces of inline limits: names, or globs with *.
type Namespaces struct {
	list  []string
	names map[string]bool
	globs []glob
}

// NewNamespaces returns the namespaces in list.
func NewNamespaces(list []string) *Namespaces {
	n := &Namespaces{list: list, names: map[string]bool{}}
	for _, name := range list {
		if strings.Contains(name, "*") {
			n.globs = append(n.globs, newGlob(name))
		} else {
			n.names[name] = true
		}
	}
	return n
}

// Has reports whether namespace, which may be empty for InlineName, is one of n.
func (n *Namespaces) Has(namespace string) bool {
	namespace = cmp.Or(namespace, InlineName)
	return n.names[namespace] || slices.ContainsFunc(n.globs, func(g glob) bool { return g.matches(namespace) })
}

// String lists n.
func (n *Namespaces) String() string { return strings.Join(n.list, ", ") }

// inlineSets holds the sets of limits that a Set keeps, in an open-addressing
// table. Entries are only ever added, so readers need no lock.
type inlineSets struct {
	count atomic.Int64
	slots [2 * maxInterned]atomic.Pointer[inlineSet]
}

type inlineSet struct {
	key  string
	rule *Rule
}

// find returns the rule for key, or nil.
func (sets *inlineSets) find(key []byte) *Rule {
	// This ends, because half of the slots stay empty.
	for i := xxh3.Hash(key); ; i++ {
		e := sets.slots[i%uint64(len(sets.slots))].Load()
		switch {
		case e == nil:
			return nil
		case e.key == string(key):
			return e.rule
		}
	}
}

// add keeps r under key and returns the rule kept there, which may be that of a
// concurrent add. If the table is full, add marks r as Uninterned and returns
// it.
func (sets *inlineSets) add(key []byte, r *Rule) *Rule {
	// The set is counted before it is added, so that concurrent calls can't
	// fill the table.
	if sets.count.Add(1) > maxInterned {
		sets.count.Add(-1)
		r.Uninterned = true
		return r
	}

	e := &inlineSet{string(key), r}
	for i := xxh3.Hash(key); ; {
		slot := &sets.slots[i%uint64(len(sets.slots))]
		if slot.CompareAndSwap(nil, e) {
			return r
		}

		other := slot.Load()
		if other.key == e.key {
			sets.count.Add(-1)
			return other.rule
		}
		i++
	}
}

// Interned returns the number of sets of inline limits that s keeps, at most 4,096.
func (s *Set) Interned() int64 { return s.inline.count.Load() }

// Names returns, by Rule.Index, the names under which metrics count checks:
// those of the rules, then those of inline limits and of Envoy's domains and
// paths. A rule with one of those names counts these checks, too.
func (s *Set) Names() []string { return s.names }

// nameInline assigns the names under which inline limits are counted.
func (s *Set) nameInline(spec *InlineSpec) {
	for _, r := range s.Rules {
		s.names = append(s.names, r.Name)
	}

	add := func(namespace, name string) {
		i := slices.Index(s.names, name)
		if i < 0 {
			i = len(s.names)
			s.names = append(s.names, name)
		}
		s.inlineNames[namespace] = inlineName{i, s.names[i]}
	}
	s.inlineNames = map[string]inlineName{}
	add("", InlineName)

	if spec == nil {
		return
	}

	s.inlineNamespaces = NewNamespaces(spec.Namespaces)
	for _, n := range spec.Namespaces {
		if s.inlineNamespaces.names[n] {
			add(n, InlineName+"/"+n)
		}
	}
}

// inlineName is the name under which the inline limits of a namespace are
// counted, and its index in Set.Names.
type inlineName struct {
	index int
	name  string
}

// MatchInline adds a hit for a subject that brings its limits. first is true
// for the first subject of a check: it clears m. All subjects of a check must
// use the same Set. The error wraps ErrInline or ErrNamespace.
func (s *Set) MatchInline(q *InlineSubject, first bool, m *Match) error {
	if first {
		s.loadAttributes(nil, m)
		m.List = Unlisted
	}

	// The key has all that the compiled rule depends on, except for what all
	// calls of the set have in common.
	b := m.inline[:0]
	flags := byte(0)
	if q.Exact {
		flags |= 1
	}
	if q.Shadow {
		flags |= 2
	}

	kept := keptKinds[q.Namespace]
	flags |= byte(kept) << 2
	name, named := s.inlineNames[cmp.Or(q.Namespace, InlineName)]
	if !named {
		name = s.inlineNames[""]
	}

	b = binary.AppendUvarint(append(b, flags), uint64(name.index))
	for i := range q.Limits {
		b = q.Limits[i].append(b)
	}

	m.inline = b
	if err := s.namespaceAllowed(q.Namespace); err != nil {
		return err
	}

	r := s.inline.find(b)
	if r == nil {
		var err error
		if r, err = s.compileInline(q, name, kept); err != nil {
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

// append encodes l so that no two limits yield the same bytes.
func (l *InlineLimit) append(b []byte) []byte {
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
		shorten(cmp.Or(namespace, InlineName)))
}

// inlineSubject returns the identity of q's subject. The initial state differs
// from that of every rule, so the subject never coincides with a rule's. Each
// text is followed by its length.
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
// the call. kept is the kind of the only counter that a key has in the
// namespace, or 0.
func (s *Set) compileInline(q *InlineSubject, name inlineName, kept algorithms.Kind) (*Rule, error) {
	doc := s.Document
	spec := &RuleSpec{Name: name.name, Shadow: q.Shadow, Settings: Settings{OnLimit: "refuse", Consistency: "hybrid"}}
	if doc.Inline != nil {
		spec.OnPartition = doc.Inline.OnPartition
	}

	d := &decoder{path: []byte("limits")}
	spec.Limits = d.limits(inlineNode(q.Limits))
	newChecker(&Document{Defaults: doc.Defaults}, &d.collector).checkLimits("limits", spec.Limits, doc.zoneOf(spec))

	for i := range q.Limits {
		d.checkInline(i, &q.Limits[i], spec.Limits, doc)
	}

	if kept != 0 && len(d.errs) == 0 {
		d.checkKept(q, spec.Limits, doc, kept)
	}

	if len(d.errs) > 0 {
		return nil, inlineError{d.errs[0]}
	}

	if q.Exact {
		spec.Consistency = "exact"
	}

	// The rule gets a set of its own, because s has only the document's units.
	c := &compiler{set: &Set{Units: []string{Requests}, units: map[string]int{Requests: 0}}, doc: doc}
	r := c.compileRule(spec, nil)

	if c.err != nil {
		return nil, inlineError{c.err}
	}

	r.Index = name.index
	r.Inline = true
	r.inlineSeed = s.inlineSeed

	for i, l := range r.ownLimits {
		l.CallIndex = i

		if q.Limits[i].From == fromFirst {
			id := doc.identity(spec.Limits[i], "")
			id.kind = algorithms.FirstWindow
			l.Kind = algorithms.FirstWindow
			r.Consistency = Exact
			l.ID = id.hash()
		}

		if kept != 0 {
			l.Kind = kept
			l.ID = keptID(kept)
			r.Consistency = Exact
		}
	}

	slices.SortFunc(r.ownLimits, func(a, b *Limit) int { return cmp.Compare(a.ID, b.ID) })
	return r, nil
}

// inlineNode returns limits as a document would have them.
func inlineNode(limits []InlineLimit) *yaml.Node {
	list := yaml.NewList()
	for i := range limits {
		l := &limits[i]
		n := yaml.NewMap()
		n.Set("name", text(strings.Clone(l.Name)))
		n.Set("limit", integer(l.Limit))
		n.Set("per", inlineDuration(l.Per, l.PerMS))
		n.Set("ttl", inlineDuration(l.TTL, l.TTLMS))
		n.Set("algorithm", text(strings.Clone(l.Algorithm)))

		if l.Burst != 0 {
			n.Set("burst", integer(l.Burst))
		}

		n.Set("unit", text(strings.Clone(l.Unit)))
		n.Set("tz", text(strings.Clone(l.TZ)))
		list.Items = append(list.Items, n)
	}

	return list
}

// inlineDuration returns a duration that a call gives as text or in
// milliseconds; nil if it gives none.
func inlineDuration(given string, ms int64) *yaml.Node {
	if ms > 0 {
		given = FormatDuration(time.Duration(min(ms,
			int64(algorithms.MaxWindow/time.Millisecond)+1)) * time.Millisecond)
	}
	return text(strings.Clone(given))
}

// checkInline reports mistakes in the i-th limit of a call that a document
// could not have, and whatever doc does not allow.
func (dec *decoder) checkInline(i int, q *InlineLimit, specs []*LimitSpec, doc *Document) {
	fail := func(field, format string, args ...any) {
		dec.add(yaml.Pos{}, fmt.Sprintf("limits[%d].%s", i, field), format, args...)
	}

	switch {
	case q.Per != "" && q.PerMS != 0:
		fail("per_ms", "per and per_ms exclude each other")
	case q.TTL != "" && q.TTLMS != 0:
		fail("ttl_ms", "ttl and ttl_ms exclude each other")
	case q.From != "" && q.From != fromFirst && q.From != fromClock:
		fail("from", "%q is not one of %s, %s", shorten(q.From), fromFirst, fromClock)
	}

	// The checks below read the limit as it was parsed, which says nothing
	// after a mistake.
	if len(dec.errs) > 0 {
		return
	}
	if q.From == fromFirst && (doc.kind(specs[i]) != algorithms.FixedWindow || specs[i].calendar()) {
		fail("from", "%s is for fixed-window with a duration", fromFirst)
		return
	}

	// These are the bounds that the document sets for callers.
	if doc.Inline == nil {
		return
	}
	most, longest := doc.Inline.MaxLimit, doc.Inline.MaxPer
	switch {
	case most > 0 && q.Limit > most:
		fail("limit", "the rules allow no more than %d", most)
	case most > 0 && q.Burst > most:
		fail("burst", "the rules allow no more than %d", most)
	case longest.Duration > 0 && specs[i].window > longest.Duration:
		field := "per"
		if specs[i].isSlots() {
			field = "ttl"
		}
		fail(field, "the rules allow no more than %s", longest.Text)
	}
}
