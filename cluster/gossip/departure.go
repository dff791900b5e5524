package gossip

import (
	"cmp"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// Departures go along with each exchange of lists: the processes of which a node knows that they said they leave.
// memberlist lets the news that a member is gone overtake, and replace, the news that it would go, so one who
// missed the latter takes it for failed until it hears of it this way.

// maxDepartures is how many are told, the last ones.
const maxDepartures = 64

type departure struct {
	id   ring.NodeID
	boot uint64
}

// departures lists the members that left last.
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

// depart notes that a process has said it leaves, if it is the member's last one, and reports whether that is news.
func (t *table) depart(d departure) (Member, bool) {
	e := t.entries[d.id]
	if e == nil || e.Boot != d.boot || e.State == Left || e.hidden {
		return Member{}, false
	}
	t.setState(e, Left)
	return e.Member, true
}

// depart takes the word of others that a process leaves. The caller holds g.mu.
func (g *Gossip) depart(d departure) {
	if m, news := g.table.depart(d); news {
		g.tell(m)
		g.signal(g.changed)
	}
}
