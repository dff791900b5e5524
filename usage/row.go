package usage

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/rlnode/rlnode/internal/wire"
)

// Row says how much of a unit one subject used in a month.
type Row struct {
	Rule string
	Key  []string // the values of the rule's key attributes, as the rule counts them; nil in a row of others
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

// Errors of what can't be decoded.
var (
	errRow     = errors.New("a row of usage is damaged")
	errMessage = errors.New("a message about usage can't be decoded")
)

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

// appendNames appends the row's packed names.
func (row *Row) appendNames(b []byte) []byte {
	b = wire.AppendBool(wire.AppendText(wire.AppendText(b, row.Rule), row.Unit), row.Other)
	if row.Other {
		return b
	}
	return wire.AppendTexts(b, row.Key)
}

// decodeNames reads packed names into the row. They refer to the memory that d reads.
func (row *Row) decodeNames(d *wire.Decoder) {
	name := func() string {
		b := d.View(d.Len())
		return unsafe.String(unsafe.SliceData(b), len(b))
	}

	row.Rule = name()
	row.Unit = name()
	row.Other = d.Bool()
	row.Key = row.Key[:0]
	if !row.Other {
		for range d.Count(maxKeyParts, 1) {
			row.Key = append(row.Key, name())
		}
	}
}

// decode reads names and counts into the row.
func (row *Row) decode(d *wire.Decoder) {
	row.decodeNames(d)
	row.Cost = d.Varint()
	row.Checks = d.Varint()
}

// clone returns a copy of the row with its own memory.
func (row *Row) clone() Row {
	c := *row
	c.Rule = strings.Clone(row.Rule)
	c.Unit = strings.Clone(row.Unit)
	c.Key = nil
	if !row.Other {
		c.Key = make([]string, len(row.Key))
		for i, k := range row.Key {
			c.Key[i] = strings.Clone(k)
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
