package gossip

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// maxMembers bounds the table. Members that failed or left stay until they are
// forgotten. Once the table is full, the one that failed or left first makes
// room for a new member.
const maxMembers = 10_000

// entry is a member in the table.
type entry struct {
	Member
	// hidden means that memberlist still lists the member, which is none any more.
	hidden bool
	// lastChange is the value of table.changes when the entry last changed its state.
	lastChange uint64
}

// table holds the other members that this node knows of. It has no lock of its own.
type table struct {
	entries      map[ring.NodeID]*entry
	max          int
	changes      uint64
	alive        int       // number of entries whose State is Alive
	rateRestored time.Time // when the full rate of newcomers is available again
}

func newTable(max int) *table {
	return &table{entries: make(map[ring.NodeID]*entry), max: max}
}

// newcomerPeriod is the period in which at most table.max unknown members are
// admitted. memberlist keeps dead members for a while, so without a rate limit,
// churn would fill its memory although the table is bounded.
const newcomerPeriod = time.Hour

// admitNewcomer reports whether another unknown member may be admitted, and
// counts it. Each one moves rateRestored on by its part of newcomerPeriod.
func (tb *table) admitNewcomer(now time.Time) bool {
	if tb.rateRestored.Before(now) {
		tb.rateRestored = now
	}

	next := tb.rateRestored.Add(newcomerPeriod / time.Duration(tb.max))
	if next.Sub(now) > newcomerPeriod {
		return false
	}

	tb.rateRestored = next
	return true
}

// isFull reports whether the table has no room for an unknown member: all its
// members are alive, so none can be evicted.
func (tb *table) isFull() bool { return tb.alive >= tb.max }

// put records a member that memberlist has accepted.
func (tb *table) put(m Member) {
	e := tb.entries[m.ID]
	if e == nil {
		if len(tb.entries) >= tb.max {
			tb.evict()
		}
		// The entry begins as not alive. Otherwise setState would subtract it from the
		// live ones before it was ever added to them.
		e = &entry{Member: Member{State: Failed}}
		tb.entries[m.ID] = e
	}

	state := m.State
	m.State = e.State
	e.Member = m
	e.hidden = false
	tb.setState(e, state)
}

func (tb *table) setState(e *entry, s State) {
	if e.State == Alive {
		tb.alive--
	}
	if s == Alive {
		tb.alive++
	}

	tb.changes++
	e.State = s
	e.lastChange = tb.changes
}

// markGone records that memberlist no longer lists a member. If the member had
// not announced that it leaves, it has failed, and markGone returns it.
func (tb *table) markGone(id ring.NodeID) (m Member, failed bool) {
	e := tb.entries[id]
	if e == nil || e.State != Alive {
		return Member{}, false
	}

	tb.setState(e, Failed)
	if e.hidden {
		delete(tb.entries, e.ID)
		return Member{}, false
	}
	return e.Member, true
}

// exclude removes a member that may not be one any more, such as a node of
// another cluster. While memberlist still lists the member, it is only hidden.
func (tb *table) exclude(e *entry) {
	if e.State == Alive {
		e.hidden = true
		return
	}
	delete(tb.entries, e.ID)
}

// evict drops the member that failed or left first.
func (tb *table) evict() {
	var first *entry
	for _, e := range tb.entries {
		if e.State != Alive && (first == nil || e.lastChange < first.lastChange) {
			first = e
		}
	}
	if first != nil {
		delete(tb.entries, first.ID)
	}
}

// forget drops a member that is not alive.
func (tb *table) forget(id ring.NodeID) bool {
	e := tb.entries[id]
	if e == nil || e.State == Alive {
		return false
	}
	delete(tb.entries, e.ID)
	return true
}

// members lists self and all entries that are not hidden, sorted by ID.
func (tb *table) members(self Member) []Member {
	list := make([]Member, 0, len(tb.entries)+1)
	list = append(list, self)
	for _, e := range tb.entries {
		if !e.hidden {
			list = append(list, e.Member)
		}
	}

	slices.SortFunc(list, func(a, b Member) int { return a.ID.Compare(b.ID) })
	return list
}

// liveAddresses lists the gossip addresses of the live members.
func (tb *table) liveAddresses() (list []netip.AddrPort) {
	for _, e := range tb.entries {
		if e.State == Alive && !e.hidden {
			list = append(list, e.gossipAddress())
		}
	}
	return list
}

// failedAddresses lists the gossip addresses of the failed members.
func (tb *table) failedAddresses() (list []netip.AddrPort) {
	for _, e := range tb.entries {
		at := e.gossipAddress()
		if e.State == Failed && at.IsValid() {
			list = append(list, at)
		}
	}
	return list
}

// Departures are the processes that announced that they leave. Nodes send them
// with each exchange of lists, because memberlist's message that a member is
// dead may overtake the member's own message, that it is leaving, and replace
// it. A node that missed the member's own message takes the member for failed
// until it gets the departure.

// maxDepartures is the number of departures sent, the most recent ones.
const maxDepartures = 64

// departure is a process that announced that it leaves.
type departure struct {
	id   ring.NodeID
	boot uint64
}

// departures lists the members that left most recently.
func (tb *table) departures() []departure {
	left := slices.DeleteFunc(slices.Collect(maps.Values(tb.entries)), func(e *entry) bool { return e.State != Left })
	slices.SortFunc(left, func(a, b *entry) int { return cmp.Compare(b.lastChange, a.lastChange) })

	var list []departure
	for _, e := range left[:min(len(left), maxDepartures)] {
		list = append(list, departure{id: e.ID, boot: e.Boot})
	}
	return list
}

// recordDeparture records a departure, if it is of the member's current
// process, and reports whether it is new.
func (tb *table) recordDeparture(d departure) (Member, bool) {
	e := tb.entries[d.id]
	if e == nil || e.Boot != d.boot || e.State == Left || e.hidden {
		return Member{}, false
	}
	tb.setState(e, Left)
	return e.Member, true
}

// handleDeparture handles a departure. The caller must hold g.mu.
func (g *Gossip) handleDeparture(d departure) {
	m, isNew := g.table.recordDeparture(d)
	if isNew {
		g.logMember(&m, "has left")
		wake.Signal(g.changed)
	}
}
