package rules

import "sync/atomic"

// The section `envoy` of a document has the configuration of Envoy's rate limit service: for each domain a tree of
// descriptors. It is matched by itself: of a request's descriptor at most one node of the tree applies.

// EnvoyEntry is one entry of a descriptor.
type EnvoyEntry struct{ Key, Value string }

// EnvoyDomain is the tree of a domain. It is immutable.
type EnvoyDomain struct {
	name string
	root envoyBranch
}

// EnvoyNode is a node of a tree that has a rate_limit.
type EnvoyNode struct {
	Domain string
	// Path is the domain and the descriptors down to this node, as written: "edge.path_/search.method".
	Path      string
	Rule      *Rule // its limit, compiled; nil if Unlimited
	Unlimited bool  // OK, and not counted
	Shadow    bool  // counts and reports, never refuses; Rule.Shadow is the same
	Quota     bool  // refuses only together with all quota nodes of a request
	Detailed  bool  // figures of its own
	Requests  uint32 // requests_per_unit; 0 refuses all
	Unit      string // second, minute, hour, day, week, month, year; empty if per is used
	LimitName string
	Replaces  []string // the names of the limits that don't count beside this one
	seed      hashState

	lenient atomic.Pointer[Rule] // Rule in shadow, once it was asked for
}

// envoyBranch holds the children of a node.
type envoyBranch struct {
	// byText has the children by their text: the key, an underscore and the value, or the key alone. The reference server does
	// not tell a key "a_b" without a value from a key "a" with the value "b" either.
	byText    map[string]*envoyChild
	wildcards []envoyWildcard // those with a * in their text, in document order
}

type envoyChild struct {
	node *EnvoyNode // nil without a rate_limit
	next envoyBranch
}

type envoyWildcard struct {
	pattern glob
	child   *envoyChild
}

// HasEnvoy reports whether the document configures a domain of Envoy's rate limit service.
func (s *Set) HasEnvoy() bool { return len(s.envoy) > 0 }

// EnvoyDomain returns the tree of a domain, or nil if the document has none.
func (s *Set) EnvoyDomain(name string) *EnvoyDomain { return s.envoy[name] }

// Name returns the domain's name.
func (d *EnvoyDomain) Name() string { return d.name }

// Match returns the node that applies to a descriptor, or nil. It allocates nothing.
//
// On each level the entry goes to the child with its key and value; else to the first in the document whose text, with
// wildcards, is that of the entry; else to the child with its key and no value. The limit must be at the level of the last
// entry: a descriptor with more entries than a path has levels, or fewer, is not limited by it.
func (d *EnvoyDomain) Match(entries []EnvoyEntry) *EnvoyNode {
	var room [256]byte
	branch, text := &d.root, room[:0]
	for i := range entries {
		e := &entries[i]
		text = append(append(append(text[:0], e.Key...), '_'), e.Value...)
		child := branch.child(text, len(e.Key))
		switch {
		case child == nil:
			return nil
		case i == len(entries)-1:
			return child.node
		}
		branch = &child.next
	}
	return nil
}

// child returns the child for an entry, or nil. text is the entry's key, which has keyLength bytes, an underscore and the value.
func (b *envoyBranch) child(text []byte, keyLength int) *envoyChild {
	if c := b.byText[string(text)]; c != nil {
		return c
	}
	for i := range b.wildcards {
		if w := &b.wildcards[i]; w.pattern.matches(string(text)) {
			return w.child
		}
	}
	return b.byText[string(text[:keyLength])]
}

// Subject returns the identity of a descriptor's counter: of the domain and the keys and values of all entries, in order.
// Hashing it starts from a state that neither a rule's subjects nor those of inline limits start from.
func (n *EnvoyNode) Subject(entries []EnvoyEntry) Hash {
	h := n.seed
	for i := range entries {
		e := &entries[i]
		h = h.text(e.Key).word(uint64(len(e.Key))).text(e.Value).word(uint64(len(e.Value)))
	}
	return h.end(uint64(len(entries)), titleBytes)
}

// Key returns the key of a descriptor's counter as it is shown beside Path: the values of its entries.
func (n *EnvoyNode) Key(entries []EnvoyEntry) []string {
	key := make([]string, len(entries))
	for i := range entries {
		key[i] = entries[i].Value
	}
	return key
}
