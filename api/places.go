package api

import (
	"net"
	"net/netip"
	"slices"
)

// spareDivisor is the fraction of places reserved for probes: one in spareDivisor.
const spareDivisor = 64

// places bounds a listener's connections, in total and per address. One address may take three quarters of the places, because
// a gateway is a single address. A connection beyond the bounds gets a spare place, on which one probe is answered. When spare
// places run out, the newest connection displaces the oldest one. So probes are answered even if others hold all places,
// including the spare ones.
type places struct {
	most, spares int // 0: no bound

	// Guarded by Connections.mu.
	taken        int
	overflowed   int64                // connections that found no place
	takenBy      map[netip.Prefix]int // places taken, per address
	spareHolders []*Connection        // connections on spare places, oldest first
}

func newPlaces(most int) places {
	spares := max(1, most/spareDivisor)
	if most == 0 {
		return places{}
	}
	return places{most: most - spares, spares: spares, takenBy: make(map[netip.Prefix]int)}
}

// take gives c a place. It reports false if there is none.
func (p *places) take(c *Connection) bool {
	if p.most == 0 {
		return true
	}
	if p.taken >= p.most || c.address.IsValid() && p.takenBy[c.address] >= p.most-p.most/4 {
		return false
	}
	p.taken++
	if c.placed = true; c.address.IsValid() {
		p.takenBy[c.address]++
	}
	return true
}

// takeSpare gives c a spare place. It returns the connection that c displaces, if any.
func (p *places) takeSpare(c *Connection) (displaced *Connection) {
	if len(p.spareHolders) == p.spares {
		displaced = p.spareHolders[0]
		p.spareHolders = slices.Delete(p.spareHolders, 0, 1)
	}
	c.ProbesOnly = true
	p.overflowed++
	p.spareHolders = append(p.spareHolders, c)
	return displaced
}

// release frees c's place.
func (p *places) release(c *Connection) {
	if i := slices.Index(p.spareHolders, c); i >= 0 {
		p.spareHolders = slices.Delete(p.spareHolders, i, i+1)
	}
	if !c.placed {
		return
	}
	c.placed = false
	p.taken--
	if p.takenBy[c.address]--; p.takenBy[c.address] <= 0 {
		delete(p.takenBy, c.address)
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

// IsProbesOnly reports whether c holds a spare place.
func IsProbesOnly(c net.Conn) bool {
	one := Unwrap[*Connection](c)
	return one != nil && one.ProbesOnly
}

// CrowdedError returns the error for a request, other than a probe, on a spare place.
func CrowdedError() *Error {
	return Errorf(Overloaded, "too many connections are open, in all or from one address; on this one, only probes are answered")
}
