package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"net/textproto"
	"strings"
	"unsafe"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/internal/yaml"
)

// Profile is a compiled profile: it says which headers of a proxied request
// become attributes of the check.
type Profile struct {
	Name    string
	Sources []Source // each for a different attribute
}

// Source is where an attribute's value comes from.
type Source struct {
	Attribute string
	Header    string // in canonical case
	// Hops selects the entry if the header is a list of addresses: the n-th from
	// the right, from 1. 0 means that the header is not such a list.
	Hops int
	// Path means that the header is a request's target, of which only the path counts.
	Path bool
	// Fingerprint means that the header is a secret: the attribute's value is then
	// what AppendFingerprint makes of it.
	Fingerprint bool
}

// AppendFingerprint appends the fingerprint of a secret: the first half of its
// SHA-256 in hexadecimal digits. It replaces the secret in attributes, and so
// in counters, lists, logs and bills.
func AppendFingerprint(b []byte, secret string) []byte {
	sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(secret), len(secret)))
	return hex.AppendEncode(b, sum[:sha256.Size/2])
}

// defaultHops trusts only the proxy that sends the check, and none before it.
const defaultHops = 1

func compileProfiles(specs []*ProfileSpec) map[string]*Profile {
	out := make(map[string]*Profile, len(specs))
	for _, spec := range specs {
		p := &Profile{Name: spec.Name}
		for _, s := range spec.Sources {
			source := Source{Attribute: s.Attribute, Header: s.header(), Path: s.isTarget(), Fingerprint: s.isSecret()}
			if s.listsAddresses() {
				source.Hops = spec.TrustedHops
				if source.Hops == 0 {
					source.Hops = defaultHops
				}
			}
			p.Sources = append(p.Sources, source)
		}

		out[p.Name] = p
	}

	return out
}

// header returns the canonical name of the header that p reads.
func (p *ProfileSource) header() string {
	return textproto.CanonicalMIMEHeaderKey(strings.TrimPrefix(strings.TrimPrefix(p.Source, "header:"), secretSource))
}

// secretSource is the prefix of sources whose header is a secret.
const secretSource = "fingerprint:"

// isSecret reports whether the header is a secret.
func (p *ProfileSource) isSecret() bool { return strings.HasPrefix(p.Source, secretSource) }

// listsAddresses reports whether the header is a list of addresses, to which
// each proxy appends one.
func (p *ProfileSource) listsAddresses() bool {
	return holdsAddresses(p.Attribute) || p.header() == "X-Forwarded-For"
}

// isTarget reports whether the header is a request's target.
func (p *ProfileSource) isTarget() bool {
	return p.Attribute == "endpoint" || p.header() == "X-Forwarded-Uri"
}

// Value finds the attribute's value in the header's lines, in order of arrival.
// The value shares their memory and is not fingerprinted yet. ok is false if
// the header is missing or empty, or is a list without a trusted address.
func (s *Source) Value(lines []string) (value string, ok bool) {
	if s.Hops > 0 {
		return trustedAddress(lines, s.Hops)
	}
	if len(lines) == 0 {
		return "", false
	}
	value = strings.Trim(lines[0], " \t")
	if s.Path {
		value = RequestPath(value)
	}
	return value, value != ""
}

// trustedAddress finds the n-th entry from the right of a list of addresses, or
// the leftmost if there are fewer. Entries count even if they are not
// addresses: a proxy that doesn't know the address writes "unknown", and still
// can't vouch for the entries to the left. If the n-th entry is not an address,
// trustedAddress returns the next address to its right, because a proxy nearer
// to us added that.
func trustedAddress(lines []string, n int) (address string, ok bool) {
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var entry string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, entry = rest[:comma], rest[comma+1:]
			} else {
				entry, more = rest, false
			}

			entry = strings.Trim(entry, " \t")
			if entry == "" {
				continue // an empty element is not an entry: RFC 9110, 5.6.1
			}

			if a, valid := ipaddr.Bare(entry); valid {
				address = a
				ok = true
			}

			n--
			if n == 0 {
				return address, ok
			}
		}
	}

	return address, ok
}

// RequestPath returns the path of a request's target, without the query. A
// target in absolute form loses its host.
func RequestPath(target string) string {
	if i := strings.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	scheme, rest, ok := strings.Cut(target, "://")
	if !ok || strings.Contains(scheme, "/") {
		return target
	}
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return rest[i:]
	}
	return "/"
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
		lists = lists || s.listsAddresses()
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
		dec.fail(v, "%q is not a source such as header:X-Tenant or fingerprint:X-Api-Key", shorten(text))
	case s.isSecret() && (s.listsAddresses() || s.isTarget()):
		dec.fail(v, "%s is read from its header; fingerprint: is for secrets", attribute)
	case holdsAddresses(attribute) && s.header() == "Forwarded":
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

// isToken reports whether a text has only the characters that a header's name may have.
func isToken(s string) bool {
	return strings.Trim(s, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
