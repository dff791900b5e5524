package api

import (
	"cmp"
	"net"
	"net/netip"
	"slices"

	"github.com/rlnode/rlnode/internal/ipaddr"
)

const (
	// spareDivisor is the fraction of seats reserved for probes: one in spareDivisor.
	spareDivisor = 64
	// victimsDivisor is the fraction of the strangers that are chosen together as
	// the next to be displaced. Choosing looks at all of them, so each newcomer
	// pays for victimsDivisor looks.
	victimsDivisor = 16
)

// seats bounds a listener's connections. A connection is a stranger if it has
// not shown a valid token, or not since a token was last withdrawn. When all
// seats are taken, a newcomer displaces a stranger. So a caller with a token
// gets in, however many strangers hold seats.
//
// If there is nobody to displace, a newcomer gets a spare seat, on which one
// probe is answered. When spare seats run out, the newest connection displaces
// the oldest one. So probes are answered even if others hold all seats,
// including the spare ones.
type seats struct {
	capacity, spares int // 0: no bound

	// Guarded by seatPool.mu.
	taken        int
	strangers    map[*Connection]struct{} // those that have a seat
	trustedOf    map[netip.Prefix]int     // seats of connections that are no strangers, by address
	victims      []victim                 // strangers to displace, the next one last
	spareHolders []*Connection            // connections on spare seats, oldest first
}

// victim is a stranger that may be displaced, as long as it still waits for the same input.
type victim struct {
	conn  *Connection
	since int64 // its waitingSince when it was chosen
	rank  int   // how many connections of its address have not waited longer, itself included
}

func newSeats(bound int) seats {
	if bound == 0 {
		return seats{}
	}
	spares := max(1, bound/spareDivisor)
	return seats{
		capacity: bound - spares, spares: spares,
		strangers: make(map[*Connection]struct{}), trustedOf: make(map[netip.Prefix]int),
	}
}

// take gives c a seat. It reports false if there is none.
func (s *seats) take(c *Connection) bool {
	if s.capacity == 0 {
		return true
	}
	if s.taken >= s.capacity {
		return false
	}

	s.taken++
	c.hasSeat = true

	if c.trusted.Load() {
		s.trustedOf[c.address]++
	} else {
		s.strangers[c] = struct{}{}
	}

	return true
}

// trust makes c, which has shown a valid token, safe from being displaced. One
// address keeps at most three quarters of the seats in this way. A gateway is a
// single address, and must leave room for others.
func (s *seats) trust(c *Connection) {
	if s.capacity > 0 && c.hasSeat && !c.trusted.Load() {
		if s.trustedOf[c.address] >= s.capacity-s.capacity/4 {
			return
		}
		s.trustedOf[c.address]++
		delete(s.strangers, c)
	}
	c.trusted.Store(true)
}

// distrust makes c a stranger, until it shows a valid token again.
func (s *seats) distrust(c *Connection) {
	if !c.trusted.Load() {
		return
	}
	if s.capacity > 0 && c.hasSeat {
		s.leaveTrusted(c)
		s.strangers[c] = struct{}{}
	}
	c.trusted.Store(false)
}

// displace takes the seat of a stranger and returns its connection, which the
// caller must close. It chooses the stranger that has waited for its caller the
// longest; if byAddress is set, one of the address that has the most. It
// returns nil if there is no stranger, or all are being answered.
func (s *seats) displace(byAddress bool) *Connection {
	// The victims may be from an earlier choice, and answered or gone since. If
	// none of them can be displaced, they are chosen anew, once.
	for range 2 {
		for len(s.victims) > 0 {
			last := len(s.victims) - 1
			v := s.victims[last]
			// The array must not keep a connection alive that is gone.
			s.victims[last] = victim{}
			s.victims = s.victims[:last]
			_, stays := s.strangers[v.conn]

			// After the swap, requests on this connection are not decided, because they
			// could not be answered.
			if stays && v.conn.waitingSince.CompareAndSwap(v.since, displacedMark) {
				s.release(v.conn)
				return v.conn
			}
		}

		s.chooseVictims(byAddress)
	}

	return nil
}

// chooseVictims chooses the strangers to displace next.
func (s *seats) chooseVictims(byAddress bool) {
	// Connections that are being answered are left out: their callers would lose
	// an answer whose cost may be taken already.
	waiting := make([]victim, 0, len(s.strangers))
	for c := range s.strangers {
		if since := c.waitingSince.Load(); since > 0 {
			waiting = append(waiting, victim{conn: c, since: since})
		}
	}
	slices.SortFunc(waiting, func(a, b victim) int { return cmp.Compare(b.since, a.since) })

	// Sorting by rank gives the same order as taking, again and again, a
	// connection of the address that has the most.
	if byAddress {
		ofAddress := make(map[netip.Prefix]int)
		for i := range waiting {
			address := waiting[i].conn.address
			ofAddress[address]++
			waiting[i].rank = ofAddress[address]
		}
		// The sort is stable: within a rank, the longest wait stays last, where
		// displace looks first.
		slices.SortStableFunc(waiting, func(a, b victim) int { return cmp.Compare(a.rank, b.rank) })
	}

	chosen := (len(waiting) + victimsDivisor - 1) / victimsDivisor
	s.victims = append(s.victims[:0], waiting[len(waiting)-chosen:]...)
}

// takeSpare gives c a spare seat. It returns the connection that c displaces, if any.
func (s *seats) takeSpare(c *Connection) (displaced *Connection) {
	if len(s.spareHolders) == s.spares {
		displaced = s.spareHolders[0]
		s.spareHolders = slices.Delete(s.spareHolders, 0, 1)
	}
	c.ProbesOnly = true
	s.spareHolders = append(s.spareHolders, c)
	return displaced
}

// release frees c's seat.
func (s *seats) release(c *Connection) {
	if i := slices.Index(s.spareHolders, c); i >= 0 {
		s.spareHolders = slices.Delete(s.spareHolders, i, i+1)
	}

	if !c.hasSeat {
		return
	}

	c.hasSeat = false
	s.taken--
	delete(s.strangers, c)

	if c.trusted.Load() {
		s.leaveTrusted(c)
	}
}

// leaveTrusted stops counting c's seat as one of a caller with a token.
func (s *seats) leaveTrusted(c *Connection) {
	s.trustedOf[c.address]--
	// Zeros go, because the map would otherwise keep every address that ever
	// connected.
	if s.trustedOf[c.address] <= 0 {
		delete(s.trustedOf, c.address)
	}
}

// addressOf returns the prefix that counts as one address: for IPv6 a /64,
// because a subscriber gets at least that much.
func addressOf(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := ipaddr.Canonical(t.AddrPort().Addr())
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // an invalid address gives no prefix
	return p
}

// IsProbesOnly reports whether c holds a spare seat.
func IsProbesOnly(c net.Conn) bool {
	tracked := Unwrap[*Connection](c)
	return tracked != nil && tracked.ProbesOnly
}

// CrowdedError returns the error for a request, other than a probe, on a spare seat.
func CrowdedError() *Error {
	return Errorf(Overloaded, "too many connections are open; on this one, only probes are answered")
}
