package usage

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/rlnode/rlnode/internal/wire"
)

// Row is what one subject used of a unit in a month.
type Row struct {
	Rule string
	Key  []string // the rule's key attributes, normalised; nil in a row of others
	Unit string
	// Other: it stands for subjects that were counted without their names, for want of room.
	Other  bool
	Cost   int64 // admitted; corrections of reservations may bring it below zero
	Checks int64 // admitted
}

// Bounds of a record.
const (
	recordHead  = 40
	maxRecord   = 64 << 10 // bytes; a subject with longer names is counted with the others
	maxKeyParts = 32
)

// record is the beginning of a row in a ledger; names follow.
type record struct {
	// head is the record's length << 32 | CRC-32C of hash and names. 0: no record.
	head         atomic.Uint64
	cost, checks atomic.Int64
	hi, lo       uint64
}

// recordAt is the record at an offset, of which recordHead bytes are there.
func recordAt(data []byte, at int64) *record { return (*record)(unsafe.Pointer(&data[at])) }

// sum is the head of a record of n bytes.
func sum(b []byte) uint64 {
	return uint64(len(b))<<32 | uint64(wire.Sum(0, b[24:]))
}

// recordLength checks the record that data has at an offset and returns its length; 0: there is none. The error is
// errRecord.
func recordLength(data []byte, at int64) (int64, error) {
	if at+recordHead > int64(len(data)) {
		return 0, nil
	}
	head := recordAt(data, at).head.Load()
	if head == 0 {
		return 0, nil
	}
	n := int64(head >> 32)
	if n <= recordHead || n > maxRecord || n%8 != 0 || at+n > int64(len(data)) || sum(data[at:at+n]) != head {
		return 0, errRecord
	}
	return n, nil
}

var errRecord = errors.New("record is damaged")

// add adds to a row. Costs stay where they would overflow.
func (r *record) add(cost, checks int64) {
	const small = 1 << 32 // so small ones do not overflow in a month
	if cost < small && cost > -small {
		r.cost.Add(cost)
	} else {
		for {
			old := r.cost.Load()
			if r.cost.CompareAndSwap(old, plus(old, cost)) {
				break
			}
		}
	}
	r.checks.Add(checks)
}

// plus is a + b, held within int64.
func plus(a, b int64) int64 {
	switch c := a + b; {
	case a > 0 && b > 0 && c < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && c >= 0:
		return math.MinInt64
	default:
		return c
	}
}

// appendNames packs what r is about.
func (r *Row) appendNames(b []byte) []byte {
	b = wire.AppendBool(wire.AppendText(wire.AppendText(b, r.Rule), r.Unit), r.Other)
	if r.Other {
		return b
	}
	return wire.AppendTexts(b, r.Key)
}

// readNames is decodeNames of bytes that may be longer.
func (r *Row) readNames(b []byte) error {
	d := wire.NewDecoder(b)
	r.decodeNames(d)
	return d.Err()
}

// decodeNames reads names. What it makes refers to what d reads.
func (r *Row) decodeNames(d *wire.Decoder) {
	r.Rule, r.Unit = decodeName(d), decodeName(d)
	r.Other, r.Key = d.Bool(), r.Key[:0]
	if !r.Other {
		for range d.Count(maxKeyParts, 1) {
			r.Key = append(r.Key, decodeName(d))
		}
	}
}

func decodeName(d *wire.Decoder) string {
	b := d.View(maxRecord)
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// clone is r with memory of its own.
func (r *Row) clone() Row {
	c := *r
	c.Rule, c.Unit = string([]byte(r.Rule)), string([]byte(r.Unit))
	if c.Key = nil; !r.Other {
		c.Key = make([]string, len(r.Key))
		for i, k := range r.Key {
			c.Key[i] = string([]byte(k))
		}
	}
	return c
}

// compareRows orders rows by what they are about: rule, then key, others last, then unit.
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
