package rules

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rlnode/rlnode/internal/wire"
)

// A history is written as
//
//	byte 0    format, 1, or 2 if numbers are left out
//	uvarint   number of the first version in it, 0 if there is none
//	uvarint   how many there are
//	of each, in order:
//	  uvarint   format 2, but for the first: by how much its number is above the one before
//	  uvarint   length of the head
//	  head      JSON
//	  uvarint   length of the text
//	  text      the document, or the body of the change that led from the version before
//	4 bytes   CRC32C of all before, little endian
const (
	historyFormat = 1
	gapsFormat    = 2

	maxHead = 16 << 10 // bytes of JSON
)

// ErrHistory: these bytes are no history, or a damaged one.
var ErrHistory = errors.New("not a history of rules")

type head struct {
	When int64  `json:"when"` // Unix milliseconds
	By   string `json:"by"`
	What string `json:"what"`
	Size int    `json:"size"`
	// Change is nil for a whole document.
	Change *changeHead `json:"change,omitempty"`
}

// changeHead is a change without its body.
type changeHead struct {
	Part      string `json:"part"`
	Attribute string `json:"attribute,omitempty"`
	Name      string `json:"name"`
	Delete    bool   `json:"delete,omitempty"`
}

// partName is a part's name in a description and where it is kept.
func partName(p Part) string {
	switch p {
	case RulePart:
		return "rule"
	case TierPart:
		return "tier"
	case SubjectPart:
		return "subject"
	case ListPart:
		return "list"
	}
	return "document"
}

func (h *changeHead) change() (Change, bool) {
	for _, part := range []Part{RulePart, TierPart, SubjectPart, ListPart} {
		if partName(part) == h.Part {
			return Change{Part: part, Name: h.Name, Attribute: h.Attribute, Delete: h.Delete}, true
		}
	}
	return Change{}, false
}

// AppendBinary appends h to b, with a checksum.
func (h *History) AppendBinary(b []byte) ([]byte, error) {
	start, first, size := len(b), uint64(0), 64
	if len(h.chain) > 0 {
		first = uint64(h.chain[0].Number)
	}
	for _, r := range h.chain {
		size += len(r.text) + len(r.By) + len(r.What) + 256
	}
	format := h.format()
	b = append(slices.Grow(b, size), format)
	b = binary.AppendUvarint(b, first)
	b = binary.AppendUvarint(b, uint64(len(h.chain)))
	for i, r := range h.chain {
		if format == gapsFormat && i > 0 {
			b = binary.AppendUvarint(b, uint64(r.Number-h.chain[i-1].Number))
		}
		text, err := json.Marshal(r.head())
		if err != nil {
			return b[:start], fmt.Errorf("write version %d of the rules: %w", r.Number, err)
		}
		b = wire.AppendText(wire.AppendText(b, text), r.text)
	}
	return wire.AppendSum(b, start), nil
}

// format is the one that h is written in: one that also older builds read, if it can be.
func (h *History) format() byte {
	for i, r := range h.chain[min(1, len(h.chain)):] {
		if r.Number != h.chain[i].Number+1 {
			return gapsFormat
		}
	}
	return historyFormat
}

func (r *record) head() head {
	h := head{When: r.When.UnixMilli(), By: r.By, What: r.What, Size: r.Size}
	if !r.full {
		h.Change = &changeHead{
			Part: partName(r.change.Part), Name: r.change.Name, Attribute: r.change.Attribute, Delete: r.change.Delete,
		}
	}
	return h
}

// ParseHistory is the inverse of [History.AppendBinary]. The error wraps [ErrHistory].
func ParseHistory(b []byte) (*History, error) {
	content, ok := wire.CutSum(b)
	if len(b) == 0 || b[0] != historyFormat && b[0] != gapsFormat {
		return nil, fmt.Errorf("%w: unknown format", ErrHistory)
	}
	if !ok || len(content) == 0 {
		return nil, fmt.Errorf("%w: the checksum is wrong", ErrHistory)
	}
	d := wire.NewDecoder(content[1:])
	first, n := d.Uvarint(), d.Uvarint()
	h := &History{}
	number := first
	for i := uint64(0); i < n && !d.Failed(); i++ {
		if i > 0 {
			step := uint64(1)
			if b[0] == gapsFormat {
				step = d.Uvarint()
			}
			if number += step; step == 0 || number < step {
				number = 0
			}
		}
		// There is room for the next number too.
		if number == 0 || number >= math.MaxInt64 || i > maxChain+KeptVersions {
			d.Failf("versions %d and %d more", first, n)
		}
		if r := decodeRecord(d, int64(number)); r != nil {
			h.chain = append(h.chain, r)
		}
	}
	switch {
	case d.Failed():
		return nil, fmt.Errorf("%w: %w", ErrHistory, d.Err())
	case d.More() || n == 0 && first != 0:
		return nil, fmt.Errorf("%w: there is more behind its end", ErrHistory)
	case n == 0:
		return h, nil
	case h.format() != b[0]:
		return nil, fmt.Errorf("%w: it leaves out no versions, or the reverse", ErrHistory)
	case !h.chain[0].full:
		return nil, fmt.Errorf("%w: the versions before %d are missing", ErrHistory, first)
	}
	var err error
	if h.doc, err = replay(h.chain, len(h.chain)-1); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHistory, err)
	}
	if h.set, err = Compile(h.doc, h.number()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHistory, err)
	}
	h.hash = h.doc.Hash()
	return h, nil
}

// decodeRecord is nil after a failure.
func decodeRecord(d *wire.Decoder, number int64) *record {
	packed, text := d.View(maxHead), d.Text(MaxDocument)
	if d.Failed() {
		return nil
	}
	var h head
	if err := json.Unmarshal(packed, &h); err != nil {
		d.Failf("version %d: %w", number, err)
		return nil
	}
	if again, err := json.Marshal(h); err != nil || !bytes.Equal(again, packed) {
		d.Failf("the head of version %d is not written in the usual way", number)
		return nil
	}
	out := &record{
		Version: Version{
			Number: number, When: time.UnixMilli(h.When).UTC(),
			By: cut(h.By, maxBy), What: cut(h.What, maxWhat), Size: h.Size,
		},
		full: h.Change == nil, text: text,
	}
	if h.Change != nil {
		var ok bool
		if out.change, ok = h.Change.change(); !ok {
			d.Failf("version %d: unknown part %q", number, h.Change.Part)
		}
	}
	return out
}
