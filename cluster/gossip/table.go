package gossip

import (
	"cmp"
	"slices"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// maxMembers bounds the table. Failed and left members stay until they are forgotten; once the table is full, the one
// that went first makes room for a new one.
const maxMembers = 10_000

// entry is a member in the table.
type entry struct {
	Member
	// hidden: memberlist still lists it, but it now belongs to another cluster.
	hidden bool
	// since is the number of the table's change at which the entry last changed its state.
	since uint64
}

// table holds the other members that this node knows of. It has no lock of its own.
type table struct {
	entries map[ring.NodeID]*entry
	max     int
	changes uint64
	alive   int       // number of entries whose State is Alive
	settled time.Time // when newcomers will have used up none of their rate
}

func newTable(max int) *table {
	return &table{entries: make(map[ring.NodeID]*entry), max: max}
}

// newcomersTime is how long it takes until as many new members may be admitted again as the table has places. memberlist
// keeps the dead for a while, so members that come and go would fill the memory, though not the table.
const newcomersTime = time.Hour

// newcomer reports whether one more unknown member may be admitted, and counts it.
func (t *table) newcomer(now time.Time) bool {
	if t.settled.Before(now) {
		t.settled = now
	}
	next := t.settled.Add(newcomersTime / time.Duration(t.max))
	if next.Sub(now) > newcomersTime {
		return false
	}
	t.settled = next
	return true
}

// full reports whether there is no place for an unknown member, even if one that has gone made room.
func (t *table) full() bool { return t.alive >= t.max }

// put records a member that memberlist has accepted.
func (t *table) put(m Member) {
	e := t.entries[m.ID]
	if e == nil {
		if len(t.entries) >= t.max {
			t.evict()
		}
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
	e.State, e.since = s, t.changes
}

// gone records that memberlist has given a member up. If it said it was leaving, it has left; otherwise it has failed.
func (t *table) gone(id ring.NodeID) (m Member, failed bool) {
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

// part removes a member that turned out to belong to another cluster. While memberlist lists it, it is hidden.
func (t *table) part(e *entry) {
	if e.State == Alive {
		e.hidden = true
		return
	}
	delete(t.entries, e.ID)
}

// evict drops the member that went first.
func (t *table) evict() {
	var first *entry
	for _, e := range t.entries {
		if e.State != Alive && (first == nil || e.since < first.since) {
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

// Departures go along with each exchange of lists: the processes that, as far as a node knows, said they were leaving. In
// memberlist, the news that a member is gone may overtake and replace the news that it is leaving, so a node that missed
// the latter takes it for failed until it hears of it this way.

// maxDepartures bounds how many are told: the most recent ones.
const maxDepartures = 64

type departure struct {
	id   ring.NodeID
	boot uint64
}

// departures lists the members that left most recently.
func (t *table) departures() []departure {
	var left []*entry
	for _, e := range t.entries {
		if e.State == Left {
			left = append(left, e)
		}
	}
	slices.SortFunc(left, func(a, b *entry) int { return cmp.Compare(b.since, a.since) })
	var all []departure
	for _, e := range left[:min(len(left), maxDepartures)] {
		all = append(all, departure{id: e.ID, boot: e.Boot})
	}
	return all
}

// depart records that a process has said it is leaving, if it is the member's current one, and reports whether that is
// new.
func (t *table) depart(d departure) (Member, bool) {
	e := t.entries[d.id]
	if e == nil || e.Boot != d.boot || e.State == Left || e.hidden {
		return Member{}, false
	}
	t.setState(e, Left)
	return e.Member, true
}

// depart believes other nodes that a process is leaving. The caller holds g.mu.
func (g *Gossip) depart(d departure) {
	if m, news := g.table.depart(d); news {
		g.tell(m)
		g.signal(g.changed)
	}
}
