package api

import (
	"net"
	"net/netip"
	"slices"
)

// spareDivisor is the fraction of slots reserved for probes: one in spareDivisor.
const spareDivisor = 64

// slots bounds a listener's connections, in total and per address. One address may take three quarters of the slots, because
// a gateway is a single address. A connection beyond the bounds gets a spare slot, on which one probe is answered. When spare
// slots run out, the newest connection displaces the oldest one. So probes are answered even if others hold all slots,
// including the spare ones.
type slots struct {
	most, spares int // 0: no bound

	// Guarded by Connections.mu.
	taken        int
	overflowed   int64                // connections that found no slot
	takenBy      map[netip.Prefix]int // slots taken, per address
	spareHolders []*Connection        // connections on spare slots, oldest first
}

func newSlots(most int) slots {
	spares := max(1, most/spareDivisor)
	if most == 0 {
		return slots{}
	}
	return slots{most: most - spares, spares: spares, takenBy: make(map[netip.Prefix]int)}
}

// take gives c a slot. It reports false if there is none.
func (s *slots) take(c *Connection) bool {
	if s.most == 0 {
		return true
	}
	if s.taken >= s.most || c.address.IsValid() && s.takenBy[c.address] >= s.most-s.most/4 {
		return false
	}
	s.taken++
	if c.hasSlot = true; c.address.IsValid() {
		s.takenBy[c.address]++
	}
	return true
}

// takeSpare gives c a spare slot. It returns the connection that c displaces, if any.
func (s *slots) takeSpare(c *Connection) (displaced *Connection) {
	if len(s.spareHolders) == s.spares {
		displaced = s.spareHolders[0]
		s.spareHolders = slices.Delete(s.spareHolders, 0, 1)
	}
	c.ProbesOnly = true
	s.overflowed++
	s.spareHolders = append(s.spareHolders, c)
	return displaced
}

// release frees c's slot.
func (s *slots) release(c *Connection) {
	if i := slices.Index(s.spareHolders, c); i >= 0 {
		s.spareHolders = slices.Delete(s.spareHolders, i, i+1)
	}
	if !c.hasSlot {
		return
	}
	c.hasSlot = false
	s.taken--
	if s.takenBy[c.address]--; s.takenBy[c.address] <= 0 {
		delete(s.takenBy, c.address)
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

// IsProbesOnly reports whether c holds a spare slot.
func IsProbesOnly(c net.Conn) bool {
	one := Unwrap[*Connection](c)
	return one != nil && one.ProbesOnly
}

// CrowdedError returns the error for a request, other than a probe, on a spare slot.
func CrowdedError() *Error {
	return Errorf(Overloaded, "too many connections are open, in all or from one address; on this one, only probes are answered")
}
