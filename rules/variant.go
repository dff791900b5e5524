package rules

import (
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

// A rule whose key has alternatives, as in [[user, ip]], is compiled once for
// each choice among them. Such a variant is a rule like any other, except that
// it also needs the attributes before the chosen ones to be absent. So at most
// one variant applies to a check. Its subjects name the chosen attributes:
// user=ann.

// alternatives is what the variants of a rule share with the rule itself.
type alternatives struct {
	parts    []KeyPart
	variants []*Rule
}

// choices yields every choice of one attribute for each part of spec's key. The
// slice is valid until the next one.
func (spec *RuleSpec) choices(yield func(key []string) bool) {
	key := make([]string, len(spec.Key))
	var choose func(i int) bool
	choose = func(i int) bool {
		if i == len(key) {
			return yield(key)
		}

		for _, name := range spec.Key[i] {
			key[i] = name
			if !choose(i + 1) {
				return false
			}
		}

		return true
	}
	choose(0)
}

// displacedBy returns the alternatives that come before the attributes of key.
// All of them must be absent for key to be chosen.
func (spec *RuleSpec) displacedBy(key []string) (absent []string) {
	for i, part := range spec.Key {
		absent = append(absent, part[:slices.Index(part, key[i])]...)
	}
	return absent
}

// compileVariants compiles a rule, whose index in Set.Rules will be index. It
// returns the rule, and adds to the set's variants either the rule itself or a
// variant for each choice among its alternatives.
func (c *compiler) compileVariants(spec *RuleSpec, index int) *Rule {
	first := len(c.set.variants)
	for key := range spec.choices {
		r := c.compileRule(spec, key)
		r.Index = index
		r.number = len(c.set.variants)
		c.set.variants = append(c.set.variants, r)
	}
	if !spec.hasAlternatives() {
		return c.set.variants[first]
	}

	shared := &alternatives{spec.Key, slices.Clone(c.set.variants[first:])}
	for _, r := range shared.variants {
		r.alternatives = shared
	}
	whole := *shared.variants[0]
	whole.Key = nil
	for _, part := range spec.Key {
		whole.Key = append(whole.Key, strings.Join(part, "|"))
	}
	return &whole
}

// all returns the variants of a rule: the rule itself if its key has no alternatives.
func (r *Rule) all() []*Rule {
	if r.alternatives == nil {
		return []*Rule{r}
	}
	return r.alternatives.variants
}

// choose returns the variant of r that key names, and the values without the
// names of attributes. Without alternatives, that is r and key. A value without
// a name belongs to the first alternative, or if it is an address, to the first
// that holds addresses. scratch may be reused for the values.
func (r *Rule) choose(key, scratch []string) (variant *Rule, values []string) {
	a := r.alternatives
	if a == nil {
		return r, key
	}

	values = scratch[:0]
	left := a.variants
	for i := range min(len(key), len(a.parts)) {
		name, value := a.parts[i].split(key[i])
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

// split returns the attribute and the value that one value of a key stands for.
func (p KeyPart) split(text string) (name, value string) {
	if len(p) == 1 {
		return p[0], text
	}
	if name, value, ok := strings.Cut(text, "="); ok && slices.Contains(p, name) {
		return name, value
	}
	if _, ok := ipaddr.Parse(text); ok {
		if i := slices.IndexFunc(p, holdsAddresses); i >= 0 {
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

// isChosen reports whether the i-th attribute of r's key is one of several alternatives.
func (r *Rule) isChosen(i int) bool { return r.alternatives != nil && len(r.alternatives.parts[i]) > 1 }

// normalise returns a key's value as rules count it. The result may share memory with text.
func (k *keyAttribute) normalise(text string, by grouping) string {
	if k.folding != nil {
		text, _ = k.folding.fold(nil, text)
	}
	if k.address {
		if a, ok := ipaddr.Parse(text); ok {
			return by.of(a).String()
		}
	}
	return text
}

// variantLike returns the variant of r with the same key as other, a rule of
// the same name in another version, or nil. Without alternatives, it only
// compares the number of attributes.
func (r *Rule) variantLike(other *Rule) *Rule {
	if (r.alternatives == nil) != (other.alternatives == nil) {
		return nil
	}
	for _, v := range r.all() {
		if v.alternatives == nil && len(v.key) == len(other.key) || slices.Equal(v.Key, other.Key) {
			return v
		}
	}
	return nil
}
