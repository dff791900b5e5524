package usage

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"unsafe"
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

const (
	maxNames    = 64 << 10 // bytes of a row's names; a subject with longer ones is counted with the others
	maxKeyParts = 32
)

var (
	// errRow: what was read is no row.
	errRow = errors.New("a row of usage is damaged")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

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
	b = appendText(appendText(b, r.Rule), r.Unit)
	if r.Other {
		return append(b, 1)
	}
	b = binary.AppendUvarint(append(b, 0), uint64(len(r.Key)))
	for _, k := range r.Key {
		b = appendText(b, k)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// readNames reads names and returns what follows them. What it makes refers to b.
func (r *Row) readNames(b []byte) (rest []byte, err error) {
	p := packet{rest: b}
	r.Rule, r.Unit = p.text(), p.text()
	r.Other, r.Key = p.byte() == 1, r.Key[:0]
	if !r.Other {
		n := p.number()
		if n > maxKeyParts {
			return nil, errRow
		}
		for range n {
			r.Key = append(r.Key, p.text())
		}
	}
	if p.bad {
		return nil, errRow
	}
	return p.rest, nil
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

// packet reads what was packed; after the first mistake everything reads as nothing.
type packet struct {
	rest []byte
	bad  bool
}

func (p *packet) byte() byte {
	if len(p.rest) == 0 {
		p.bad = true
		return 0
	}
	c := p.rest[0]
	p.rest = p.rest[1:]
	return c
}

func (p *packet) number() uint64 {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 {
		p.rest, p.bad = nil, true
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *packet) signed() int64 {
	v, n := binary.Varint(p.rest)
	if n <= 0 {
		p.rest, p.bad = nil, true
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *packet) text() string {
	n := p.number()
	if n > uint64(len(p.rest)) {
		p.rest, p.bad = nil, true
		return ""
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return unsafe.String(unsafe.SliceData(b), len(b))
}
