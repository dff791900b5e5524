// Package ipaddr reads the forms of IPv6 addresses that embed an IPv4 address.
// A client whose packets were translated or tunnelled on their way has such an
// address. It must be the same client as without the translation, and must not
// share a prefix with all others that come by that way.
package ipaddr

import (
	"encoding/binary"
	"net/netip"
)

// Canonical returns the address that a counts as: the IPv4 address that it
// embeds, or else a itself without its zone, which names an interface of the
// machine that wrote it.
func Canonical(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return a
	}
	b := a.As16()
	if at, _ := embedding(&b); at > 0 {
		return netip.AddrFrom4([4]byte(b[at:]))
	}
	return a.WithZone("")
}

// CanonicalPrefix returns the prefix that holds what p's addresses count as. A
// prefix of all of NAT64 or 6to4 stays as it is: it stands for those that come
// by this way, and not for all of IPv4. A prefix below a site of 6to4 becomes
// the site.
func CanonicalPrefix(p netip.Prefix) netip.Prefix {
	if !p.Addr().Is6() {
		return p
	}
	b := p.Addr().As16()
	at, notation := embedding(&b)
	bits := p.Bits() - 8*at
	if at == 0 || bits < 0 || bits == 0 && !notation {
		return p
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(b[at:])), min(bits, 32))
}

// embedding returns where in b an IPv4 address begins; 0 if b is in none of the
// forms. notation is true if the form is but another notation of IPv4: packets
// never have it.
func embedding(b *[16]byte) (at int, notation bool) {
	high, middle := binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint32(b[8:])
	switch {
	case high == 0 && middle == 0xffff: // ::ffff:0:0/96, IPv4-mapped: RFC 4291, 2.5.5.2
		return 12, true
	case high == 0x64ff9b<<32 && middle == 0: // 64:ff9b::/96, NAT64: RFC 6052, 2.1
		return 12, false
	case high>>48 == 0x2002: // 2002::/16, 6to4, where a site has a /48: RFC 3056, 2
		return 2, false
	}
	return 0, false
}
