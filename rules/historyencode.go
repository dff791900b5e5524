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
	"github.com/rlnode/rlnode/rules/document"
)

// historyFormat is the format of an encoded history:
//
//	byte 0    format, 4
//	uvarint   number of versions
//	for each version, in order:
//	  uvarint   its number minus the one before
//	  varint    when, Unix milliseconds
//	  texts     by, what, message, via
//	  uvarint   number minus the version in Applied
//	  varint    Size
//	  text      the document, compressed with DEFLATE
//	4 bytes   CRC32C of all the above, little endian
const historyFormat = 4

// maxPacked bounds a compressed document, in bytes: one that can't be
// compressed gets slightly larger.
const maxPacked = document.MaxDocument + document.MaxDocument/64

// ErrHistory means that the bytes are no history, or a damaged one.
var ErrHistory = errors.New("not a history of rules")

// AppendBinary appends h to b, with a checksum.
func (h *History) AppendBinary(b []byte) []byte {
	start := len(b)
	size := 64
	for _, v := range h.versions {
		size += len(v.packed) + len(v.By) + len(v.What) + len(v.Message) + 256
	}

	b = binary.AppendUvarint(append(slices.Grow(b, size), historyFormat), uint64(len(h.versions)))
	before := int64(0)
	for _, v := range h.versions {
		b = binary.AppendUvarint(b, uint64(v.Number-before))
		b = binary.AppendVarint(b, v.When.UnixMilli())
		for _, text := range []string{v.By, v.What, v.Message, v.Via} {
			b = wire.AppendText(b, text)
		}
		b = binary.AppendUvarint(b, uint64(v.Number-v.Applied))
		b = binary.AppendVarint(b, int64(v.Size))
		b = wire.AppendText(b, v.packed)
		before = v.Number
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
	h := &History{}
	number := int64(0)
	for range d.Count(KeptVersions, 1) {
		step := d.UpTo(math.MaxInt64 - 1 - number) // leave room for the next number
		number += step
		if step == 0 {
			d.Failf("version %d appears twice", number)
		}
		h.versions = append(h.versions, decodeVersion(d, number))
	}

	if err := d.Done("history"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHistory, err)
	}
	if len(h.versions) == 0 {
		return h, nil
	}

	var err error
	h.doc, err = h.versions[len(h.versions)-1].document()
	if err == nil {
		h.set, err = Compile(h.doc, h.currentNumber())
	}

	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHistory, err)
	}

	h.hash = h.doc.Hash()
	return h, nil
}

func decodeVersion(d *wire.Decoder, number int64) *storedVersion {
	v := &storedVersion{Version: Version{
		Number: number, When: time.UnixMilli(d.Varint()).UTC(), By: d.Text(maxBy), What: d.Text(maxWhat),
		Message: d.Text(MaxMessage), Via: d.Text(maxWhat), Applied: number - d.UpTo(number), Size: int(d.Varint()),
	}}
	// The text is copied, because the view would keep the whole input in
	// memory.
	v.packed = slices.Clone(d.View(maxPacked))
	for _, text := range []string{v.By, v.What, v.Message, v.Via} {
		if !utf8.ValidString(text) {
			d.Failf("version %d has invalid UTF-8", number)
		}
	}
	return v
}
