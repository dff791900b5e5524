package usage

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"unsafe"

	"github.com/rlnode/rlnode/internal/wire"
)

// Row says how much of a unit one subject used in a month.
type Row struct {
	Rule string
	Key  []string // the rule's key attributes, normalised; nil in a row of others
	Unit string
	// Other means that the row stands for all subjects of the rule that are counted
	// without their names, because there was no room.
	Other  bool
	Cost   int64 // admitted; corrections of reservations may make it negative
	Checks int64 // admitted
}

const (
	maxNames    = 64 << 10 // bounds the bytes of a row's names; subjects with longer names are counted among the others
	maxKeyParts = 32
)

// errRow means that a row or a message can't be decoded.
var errRow = errors.New("a row of usage is damaged")

// addClamped returns a + b, clamped to the range of int64.
func addClamped(a, b int64) int64 {
	if c := a + b; (c >= a) == (b >= 0) {
		return c
	}
	if b > 0 {
		return math.MaxInt64
	}
	return math.MinInt64
}

// appendNames appends r's packed names.
func (r *Row) appendNames(b []byte) []byte {
	b = wire.AppendBool(wire.AppendText(wire.AppendText(b, r.Rule), r.Unit), r.Other)
	if r.Other {
		return b
	}
	return wire.AppendTexts(b, r.Key)
}

// decodeNames reads packed names into r. They refer to the memory that d reads.
func (r *Row) decodeNames(d *wire.Decoder) {
	name := func() string {
		b := d.View(d.Len())
		return unsafe.String(unsafe.SliceData(b), len(b))
	}
	r.Rule, r.Unit = name(), name()
	r.Other, r.Key = d.Bool(), r.Key[:0]
	if !r.Other {
		for range d.Count(maxKeyParts, 1) {
			r.Key = append(r.Key, name())
		}
	}
}

// decode reads names and counts into r.
func (r *Row) decode(d *wire.Decoder) {
	r.decodeNames(d)
	r.Cost, r.Checks = d.Varint(), d.Varint()
}

// clone returns a copy of r with its own memory.
func (r *Row) clone() Row {
	c := *r
	c.Rule, c.Unit = string([]byte(r.Rule)), string([]byte(r.Unit))
	c.Key = nil
	if !r.Other {
		c.Key = make([]string, len(r.Key))
		for i, k := range r.Key {
			c.Key[i] = string([]byte(k))
		}
	}
	return c
}

// compareRows orders rows by rule, then key (others last), then unit.
func compareRows(a, b *Row) int {
	if n := cmp.Compare(a.Rule, b.Rule); n != 0 {
		return n
	}
	switch {
	case a.Other && !b.Other:
		return 1
	case b.Other && !a.Other:
		return -1
	}
	return cmp.Or(slices.Compare(a.Key, b.Key), cmp.Compare(a.Unit, b.Unit))
}
