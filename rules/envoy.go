package rules

import (
	"strings"
	"unsafe"
)

// The section `envoy` of a document holds the configuration of Envoy's rate
// limit service: for each domain a tree of descriptors, matched separately from
// the rules. At most one node of the tree applies to a descriptor of a request.
// Its limit is compiled to a rule that is not in Set.Rules.

// EnvoyName is the prefix of the name under which metrics count a domain: envoy/<domain>.
const EnvoyName = "envoy"

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
	// Path is the domain and the descriptors down to this node, as written:
	// "edge.path_/search.method".
	Path      string
	Rule      *Rule    // the limit, compiled under the name Path; nil if Unlimited
	Unlimited bool     // always OK, never counted
	Shadow    bool     // counts and reports, never refuses; equals Rule.Shadow
	Quota     bool     // quota_mode: refuses only together with all other quota nodes of a request
	Detailed  bool     // has its own metrics
	Requests  uint32   // requests_per_unit; 0 refuses everything
	Unit      string   // second, minute, hour, day, week, month or year; empty if the document has per instead
	LimitName string   // name of the rate_limit; may be empty
	Replaces  []string // names of the limits that are not counted if this one applies to the same request

	levels []EnvoyEntry // keys and values as written, from the root down to this node
	seed   hashState    // the initial state for hashing a subject; includes the domain

	shadowRule *Rule // Rule in shadow mode; only for Quota
}

// envoyBranch holds sibling descriptors: those directly below the same one.
type envoyBranch struct {
	// byText has all of them by their text: the key, an underscore and the value,
	// or the key alone. Like the reference server, it does not tell a key "a_b"
	// without a value from a key "a" with the value "b".
	byText    map[string]*envoyDescriptor
	wildcards []envoyWildcard // those with a * in their text, in document order
}

type envoyDescriptor struct {
	node  *EnvoyNode // nil without a rate_limit
	below envoyBranch
}

type envoyWildcard struct {
	pattern    glob
	descriptor *envoyDescriptor
}

// envoyTrees are the trees of a document.
type envoyTrees struct {
	domains map[string]*EnvoyDomain
	paths   map[string]*EnvoyNode // nodes with a Rule; of several with the same path, the first
}

// HasEnvoy reports whether the document configures a domain of Envoy's rate limit service.
func (s *Set) HasEnvoy() bool { return s.envoy != nil }

// EnvoyDomain returns the tree of a domain, or nil if the document has none.
func (s *Set) EnvoyDomain(name string) *EnvoyDomain {
	if s.envoy == nil {
		return nil
	}
	return s.envoy.domains[name]
}

// Name returns the domain's name.
func (d *EnvoyDomain) Name() string { return d.name }

// Match returns the node that applies to a descriptor, or nil. It does not
// allocate unless an entry has more than 4,000 bytes.
//
// On each level, an entry selects the first of these that exists:
//
//   - the descriptor with the entry's key and value;
//   - of the descriptors whose wildcards match the entry's text, the first in
//     the document;
//   - the descriptor with the entry's key and no value.
//
// The descriptor that the last entry selects decides. If it has no rate_limit,
// nothing applies: neither the limit of a level above nor one of a level below.
func (d *EnvoyDomain) Match(entries []EnvoyEntry) *EnvoyNode {
	for i := range entries {
		if len(entries[i].Key)+len(entries[i].Value) >= 255 {
			var room [4096]byte
			return d.match(entries, room[:0])
		}
	}
	var room [256]byte
	return d.match(entries, room[:0])
}

// match is Match with a buffer for the text of an entry. No descriptor keeps
// the text, so all entries may share the buffer.
func (d *EnvoyDomain) match(entries []EnvoyEntry, text []byte) *EnvoyNode {
	branch := &d.root
	for i := range entries {
		e := &entries[i]
		text = append(append(append(text[:0], e.Key...), '_'), e.Value...)
		found := branch.find(unsafe.String(unsafe.SliceData(text), len(text)), e.Key)
		switch {
		case found == nil:
			return nil
		case i == len(entries)-1:
			return found.node
		}

		branch = &found.below
	}

	return nil
}

// find returns the descriptor for an entry, or nil. text is the entry's key, an
// underscore and its value.
func (b *envoyBranch) find(text, key string) *envoyDescriptor {
	if found := b.byText[text]; found != nil {
		return found
	}
	for i := range b.wildcards {
		w := &b.wildcards[i]
		if w.pattern.matches(text) {
			return w.descriptor
		}
	}
	return b.byText[key]
}

// Subject returns the identity of a descriptor's counter: a hash of the domain
// and of all entries' keys and values, in order. The hash begins with another
// state than those of rules and of inline limits, so none of their subjects has
// the same identity.
func (n *EnvoyNode) Subject(entries []EnvoyEntry) Hash {
	h := n.seed
	for i := range entries {
		e := &entries[i]
		h = h.addText(e.Key).addWord(uint64(len(e.Key))).addText(e.Value).addWord(uint64(len(e.Value)))
	}
	return h.finish(uint64(len(entries)), titleBytes)
}

// Key returns the key under which a descriptor's counter is shown, next to
// Path: the values of the entries.
func (n *EnvoyNode) Key(entries []EnvoyEntry) []string {
	key := make([]string, len(entries))
	for i := range entries {
		key[i] = strings.Clone(entries[i].Value)
	}
	return key
}

// envoySeed returns the initial state for hashing the subjects of a domain.
func (k hashKey) envoySeed(domain string) hashState {
	return k.state().addWord(1<<63 | 1).addText(domain).addWord(uint64(len(domain))) // no rule's name is that long
}
