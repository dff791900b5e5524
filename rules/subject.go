package rules

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/rules/document"
)

// ErrKey means that a key has more or fewer values than the rule has key
// attributes. For an Envoy descriptor, it also means that another descriptor
// applies to the values.
var ErrKey = errors.New("key does not fit the rule")

// ErrMissing means that a value of the key is empty. An empty value is no
// value: an attribute with one is ignored, but a key needs all of its values.
var ErrMissing = errors.New("a value is missing")

// Tags of values in the hashed bytes, so that a text never hashes like an address.
const (
	tagText = iota
	tagIPv4
	tagIPv6
)

// hash returns the identity of r's subject in m. The hashed bytes begin with
// the rule's name, which state already includes. Each value follows in whole
// words, and then a word with its title: a tag, and the value's length or the
// IPv4 address itself. The last title is in the last word, which is not full. A
// reader could split the bytes again from their end, so different keys never
// yield the same bytes.
//
// hash assembles nothing in memory: the processor would stall on reading what
// was just written in smaller pieces.
func (r *Rule) hash(m *Match, state *hashState) Hash {
	h := *state
	trailer := uint64(0)
	for i := range r.key {
		if i > 0 {
			h = h.addWord(trailer)
		}

		k := &r.key[i]
		v := m.value(k.number)
		switch {
		case !k.address || !v.isAddress():
			h = h.addText(v.text)
			trailer = tagText | uint64(uint32(len(v.text)))<<8
		case v.address.Is4():
			a := r.grouping.of(v.address).As4()
			trailer = tagIPv4 | uint64(binary.LittleEndian.Uint32(a[:]))<<8
		default:
			a := r.grouping.of(v.address).As16()
			h = h.addWord(binary.LittleEndian.Uint64(a[:8])).addWord(binary.LittleEndian.Uint64(a[8:]))
			trailer = tagIPv6
		}
	}

	if len(r.key) == 0 {
		return h.finish(0, 0)
	}

	return h.finish(trailer, titleBytes)
}

func (t *subjectTable) find(v *value, k *keyAttribute, g grouping) *subject {
	if k.address && v.isAddress() {
		return t.byAddress[g.of(v.address)]
	}
	return t.byText[v.text]
}

// limits returns the limits of m's subject: an override's, its tier's, or the
// rule's own. nil means that the rule does not apply, because it is tiered and
// the subject has no tier, or because it is for other tiers.
func (r *Rule) limits(m *Match, beside *overlay) []*Limit { return r.limitsOf(m, r, beside) }

// limitsOf is limits for a subject that was matched by matchedRule, the rule of
// the same name in another version. beside are the entries, which come before
// what the document says; nil if there are none.
func (r *Rule) limitsOf(m *Match, matchedRule *Rule, beside *overlay) []*Limit {
	tier, override := r.tierOf(m, matchedRule, beside)
	switch {
	case r.onTiers != nil && (tier < 0 || !r.onTiers[tier]):
		return nil
	case override != nil:
		return override
	case !r.Tiered:
		return r.ownLimits
	case tier >= 0:
		return r.byTier[tier]
	}
	return nil
}

// tierOf returns the number of the tier that m's subject has, -1 for none, and
// the limits of the subject's first override for r, nil for none. Both may come
// from any value of the key.
func (r *Rule) tierOf(m *Match, matchedRule *Rule, beside *overlay) (tier int32, override []*Limit) {
	tier = -1
	for i := range r.key {
		k := &r.key[i]
		var subjects [2]*subject // beside the document, and in it
		if beside != nil {
			subjects[0] = beside.subject(m, r, k)
		}
		if k.subjects != nil {
			subjects[1] = k.subjects.find(m.value(matchedRule.key[i].number), k, r.grouping)
		}

		for _, s := range subjects {
			if s == nil {
				continue
			}
			if override == nil {
				override = s.override(int32(r.variantIndex))
			}
			if tier < 0 {
				tier = s.tier
			}
		}

		if override != nil && r.onTiers == nil {
			return tier, override // no tier matters any more
		}
	}

	if tier < 0 {
		tier = r.fallbackTier
	}
	return tier, override
}

// choose returns the variant of r that key names, and the values without the
// names of attributes. If r has no alternatives, it returns r and key. A value
// without a name belongs to the first alternative; an address belongs to the
// first that holds addresses, if there is one. choose may put the values into
// scratch.
func (r *Rule) choose(key, scratch []string) (variant *Rule, values []string) {
	a := r.alternatives
	if a == nil {
		return r, key
	}

	values = scratch[:0]
	left := a.variants
	for i := range min(len(key), len(a.parts)) {
		name, value := splitValue(a.parts[i], key[i])
		values = append(values, value)
		var fitting []*Rule
		for _, v := range left {
			if v.Key[i] == name {
				fitting = append(fitting, v)
			}
		}
		left = fitting
	}

	return left[0], values
}

// splitValue returns the attribute and the value that one value of a key stands
// for in its part p.
func splitValue(p document.KeyPart, text string) (name, value string) {
	if len(p) == 1 {
		return p[0], text
	}
	if name, value, ok := strings.Cut(text, "="); ok && slices.Contains(p, name) {
		return name, value
	}
	if _, ok := ipaddr.Parse(text); ok {
		if i := slices.IndexFunc(p, document.HoldsAddresses); i >= 0 {
			return p[i], text
		}
	}
	return p[0], text
}

// shownValue returns the i-th key value as r counts it, with the attribute's
// name if the key has alternatives there. It may share memory with value.
func (r *Rule) shownValue(i int, value string) string {
	if r.Envoy {
		return value
	}
	value = r.key[i].normalise(value, r.grouping)
	if r.isChosen(i) {
		return r.Key[i] + "=" + value
	}
	return value
}

// SubjectOf returns the values of r's key attributes in attrs as r counts them:
// folded, with addresses grouped, and as user=ann where the key has
// alternatives. The value of an absent attribute is empty. The values share no
// memory with attrs. r is the rule of a [Hit].
func (r *Rule) SubjectOf(attrs []Attribute) []string {
	return cloneAll(r.AppendSubjectOf([]string{}, attrs))
}

// AppendSubjectOf appends what SubjectOf returns, but the values may share memory with attrs.
func (r *Rule) AppendSubjectOf(out []string, attrs []Attribute) []string {
	for i, name := range r.Key {
		value := ""
		for j := range attrs {
			// As in Match, the first value that is not empty counts.
			if attrs[j].Name == name && attrs[j].Value != "" {
				value = r.shownValue(i, attrs[j].Value)
				break
			}
		}

		out = append(out, value)
	}

	return out
}

// NormalKey returns key as r counts it, like SubjectOf. It returns at most as
// many values as r has key attributes.
func (r *Rule) NormalKey(key []string) []string { return cloneAll(r.AppendNormalKey([]string{}, key)) }

// AppendNormalKey appends what NormalKey returns, but the values may share memory with key.
func (r *Rule) AppendNormalKey(out, key []string) []string {
	r, key = r.choose(key, nil)
	for i := range min(len(key), len(r.Key)) {
		out = append(out, r.shownValue(i, key[i]))
	}
	return out
}

// cloneAll replaces the values by copies.
func cloneAll(values []string) []string {
	for i := range values {
		values[i] = strings.Clone(values[i])
	}
	return values
}

// MissingAttribute returns the attribute of r's key for which key has no value;
// empty if it has all of them. key has a value for each attribute of the key.
func (s *Set) MissingAttribute(r *Rule, key []string) string {
	r, key = r.choose(key, nil)
	if i := s.missingValue(&Match{}, r, key); i >= 0 {
		return r.Key[i]
	}
	return ""
}
