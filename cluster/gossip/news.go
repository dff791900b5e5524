package gossip

import (
	"fmt"

	"github.com/rlnode/rlnode/internal/wire"
)

// News is what the nodes tell each other beside who is there. Its methods are called by memberlist: they must not block, and
// not call the Gossip.
type News interface {
	// Packets returns messages for some members, which are at most limit bytes together, each with so many bytes of overhead.
	// It is asked for every GossipInterval.
	Packets(overhead, limit int) [][]byte
	// Whole returns all that there is to tell, for a member that joins, and every SyncInterval for some member.
	Whole() []byte
	// Hear takes a message, which is only valid until it returns.
	Hear([]byte) error
}

// What goes along with a list of members:
//
//	format 2 | length of the departures, uvarint | departures | news
//
// Format 1 is departures alone.
const stateFormat = 2

func appendState(departures, news []byte) []byte {
	return append(wire.AppendText([]byte{stateFormat}, departures), news...)
}

func parseState(b []byte) (departures, news []byte, err error) {
	if len(b) == 0 || b[0] != stateFormat {
		return b, nil, nil
	}
	d := wire.NewDecoder(b[1:])
	if departures = d.View(len(b)); d.Failed() {
		return nil, nil, fmt.Errorf("%w: %d bytes are no state", ErrMetadata, len(b))
	}
	return departures, d.Rest(), nil
}

// LocalState is what goes along with the list of members.
func (e events) LocalState(bool) []byte {
	e.g.mu.Lock()
	departures := appendDepartures(nil, e.g.table.departures())
	e.g.mu.Unlock()
	if e.g.config.News == nil {
		return departures
	}
	return appendState(departures, e.g.config.News.Whole())
}

// MergeRemoteState takes what came along with another node's list.
func (e events) MergeRemoteState(b []byte, _ bool) {
	departures, news, err := parseState(b)
	if err == nil {
		e.takeDepartures(departures)
		if len(news) > 0 {
			e.NotifyMsg(news)
		}
		return
	}
	e.g.config.Logger.Debug("what came along with a list of members is of no use", "error", err)
}

// NotifyMsg takes a message of another node.
func (e events) NotifyMsg(b []byte) {
	if e.g.config.News == nil {
		return
	}
	if err := e.g.config.News.Hear(b); err != nil {
		e.g.config.Logger.Debug("news are of no use", "error", err)
	}
}

// GetBroadcasts is asked for messages to other nodes.
func (e events) GetBroadcasts(overhead, limit int) [][]byte {
	if e.g.config.News == nil {
		return nil
	}
	return e.g.config.News.Packets(overhead, limit)
}
