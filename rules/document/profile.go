package document

import (
	"net/textproto"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
)

// maxTrustedHops bounds ProfileSpec.TrustedHops.
const maxTrustedHops = 32

// ProfileSpec says which headers of a proxied request become attributes.
type ProfileSpec struct {
	Name        string
	Sources     []ProfileSource
	TrustedHops int // 0 if left out, which means 1
	pos         yaml.Pos
}

// ProfileSource is an attribute and the source of its value, such as header:X-Api-Key.
type ProfileSource struct{ Attribute, Source string }

// Header returns the canonical name of the header that p reads.
func (p *ProfileSource) Header() string {
	return textproto.CanonicalMIMEHeaderKey(strings.TrimPrefix(strings.TrimPrefix(p.Source, "header:"), secretSource))
}

// secretSource is the prefix of sources whose header is a secret.
const secretSource = "fingerprint:"

// IsSecret reports whether the header is a secret.
func (p *ProfileSource) IsSecret() bool { return strings.HasPrefix(p.Source, secretSource) }

// ListsAddresses reports whether the header is a list of addresses, to which
// each proxy appends one.
func (p *ProfileSource) ListsAddresses() bool {
	return HoldsAddresses(p.Attribute) || p.Header() == "X-Forwarded-For"
}

// IsTarget reports whether the header is a request's target.
func (p *ProfileSource) IsTarget() bool {
	return p.Attribute == "endpoint" || p.Header() == "X-Forwarded-Uri"
}

func (dec *decoder) profile(key, n *yaml.Node) *ProfileSpec {
	p := &ProfileSpec{Name: dec.checkName(key, key.Text), pos: key.Pos}
	var hops *yaml.Node
	lists := false
	dec.eachEntry(n, func(key, v *yaml.Node) {
		if key.Text == "trusted_hops" {
			hops = v
			p.TrustedHops = int(dec.integer(v, 1, maxTrustedHops))
			return
		}
		s := dec.source(dec.checkAttribute(key, key.Text), v)
		lists = lists || s.ListsAddresses()
		p.Sources = append(p.Sources, s)
	})

	if n.Kind != yaml.Map {
		return p
	}

	switch {
	case len(p.Sources) == 0:
		dec.fail(n, "a profile needs at least one attribute")
	case len(p.Sources) > MaxAttributes:
		dec.fail(n, "more than %d attributes", MaxAttributes)
	case hops != nil && !lists:
		dec.fail(hops,
			"trusted_hops is for addresses, but the profile has no ip, no *_ip and nothing from X-Forwarded-For")
	}

	return p
}

// source reads the source of an attribute's value.
func (dec *decoder) source(attribute string, v *yaml.Node) ProfileSource {
	text, ok := dec.text(v)
	s := ProfileSource{attribute, text}
	switch {
	case !ok:
	case !headerSource(text):
		dec.fail(v, "%q is not a source such as header:X-Tenant or fingerprint:X-Api-Key", Shorten(text))
	case s.IsSecret() && (s.ListsAddresses() || s.IsTarget()):
		dec.fail(v, "%s is read from its header; fingerprint: is for secrets", attribute)
	case HoldsAddresses(attribute) && s.Header() == "Forwarded":
		dec.fail(v, "addresses are not read from Forwarded; let the proxy send X-Forwarded-For")
	}
	return s
}

// headerSource reports whether s is header: or fingerprint: and a header's name.
func headerSource(s string) bool {
	name, ok := strings.CutPrefix(s, "header:")
	if !ok {
		name, ok = strings.CutPrefix(s, secretSource)
	}
	return ok && name != "" && len(name) <= maxNameBytes && isToken(name)
}

func (p *ProfileSpec) node() *yaml.Node {
	n := mapNode(p.Sources, func(s ProfileSource) string { return s.Attribute },
		func(s ProfileSource) *yaml.Node { return text(s.Source) })
	n.Set("trusted_hops", unlessZero(integer[int])(p.TrustedHops))
	return n
}
