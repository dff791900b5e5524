package rules

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

// grouping is how many first bits of an address distinguish subjects.
type grouping struct{ ipv4, ipv6 int }

// defaultGrouping tells all IPv4 addresses apart. Of IPv6, a customer usually has a /64.
var defaultGrouping = grouping{ipv4: 32, ipv6: 64}

// of returns the address that stands for all addresses counted together with a.
func (g grouping) of(a netip.Addr) netip.Addr {
	bits := g.ipv6
	if a.Is4() {
		bits = g.ipv4
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

// trimBlanks removes surrounding blanks. It takes a fifth of the time of strings.Trim.
func trimBlanks(s string) string {
	for s != "" && isBlank(s[0]) {
		s = s[1:]
	}
	for s != "" && isBlank(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

func isBlank(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// parseAddress reads an address in any notation. Every value of an attribute that holds addresses is read here and
// nowhere else, so a caller is one subject whatever program wrote the address, and whatever translated its packets.
// An address that embeds an IPv4 address becomes that one.
func parseAddress(s string) (netip.Addr, bool) {
	a, ok := parseWritten(s)
	return ipaddr.Canonical(a), ok
}

// parseWritten reads an address as it is written. Blanks, double quotes and brackets may surround it, and a port may
// follow. A zone is dropped, because it names an interface of the machine that wrote it.
func parseWritten(s string) (netip.Addr, bool) {
	colon := strings.IndexByte(s, ':')
	if colon < 0 {
		if a, ok := parseIPv4(s); ok {
			return a, true
		}
	} else if colon <= 4 && beginsIPv6(s) && !isBlank(s[len(s)-1]) {
		return parseIPv6(s) // nothing surrounds it
	}
	return parseBare(bareAddress(s))
}

// IsAddress reports whether s is an address in a notation that rlnode accepts as the value of an address attribute.
func IsAddress(s string) bool {
	_, ok := parseAddress(s)
	return ok
}

// bareAddress removes blanks, quotes, brackets and a port around an address. It returns "" if the rest can't be an
// address.
func bareAddress(s string) string {
	s = trimBlanks(s)
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	if inside, ok := strings.CutPrefix(s, "["); ok {
		host, port, closed := strings.Cut(inside, "]")
		if !closed || port != "" && !isPort(port) || strings.IndexByte(host, ':') < 0 {
			return ""
		}
		return host
	}
	if i := strings.IndexByte(s, ':'); i > 0 && strings.IndexByte(s[i+1:], ':') < 0 {
		if !isPort(s[i:]) {
			return ""
		}
		return s[:i]
	}
	return s
}

// isPort reports whether s is a colon and a port: up to five digits of any value. If it rejected ports above 65535, each
// address with such a port would become its own subject.
func isPort(s string) bool {
	if len(s) < 2 || len(s) > 6 || s[0] != ':' {
		return false
	}
	for i := 1; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// parseBare reads an address with nothing around it.
func parseBare(s string) (netip.Addr, bool) {
	switch {
	case strings.IndexByte(s, ':') < 0:
		return parseIPv4(s)
	case beginsIPv6(s):
		return parseIPv6(s)
	}
	return netip.Addr{}, false // most other text with a colon ends here, without an error from netip on the heap
}

// parseIPv6 reads an IPv6 address. It drops the zone, which netip would intern.
func parseIPv6(s string) (netip.Addr, bool) {
	if i := strings.IndexByte(s, '%'); i >= 0 && i < len(s)-1 {
		if s = s[:i]; strings.IndexByte(s, ':') < 0 {
			return netip.Addr{}, false
		}
	}
	if len(s) > maxAddressText {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	return a, err == nil
}

// beginsIPv6 reports whether the first byte of s, which must not be empty, can begin an IPv6 address.
func beginsIPv6(s string) bool {
	c := s[0]
	return '0' <= c && c <= ':' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// maxAddressText is the length of the longest address that netip reads: eight groups, the last two written as IPv4.
const maxAddressText = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")

// parseIPv4 is netip.ParseAddr for dotted decimal. It allocates no error.
func parseIPv4(s string) (netip.Addr, bool) {
	var a [4]byte
	field := 0
	n, digits := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9':
			if digits > 0 && n == 0 {
				return netip.Addr{}, false // a leading zero
			}
			n = n*10 + int(c-'0')
			if digits++; n > 255 {
				return netip.Addr{}, false
			}
		case c == '.' && digits > 0 && field < 3:
			a[field] = byte(n)
			field++
			n, digits = 0, 0
		default:
			return netip.Addr{}, false
		}
	}
	if field != 3 || digits == 0 {
		return netip.Addr{}, false
	}
	a[3] = byte(n)
	return netip.AddrFrom4(a), true
}

// parsePrefix reads a CIDR, ignoring blanks around it. A CIDR of addresses that count as IPv4 is IPv4.
func parsePrefix(s string) (netip.Prefix, bool) {
	s = trimBlanks(s)
	if strings.IndexByte(s, '/') <= 0 {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	return ipaddr.CanonicalPrefix(p), true
}

// canonicalAddress returns value in canonical notation if attribute holds addresses and value is one, and otherwise value
// unchanged.
func canonicalAddress(attribute, value string) string {
	if holdsAddresses(attribute) {
		if a, ok := parseAddress(value); ok {
			return a.String()
		}
	}
	return value
}

// addressMistake returns what is wrong with a value that looks like an address but isn't valid, or "".
func addressMistake(attribute, value string, cidr bool) string {
	if p, ok := parsePrefix(value); ok && cidr {
		if p != p.Masked() && holdsAddresses(attribute) {
			return fmt.Sprintf("%s has bits set behind its prefix; did you mean %s?", value, p.Masked())
		}
		return ""
	}
	if !holdsAddresses(attribute) || !looksLikeAddress(value) {
		return ""
	}
	if _, ok := parseAddress(value); ok {
		return ""
	}
	if cidr {
		return fmt.Sprintf("%q is neither an address nor a CIDR", shorten(value))
	}
	return fmt.Sprintf("%q is not an address", shorten(value))
}

// looksLikeAddress reports whether a value, valid or not, can only be meant as an address or a CIDR.
func looksLikeAddress(s string) bool {
	s = strings.Trim(trimBlanks(s), `"[]`)
	return s != "" && (s[0] == ':' || '0' <= s[0] && s[0] <= '9' || strings.IndexByte(s, ':') > 0) &&
		strings.ContainsAny(s, ".:/") && strings.Trim(s, "0123456789abcdefABCDEF.:/") == ""
}
