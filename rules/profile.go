package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unsafe"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/rules/document"
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

func compileProfiles(specs []*document.ProfileSpec) map[string]*Profile {
	out := make(map[string]*Profile, len(specs))
	for _, spec := range specs {
		p := &Profile{Name: spec.Name}
		for _, s := range spec.Sources {
			source := Source{Attribute: s.Attribute, Header: s.Header(), Path: s.IsTarget(), Fingerprint: s.IsSecret()}
			if s.ListsAddresses() {
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
