package rules

import (
	"fmt"
	"net/netip"
	"strings"
)

// defaultIPv6Prefix is how many bits of an IPv6 address tell subjects apart: a customer usually has a whole /64.
const defaultIPv6Prefix = 64

// holdsAddresses reports whether an attribute's values are addresses: ip and *_ip.
func holdsAddresses(attribute string) bool {
	return attribute == "ip" || strings.HasSuffix(attribute, "_ip")
}

// parseAddress reads an address as it is counted: IPv4-mapped is IPv4, and a zone is dropped.
func parseAddress(s string) (netip.Addr, bool) {
	if len(s) < 2 || len(s) > 80 {
		return netip.Addr{}, false
	}
	colon := strings.IndexByte(s, ':')
	if colon < 0 {
		return parseIPv4(s)
	}
	if c := s[0]; c != ':' && !('0' <= c && c <= '9') && !('a' <= c && c <= 'f') && !('A' <= c && c <= 'F') {
		return netip.Addr{}, false // most text that has a colon: netip's errors are on the heap
	}
	if i := strings.IndexByte(s, '%'); i > colon && i < len(s)-1 {
		s = s[:i] // netip would intern the zone
	}
	a, err := netip.ParseAddr(s)
	return a.Unmap(), err == nil
}

// parseIPv4 is netip.ParseAddr for four decimal numbers, without an error to allocate.
func parseIPv4(s string) (netip.Addr, bool) {
	var a [4]byte
	field := 0
	n, digits := 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9':
			if digits > 0 && n == 0 {
				return netip.Addr{}, false // a zero in front
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

// group returns the address that stands for all that are counted with a.
func groupAddress(a netip.Addr, ipv6Prefix int) netip.Addr {
	if a.Is4() {
		return a
	}
	p, err := a.Prefix(ipv6Prefix)
	if err != nil {
		return a
	}
	return p.Addr()
}

// parsePrefix reads a CIDR; one of IPv4-mapped addresses is IPv4.
func parsePrefix(s string) (netip.Prefix, bool) {
	if strings.IndexByte(s, '/') <= 0 {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p, true
}

// usualAddress is the usual writing of an address that is the value of attribute, and any other value itself.
func usualAddress(attribute, value string) string {
	if holdsAddresses(attribute) {
		if a, ok := parseAddress(value); ok {
			return a.String()
		}
	}
	return value
}

// checkAddress says what is wrong with a value that is meant as an address but isn't one.
func checkAddress(attribute, value string, cidr bool) string {
	if p, ok := parsePrefix(value); ok && cidr {
		if p != p.Masked() && holdsAddresses(attribute) {
			return fmt.Sprintf("%s has bits set behind its prefix; is %s meant?", value, p.Masked())
		}
		return ""
	}
	if !holdsAddresses(attribute) || !likeAddress(value) {
		return ""
	}
	if _, ok := parseAddress(value); ok {
		return ""
	}
	if cidr {
		return fmt.Sprintf("%q is no address and no CIDR", shorten(value))
	}
	return fmt.Sprintf("%q is no address", shorten(value))
}

// likeAddress reports whether a value can only be meant as an address or a CIDR, right or wrong.
func likeAddress(s string) bool {
	return s != "" && (s[0] == ':' || '0' <= s[0] && s[0] <= '9' || strings.IndexByte(s, ':') > 0) &&
		strings.ContainsAny(s, ".:/") && strings.Trim(s, "0123456789abcdefABCDEF.:/") == ""
}
