package replay

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// maxLine bounds a line, in bytes; the rest of a longer line is ignored.
const maxLine = 64 << 10

// record is one line of a log as a check: its time, attributes and costs.
type record struct {
	input      int   // index of the input
	line       int64 // from 1
	time       int64 // Unix nanoseconds, within minTime…maxTime
	attributes []rules.Attribute
	costs      []limiter.UnitCost
}

// The range of a record's time: 1970 to 2200. Later times in nanoseconds come
// close to overflowing an int64.
const (
	minTime = 0
	maxTime = 7258118400 * 1e9
)

var errEmpty = errors.New("the line is empty")

// parse reads line into r and reuses r's slices. The strings in r share line's memory.
func (r *record) parse(line string) error {
	r.attributes, r.costs = r.attributes[:0], r.costs[:0]
	line = trimLine(line)
	if line == "" {
		return errEmpty
	}

	var err error
	if line[0] == '{' {
		err = r.parseJSON(line)
	} else {
		err = r.parseLog(line)
	}

	if err == nil && (r.time < minTime || r.time > maxTime) {
		return errors.New("the time is not between 1970 and 2200")
	}

	return err
}

// trimLine removes a byte order mark and the space around a line.
func trimLine(s string) string {
	if len(s) >= 3 && s[:3] == "\ufeff" {
		s = s[3:]
	}
	for s != "" && isSpace(s[0]) {
		s = s[1:]
	}
	for s != "" && isSpace(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// addAttribute appends an attribute. It truncates the value to the API's bound,
// so that a line with a long value is not skipped.
func (r *record) addAttribute(name, value string) {
	if len(value) > document.MaxValueBytes {
		value = value[:document.MaxValueBytes]
	}
	r.attributes = append(r.attributes, rules.Attribute{Name: name, Value: value})
}

// appendPacked appends the packed form of r, without the time, to b.
func (r *record) appendPacked(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(r.input))
	b = binary.AppendUvarint(b, uint64(r.line))
	b = binary.AppendUvarint(b, uint64(len(r.attributes)))
	for _, a := range r.attributes {
		b = wire.AppendText(b, a.Name)
		b = wire.AppendText(b, a.Value)
	}

	b = binary.AppendUvarint(b, uint64(len(r.costs)))
	for _, c := range r.costs {
		b = wire.AppendText(b, c.Unit)
		b = binary.AppendUvarint(b, uint64(c.Cost))
	}

	return b
}

// unpack is the inverse of appendPacked. Its strings share one copy of b.
func (r *record) unpack(b []byte) error {
	d, shared := wire.NewDecoder(b), string(b)
	text := func() string {
		n := len(d.View(len(b)))
		end := len(b) - d.Len()
		return shared[end-n : end]
	}
	r.attributes, r.costs = r.attributes[:0], r.costs[:0]
	r.input, r.line = int(d.Uvarint()), int64(d.Uvarint())

	for range d.Count(len(b), 2) {
		r.attributes = append(r.attributes, rules.Attribute{Name: text(), Value: text()})
	}

	for range d.Count(len(b), 2) {
		r.costs = append(r.costs, limiter.UnitCost{Unit: text(), Cost: int64(d.Uvarint())})
	}

	if err := d.Done("record"); err != nil {
		return fmt.Errorf("unpack a record of %d bytes: %w", len(b), err)
	}

	return nil
}
