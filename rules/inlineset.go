package rules

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/rlnode/rlnode/rules/document"
)

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

// InlineName is the name under which metrics count inline limits, and the
// namespace of limits that name none. Limits in a namespace that the document
// names are counted separately, under InlineName, a slash and the namespace.
const InlineName = "inline"

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

// maxInterned bounds the sets of limits that a Set keeps. Further ones are
// compiled for their call alone.
const maxInterned = 4096

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
// concurrent add. If the table is full, add marks r as ForOneCall and returns
// it.
func (sets *inlineSets) add(key []byte, r *Rule) *Rule {
	// The set is counted before it is added, so that concurrent calls can't
	// fill the table.
	if sets.count.Add(1) > maxInterned {
		sets.count.Add(-1)
		r.ForOneCall = true
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

// inlineName is the name under which the inline limits of a namespace are
// counted, and its index in Set.Names.
type inlineName struct {
	index int
	name  string
}

// nameInline assigns the names under which inline limits are counted.
func (s *Set) nameInline(spec *document.InlineSpec) {
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
