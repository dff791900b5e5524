package gossip

import (
	"encoding/binary"
	"fmt"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
)

// News is application data that nodes exchange through gossip. memberlist calls
// the methods, so they must not block or call the Gossip.
type News interface {
	// Packets returns messages to some members. With overhead bytes added to each,
	// they take at most limit bytes. It is called every GossipInterval.
	Packets(overhead, limit int) [][]byte
	// FullState returns the complete data. It is called for each member that joins,
	// and every SyncInterval for one member.
	FullState() []byte
	// Receive handles a message from Packets or FullState. The bytes are valid only
	// until it returns.
	Receive([]byte) error
}

// stateFormat is the first byte of the state that is sent with a list of members:
//
//	format 3 | number of departures, a byte | ID 16, boot 8 | … | news
const stateFormat = 3 // earlier releases used 1 and 2, with other encodings of departures

func appendState(departures []departure, news []byte) []byte {
	b := []byte{stateFormat, byte(len(departures))}
	for _, d := range departures {
		b = binary.BigEndian.AppendUint64(append(b, d.id[:]...), d.boot)
	}
	return append(b, news...)
}

func parseState(b []byte) (departures []departure, news []byte, err error) {
	d := wire.NewDecoder(b)
	if d.Byte() != stateFormat {
		d.Failf("unknown format")
	}
	for range d.Byte() {
		departures = append(departures, departure{id: ring.DecodeNodeID(d), boot: d.BigUint64()})
	}
	if d.Failed() || len(departures) > maxDepartures {
		return nil, nil, fmt.Errorf("%w: %d bytes are not a node's state", ErrMetadata, len(b))
	}
	return departures, d.Rest(), nil
}

// LocalState returns the state to send with the list of members.
func (e delegates) LocalState(bool) []byte {
	var news []byte
	if e.config.News != nil {
		news = e.config.News.FullState()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return appendState(e.table.departures(), news)
}

// MergeRemoteState handles the state that another node sent with its list.
func (e delegates) MergeRemoteState(b []byte, _ bool) {
	departures, news, err := parseState(b)
	if err != nil {
		e.config.Logger.Debug("malformed state with a list of members", "error", err)
		return
	}

	e.mu.Lock()
	for _, d := range departures {
		e.handleDeparture(d)
	}
	e.mu.Unlock()

	if len(news) > 0 {
		e.NotifyMsg(news)
	}
}

// NotifyMsg handles another node's message.
func (e delegates) NotifyMsg(b []byte) {
	if e.config.News == nil {
		return
	}
	if err := e.config.News.Receive(b); err != nil {
		e.config.Logger.Debug("malformed news", "error", err)
	}
}

// GetBroadcasts returns messages for other nodes.
func (e delegates) GetBroadcasts(overhead, limit int) [][]byte {
	if e.config.News == nil {
		return nil
	}
	return e.config.News.Packets(overhead, limit)
}
