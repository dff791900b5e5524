package ring

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/internal/wire"
)

// A table is encoded as
//
//	byte 0     format, 1
//	byte 1     1 if it is canonical, else 0
//	2 bytes    length of the settings
//	settings   JSON
//	2 bytes    number of members
//	members    16 bytes each, ascending
//	owners     2 bytes for each partition: index among the members
//	standbys   likewise; 0xffff if there is none
//
// Numbers are little endian. There is no checksum: callers that store a table add their own.
const (
	tableFormat = 1

	maxSettings = 1 << 10 // bytes of JSON
)

// ErrFormat means that the bytes are not a valid table.
var ErrFormat = errors.New("not a ring table")

// AppendBinary appends the encoding of t to b. It fails if t is nil.
func (t *Table) AppendBinary(b []byte) ([]byte, error) {
	if t == nil {
		return b, fmt.Errorf("%w: it is nil", ErrFormat)
	}

	settings, err := json.Marshal(t.settings)
	if err != nil || len(settings) > maxSettings {
		return b, fmt.Errorf("write ring settings of %d bytes: %w", len(settings), errors.Join(ErrFormat, err))
	}

	b = wire.AppendBool(append(b, tableFormat), t.canonical)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(settings)))
	b = append(b, settings...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(t.members)))
	for _, id := range t.members {
		b = append(b, id[:]...)
	}

	for _, ranks := range []*[Partitions]uint16{&t.owner, &t.standby} {
		for _, r := range ranks {
			b = binary.LittleEndian.AppendUint16(b, r)
		}
	}

	return b, nil
}

// Parse is the inverse of [Table.AppendBinary]. It recomputes nothing, so it
// accepts tables whose settings this build does not support. The error wraps
// [ErrFormat].
func Parse(b []byte) (*Table, error) {
	t := &Table{}
	d := wire.NewDecoder(b)
	if d.Byte() != tableFormat {
		return nil, fmt.Errorf("%w: unknown format", ErrFormat)
	}

	t.canonical = d.Bool()
	size := int(d.Uint16())
	settings := d.Bytes(size)
	if d.Failed() || size > maxSettings {
		return nil, fmt.Errorf("%w: it is truncated", ErrFormat)
	}
	if err := parseSettings(settings, &t.settings); err != nil {
		return nil, err
	}

	n := int(d.Uint16())
	if d.Len() != n*len(NodeID{})+2*2*Partitions {
		return nil, fmt.Errorf("%w: %d bytes for %d members", ErrFormat, d.Len(), n)
	}

	for range n {
		t.members = append(t.members, DecodeNodeID(d))
	}
	if err := checkMembers(t.members); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}

	for _, ranks := range []*[Partitions]uint16{&t.owner, &t.standby} {
		for p := range ranks {
			ranks[p] = d.Uint16()
		}
	}

	for p := range Partitions {
		if !t.isValid(p) {
			return nil, fmt.Errorf("%w: partition %d belongs to %d and %d of %d", ErrFormat, p,
				t.owner[p], t.standby[p], n)
		}
	}

	return t, nil
}

func parseSettings(b []byte, s *Settings) error {
	if err := wire.StrictJSON(b, s); err != nil {
		return fmt.Errorf("%w: settings: %w", ErrFormat, err)
	}

	// Encoding the table again must give the same bytes.
	again, err := json.Marshal(*s)
	if err != nil || !bytes.Equal(again, b) {
		return fmt.Errorf("%w: settings are not in canonical form", ErrFormat)
	}
	if s.Partitions != Partitions {
		return fmt.Errorf("%w: %d partitions", ErrFormat, s.Partitions)
	}

	return nil
}

// isValid reports whether partition p satisfies the invariant of Table.
func (t *Table) isValid(p int) bool {
	n := len(t.members)
	owner := int(t.owner[p])
	standby := int(t.standby[p])
	if n == 1 {
		return owner == 0 && standby == noStandby
	}
	return owner < n && standby < n && owner != standby
}
