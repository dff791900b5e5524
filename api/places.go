package api

import (
	"net"
	"net/netip"
	"slices"
)

// spareOf is the fraction of places reserved for probes: one in spareOf.
const spareOf = 64

// places bounds a listener's connections, in total and per address. One address may take three quarters of the places, because
// a gateway is a single address. A connection beyond the bounds gets a spare place, on which one probe is answered. When spare
// places run out, the newest connection displaces the oldest one. So probes are answered even if others hold all places,
// including the spare ones.
type places struct {
	most, spares int // 0: no bound

	// Guarded by Connections.mu.
	taken  int
	beyond int64                // connections that found no place
	of     map[netip.Prefix]int // places taken, per address
	spare  []*Connection        // connections on spare places, oldest first
}

func newPlaces(most int) places {
	spares := max(1, most/spareOf)
	if most == 0 {
		return places{}
	}
	return places{most: most - spares, spares: spares, of: make(map[netip.Prefix]int)}
}

// take gives c a place. It reports false if there is none.
func (p *places) take(c *Connection) bool {
	if p.most == 0 {
		return true
	}
	if p.taken >= p.most || c.address.IsValid() && p.of[c.address] >= p.most-p.most/4 {
		return false
	}
	p.taken++
	if c.placed = true; c.address.IsValid() {
		p.of[c.address]++
	}
	return true
}

// takeSpare gives c a spare place. It returns the connection that c displaces, if any.
func (p *places) takeSpare(c *Connection) (before *Connection) {
	if len(p.spare) == p.spares {
		before = p.spare[0]
		p.spare = slices.Delete(p.spare, 0, 1)
	}
	c.Spare = true
	p.beyond++
	p.spare = append(p.spare, c)
	return before
}

// leave frees c's place.
func (p *places) leave(c *Connection) {
	if i := slices.Index(p.spare, c); i >= 0 {
		p.spare = slices.Delete(p.spare, i, i+1)
	}
	if !c.placed {
		return
	}
	c.placed = false
	p.taken--
	if p.of[c.address]--; p.of[c.address] <= 0 {
		delete(p.of, c.address)
	}
}

// addressOf returns the prefix that counts as one address: for IPv6 a /64, because a subscriber gets at least that much.
func addressOf(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // an invalid address gives no prefix
	return p
}

// OnSpare reports whether c holds a spare place.
func OnSpare(c net.Conn) bool {
	one := Unwrap[*Connection](c)
	return one != nil && one.Spare
}

// CrowdedError returns the error for a request, other than a probe, on a spare place.
func CrowdedError() *Error {
	return Errorf(Overloaded, "too many connections are open, in all or from one address; this one is only answered probes")
}
