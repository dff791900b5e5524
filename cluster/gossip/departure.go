package gossip

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// Departures go along with each exchange of lists: the processes of which a node knows that they said they leave.
// memberlist lets the news that a member is gone overtake, and replace, the news that it would go, so one who
// missed the latter takes it for failed until it hears of it this way.
//
//	format 1 | ID 16, boot 8 | …
const (
	departureFormat = 1
	maxDepartures   = 64 // the last ones
)

type departure struct {
	id   ring.NodeID
	boot uint64
}

func appendDepartures(b []byte, all []departure) []byte {
	b = append(b, departureFormat)
	for _, d := range all {
		b = append(b, d.id[:]...)
		b = binary.BigEndian.AppendUint64(b, d.boot)
	}
	return b
}

func parseDepartures(b []byte) ([]departure, error) {
	d := wire.NewDecoder(b)
	good := d.Byte() == departureFormat
	var all []departure
	for d.More() && len(all) <= maxDepartures {
		all = append(all, departure{id: ring.DecodeNodeID(d), boot: d.BigUint64()})
	}
	if !good || d.Failed() || len(all) > maxDepartures {
		return nil, fmt.Errorf("%w: %d bytes are no list of departures", ErrMetadata, len(b))
	}
	return all, nil
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

// takeDepartures takes the departures that came along with another node's list.
func (e events) takeDepartures(b []byte) {
	all, err := parseDepartures(b)
	if err != nil {
		e.g.config.Logger.Debug("what came along with a list of members is of no use", "error", err)
		return
	}
	e.g.mu.Lock()
	defer e.g.mu.Unlock()
	for _, d := range all {
		e.g.depart(d)
	}
}

// depart takes the word of others that a process leaves. The caller holds g.mu.
func (g *Gossip) depart(d departure) {
	if m, news := g.table.depart(d); news {
		g.tell(m)
		g.signal(g.changed)
	}
}
