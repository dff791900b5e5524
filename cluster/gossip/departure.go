package gossip

import (
	"cmp"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

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
