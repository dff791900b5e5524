package rules

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

// grouping is how many first bits of an address distinguish subjects.
type grouping struct{ ipv4, ipv6 int }

// defaultGrouping tells all IPv4 addresses apart. It groups IPv6 addresses by
// /64, because a customer usually has a whole /64.
var defaultGrouping = grouping{ipv4: 32, ipv6: 64}

// of returns the address that stands for all addresses counted together with a.
func (g grouping) of(a netip.Addr) netip.Addr {
	bits := g.ipv6
	if a.Is4() {
		bits = g.ipv4
	}
	if bits == a.BitLen() {
		return a // the usual case of IPv4
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return a
	}
	return p.Addr()
}

// holdsAddresses reports whether an attribute's values are addresses: ip and *_ip.
func holdsAddresses(attribute string) bool {
	return attribute == "ip" || strings.HasSuffix(attribute, "_ip")
}

// IsAddress reports whether s is an address in a notation that rlnode accepts
// as the value of an address attribute.
func IsAddress(s string) bool {
	_, ok := ipaddr.Parse(s)
	return ok
}

// canonicalAddress returns value in canonical notation if attribute holds
// addresses and value is one, and otherwise value unchanged.
func canonicalAddress(attribute, value string) string {
	if holdsAddresses(attribute) {
		if a, ok := ipaddr.Parse(value); ok {
			return a.String()
		}
	}
	return value
}

// addressMistake returns what is wrong with a value that looks like an address
// but isn't valid, or "".
func addressMistake(attribute, value string, cidr bool) string {
	if p, ok := ipaddr.ParsePrefix(value); ok && cidr {
		if p != p.Masked() && holdsAddresses(attribute) {
			return fmt.Sprintf("%s has bits set behind its prefix; did you mean %s?", value, p.Masked())
		}
		return ""
	}

	if !holdsAddresses(attribute) || !looksLikeAddress(value) {
		return ""
	}
	if _, ok := ipaddr.Parse(value); ok {
		return ""
	}
	if cidr {
		return fmt.Sprintf("%q is neither an address nor a CIDR", shorten(value))
	}

	return fmt.Sprintf("%q is not an address", shorten(value))
}

// looksLikeAddress reports whether a value, valid or not, can only be meant as
// an address or a CIDR.
func looksLikeAddress(s string) bool {
	s = strings.Trim(s, " \t\n\v\f\r\"[]")
	return s != "" && (s[0] == ':' || '0' <= s[0] && s[0] <= '9' || strings.IndexByte(s, ':') > 0) &&
		strings.ContainsAny(s, ".:/") && strings.Trim(s, "0123456789abcdefABCDEF.:/") == ""
}
