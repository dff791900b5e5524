package gossip

import (
	"slices"
	"time"

	"github.com/rlnode/rlnode/ring"
)

// maxMembers bounds the table: failed and left members are kept until they are forgotten, and at the bound the one
// that went first makes room for a new one.
const maxMembers = 10_000

// entry is one member of the table.
type entry struct {
	Member
	// hidden: memberlist still counts it, but it has become a member of another cluster.
	hidden bool
	// since numbers the changes of the table; the entry's last change of state.
	since uint64
}

// table is what is known of the other members. It has no lock of its own.
type table struct {
	entries map[ring.NodeID]*entry
	max     int
	changes uint64
	alive   int       // entries whose State is Alive
	settled time.Time // when newcomers will have used up no part of their rate
}

func newTable(max int) *table {
	return &table{entries: make(map[ring.NodeID]*entry), max: max}
}

// newcomersTime is how long it takes until as many members may be new again as the table has places. memberlist keeps the dead
// for a while, so those who come and go would fill the memory, though not the table.
const newcomersTime = time.Hour

// newcomer reports whether there may be one more member that is not known.
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

// full means that there is no place for a member that is not known, even if one that has gone made room.
func (t *table) full() bool { return t.alive >= t.max }

// put sets what is known of a member that memberlist has accepted.
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

// gone notes that memberlist has given a member up. One that said it would go has left, any other has failed.
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

// part takes a member out of the list that has turned out to be another cluster's. While memberlist counts it, it is
// hidden.
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

// members lists all that is not hidden, and self, sorted by ID.
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
