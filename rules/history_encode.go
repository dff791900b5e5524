package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/rlnode/rlnode/internal/wire"
)

// historyFormat is the format of an encoded history:
//
//	byte 0    format, 3
//	uvarint   number of versions
//	for each version, in order:
//	  uvarint   its number minus the one before
//	  varint    when, Unix milliseconds
//	  text      by
//	  text      what
//	  varint    Size
//	  byte      the changed part; 0 for a whole document
//	  for a part: a flag for deleted, its attribute and its name, as texts
//	  text      the document, or the body of the change from the version before
//	4 bytes   CRC32C of all the above, little endian
const historyFormat = 3

// ErrHistory means that the bytes are no history, or a damaged one.
var ErrHistory = errors.New("not a history of rules")

// AppendBinary appends h to b, with a checksum.
func (h *History) AppendBinary(b []byte) []byte {
	start, size, before := len(b), 64, int64(0)
	for _, r := range h.chain {
		size += len(r.text) + len(r.By) + len(r.What) + 256
	}
	b = binary.AppendUvarint(append(slices.Grow(b, size), historyFormat), uint64(len(h.chain)))
	for _, r := range h.chain {
		b = binary.AppendUvarint(b, uint64(r.Number-before))
		b = binary.AppendVarint(b, r.When.UnixMilli())
		b = wire.AppendText(wire.AppendText(b, r.By), r.What)
		b = append(binary.AppendVarint(b, int64(r.Size)), byte(r.change.Part))
		if !r.full {
			b = wire.AppendBool(b, r.change.Delete)
			b = wire.AppendText(wire.AppendText(b, r.change.Attribute), r.change.Name)
		}
		b, before = wire.AppendText(b, r.text), r.Number
	}
	return wire.AppendSum(b, start)
}

// ParseHistory is the inverse of [History.AppendBinary]. The error wraps [ErrHistory].
func ParseHistory(b []byte) (*History, error) {
	content, ok := wire.CutSum(b)
	switch {
	case len(b) == 0 || b[0] != historyFormat:
		return nil, fmt.Errorf("%w: unknown format, perhaps from another release of rlnode", ErrHistory)
	case !ok || len(content) == 0:
		return nil, fmt.Errorf("%w: wrong checksum", ErrHistory)
	}
	d := wire.NewDecoder(content[1:])
	h, number := &History{}, int64(0)
	for range d.Count(maxChain+KeptVersions+1, 1) {
		step := d.UpTo(math.MaxInt64 - 1 - number) // leave room for the next number
		if number += step; step == 0 {
			d.Failf("version %d appears twice", number)
		}
		h.chain = append(h.chain, decodeRecord(d, number))
	}
	if err := d.Done("history"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHistory, err)
	}
	if len(h.chain) == 0 {
		return h, nil
	}
	if !h.chain[0].full {
		return nil, fmt.Errorf("%w: the versions before %d are missing", ErrHistory, h.chain[0].Number)
	}
	var err error
	if h.doc, err = replay(h.chain, len(h.chain)-1); err == nil {
		h.set, err = Compile(h.doc, h.currentNumber())
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHistory, err)
	}
	h.hash = h.doc.Hash()
	return h, nil
}

func decodeRecord(d *wire.Decoder, number int64) *record {
	r := &record{Version: Version{
		Number: number, When: time.UnixMilli(d.Varint()).UTC(), By: d.Text(maxBy), What: d.Text(maxWhat), Size: int(d.Varint()),
	}}
	r.change.Part = Part(d.Byte())
	if r.full = r.change.Part == WholeDocument; !r.full {
		r.change.Delete, r.change.Attribute, r.change.Name = d.Bool(), d.Text(MaxDocument), d.Text(MaxDocument)
	}
	r.text = d.Text(MaxDocument)
	if r.change.Part > ListPart || !utf8.ValidString(r.By) || !utf8.ValidString(r.What) {
		d.Failf("version %d has an unknown part or invalid UTF-8", number)
	}
	return r
}
