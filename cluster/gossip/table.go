package gossip

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

// maxMembers bounds the table. Members that failed or left stay until they are
// forgotten. Once the table is full, the one that went first makes room for a
// new member.
const maxMembers = 10_000

// entry is a member in the table.
type entry struct {
	Member
	// hidden is set if the member belongs to another cluster, but memberlist still lists it.
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

// admitNewcomer reports whether another unknown member may be admitted, and counts it.
func (t *table) admitNewcomer(now time.Time) bool {
	if t.rateRestored.Before(now) {
		t.rateRestored = now
	}
	next := t.rateRestored.Add(newcomerPeriod / time.Duration(t.max))
	if next.Sub(now) > newcomerPeriod {
		return false
	}
	t.rateRestored = next
	return true
}

// isFull reports whether the table has no room for an unknown member: all its
// members are alive, so none can be evicted.
func (t *table) isFull() bool { return t.alive >= t.max }

// put records a member that memberlist has accepted.
func (t *table) put(m Member) {
	e := t.entries[m.ID]
	if e == nil {
		if len(t.entries) >= t.max {
			t.evict()
		}
		// Not alive, or setState would count it out before it was ever counted.
		e = &entry{Member: Member{State: Failed}}
		t.entries[m.ID] = e
	}
	state := m.State
	m.State = e.State
	e.Member, e.hidden = m, false
	t.setState(e, state)
}

func (t *table) setState(e *entry, s State) {
	if e.State == Alive {
		t.alive--
	}
	if s == Alive {
		t.alive++
	}
	t.changes++
	e.State, e.lastChange = s, t.changes
}

// markGone records that memberlist no longer lists a member. If the member had
// not announced that it leaves, it has failed.
func (t *table) markGone(id ring.NodeID) (m Member, failed bool) {
	e := t.entries[id]
	if e == nil || e.State != Alive {
		return Member{}, false
	}
	t.setState(e, Failed)
	if e.hidden {
		delete(t.entries, e.ID)
		return Member{}, false
	}
	return e.Member, true
}

// exclude removes a member that belongs to another cluster. As long as
// memberlist lists it, it is only hidden.
func (t *table) exclude(e *entry) {
	if e.State == Alive {
		e.hidden = true
		return
	}
	delete(t.entries, e.ID)
}

// evict drops the member that failed or left first.
func (t *table) evict() {
	var first *entry
	for _, e := range t.entries {
		if e.State != Alive && (first == nil || e.lastChange < first.lastChange) {
			first = e
		}
	}
	if first != nil {
		delete(t.entries, first.ID)
	}
}

// forget drops a member that is not alive.
func (t *table) forget(id ring.NodeID) bool {
	e := t.entries[id]
	if e == nil || e.State == Alive {
		return false
	}
	delete(t.entries, e.ID)
	return true
}

// members lists self and all entries that are not hidden, sorted by ID.
func (t *table) members(self Member) []Member {
	all := make([]Member, 0, len(t.entries)+1)
	all = append(all, self)
	for _, e := range t.entries {
		if !e.hidden {
			all = append(all, e.Member)
		}
	}
	slices.SortFunc(all, func(a, b Member) int { return a.ID.Compare(b.ID) })
	return all
}

// Departures are the processes that announced that they leave. Nodes send them
// with each exchange of lists, because memberlist's message that a member is
// dead may overtake and replace the member's own message that it is leaving. A
// node that missed the latter takes the member for failed until it gets the
// departure.

// maxDepartures is the number of departures sent, the most recent ones.
const maxDepartures = 64

// departure is a process that announced that it leaves.
type departure struct {
	id   ring.NodeID
	boot uint64
}

// departures lists the members that left most recently.
func (t *table) departures() []departure {
	left := slices.DeleteFunc(slices.Collect(maps.Values(t.entries)), func(e *entry) bool { return e.State != Left })
	slices.SortFunc(left, func(a, b *entry) int { return cmp.Compare(b.lastChange, a.lastChange) })
	var all []departure
	for _, e := range left[:min(len(left), maxDepartures)] {
		all = append(all, departure{id: e.ID, boot: e.Boot})
	}
	return all
}

// recordDeparture records a departure if it is of the member's current process,
// and reports whether that is new.
func (t *table) recordDeparture(d departure) (Member, bool) {
	e := t.entries[d.id]
	if e == nil || e.Boot != d.boot || e.State == Left || e.hidden {
		return Member{}, false
	}
	t.setState(e, Left)
	return e.Member, true
}

// handleDeparture handles a departure that another node reported. The caller holds g.mu.
func (g *Gossip) handleDeparture(d departure) {
	if m, news := g.table.recordDeparture(d); news {
		g.logMember(&m, "has left")
		wake.Signal(g.changed)
	}
}
