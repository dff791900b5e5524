package loads

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
)

// messageFormat is the first byte of a message. Reports follow it:
//
//	number uvarint | node 16 | load 8 | left, in ms, uvarint | length of the name, a byte | name
//
// While an expired report is remembered, its number is sent, too, with 0 ms
// left: it cancels an older report that another node still holds as valid.
const messageFormat = 1

// maxNumber bounds the numbers of reports. Counting never reaches it.
const maxNumber = 1 << 62

// errMessage is the error for a malformed message.
var errMessage = errors.New("bad message")

func (r *report) append(b []byte, now time.Duration, source string) []byte {
	b = binary.AppendUvarint(b, r.number)
	b = append(b, r.node[:]...)
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(r.load))
	b = binary.AppendUvarint(b, uint64(max(0, (r.until-now).Milliseconds())))
	return wire.AppendShortText(b, source)
}

// Packets returns messages with one new report each, for other nodes. Together
// they have at most limit bytes, counting overhead bytes extra for each.
func (l *Loads) Packets(overhead, limit int) [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()

	var out [][]byte

	now := l.config.Now()
	for source, r := range l.known {
		if r.sends == 0 {
			continue
		}
		b := r.append([]byte{messageFormat}, now, source)
		limit -= overhead + len(b)
		if limit < 0 {
			break // left for the next call
		}
		r.sends--
		out = append(out, b)
	}

	return out
}

// FullState returns one message with all known reports.
func (l *Loads) FullState() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := []byte{messageFormat}
	now := l.config.Now()
	for source, r := range l.known {
		b = r.append(b, now, source)
	}
	return b
}

// Receive accepts a message from another node, and keeps nothing of b. If b is
// malformed, the reports before the malformed one are accepted all the same.
func (l *Loads) Receive(b []byte) error {
	d := wire.NewDecoder(b)
	if d.Byte() != messageFormat {
		return fmt.Errorf("read loads: %w", errMessage)
	}

	for d.More() {
		r := report{number: uint64(d.UpTo(maxNumber))}
		d.Fill(r.node[:])
		r.load = math.Float64frombits(d.Uint64())
		left := time.Duration(d.UpTo(MaxTTL.Milliseconds())) * time.Millisecond
		source := d.ShortText(math.MaxUint8)
		if d.Failed() || r.number == 0 || Check(source, r.load, MaxTTL) != nil {
			return fmt.Errorf("read loads: %w", errMessage)
		}
		l.hear(source, r, left)
	}

	return nil
}

// hear accepts one report from another node if it supersedes the known one and
// there is room. A known report that arrives again does not last longer.
func (l *Loads) hear(source string, r report, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := l.config.Now()
	r.until = now + left

	old := l.known[source]
	switch {
	case old == nil && left == 0:
		// An expired report about an unknown source has nothing to end.
	case old == nil || r.supersedes(old):
		l.put(now, source, r)
	case r.number == old.number && r.node == old.node:
		old.until = min(old.until, r.until)
	}
}

// supersedes reports whether r is later than old; see the package comment.
func (r *report) supersedes(old *report) bool {
	if r.number != old.number {
		return r.number > old.number
	}
	return string(r.node[:]) > string(old.node[:])
}
