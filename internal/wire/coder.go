package wire

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
)

// Coder writes a message or reads one. A type names its fields once, in their order, and that is its format in both directions.
// What is read is checked, as a [Decoder] does; what is written is not.
type Coder struct {
	In    Decoder // what is left to read
	Out   []byte  // what was written
	reads bool
}

// NewReader returns a Coder that reads body.
func NewReader(body []byte) Coder { return Coder{In: Decoder{b: body}, reads: true} }

// Message is what a Coder writes and reads.
type Message interface{ Code(c *Coder) }

// Encode appends m to b.
func Encode(b []byte, m Message) []byte {
	c := Coder{Out: b}
	m.Code(&c)
	return c.Out
}

// Decode reads m from body, all of it. The error wraps [ErrMalformed].
func Decode(body []byte, m Message, what string) error {
	c := NewReader(body)
	m.Code(&c)
	return c.In.Done(what)
}

// Reads reports whether c reads.
func (c *Coder) Reads() bool { return c.reads }

// Require makes a message that is read malformed unless ok.
func (c *Coder) Require(ok bool) {
	if !ok && c.reads {
		c.In.Fail()
	}
}

// Bool is a byte that is 0 or 1.
func (c *Coder) Bool(v *bool) {
	if c.reads {
		*v = c.In.Bool()
		return
	}
	b := byte(0)
	if *v {
		b = 1
	}
	c.Out = append(c.Out, b)
}

// Flags is a byte with a bit for each of up to eight flags.
func (c *Coder) Flags(flags ...*bool) {
	bits := byte(0)
	for i, f := range flags {
		if *f && !c.reads {
			bits |= 1 << i
		}
	}
	Number(c, &bits, 1<<len(flags)-1)
	for i, f := range flags {
		*f = bits&(1<<i) != 0
	}
}

// Raw is as many bytes as v has.
func (c *Coder) Raw(v []byte) {
	if c.reads {
		c.In.Fill(v)
	} else {
		c.Out = append(c.Out, v...)
	}
}

// Rest is all that is left of the message.
func (c *Coder) Rest(v *[]byte) {
	if c.reads {
		*v = slices.Clone(c.In.Rest())
	} else {
		c.Out = append(c.Out, *v...)
	}
}

// Fixed is a number of eight bytes.
func Fixed[T ~int64 | ~uint64](c *Coder, v *T) {
	if c.reads {
		*v = T(c.In.Uint64())
	} else {
		c.Out = binary.LittleEndian.AppendUint64(c.Out, uint64(*v))
	}
}

// Float is a number of eight bytes.
func (c *Coder) Float(v *float64) {
	n := math.Float64bits(*v)
	Fixed(c, &n)
	*v = math.Float64frombits(n)
}

// Number is a varint from 0 to most.
func Number[T ~int | ~int64 | ~uint8 | ~uint64](c *Coder, v *T, most int64) {
	switch n := uint64(*v); {
	case c.reads:
		*v = T(c.In.upTo(uint64(most)))
	case n < 0x80: // as most are
		c.Out = append(c.Out, byte(n))
	default:
		c.Out = binary.AppendUvarint(c.Out, n)
	}
}

// Millis is a duration of at most most, in whole milliseconds.
func (c *Coder) Millis(v *time.Duration, most time.Duration) {
	n := max(0, v.Milliseconds())
	Number(c, &n, most.Milliseconds())
	*v = time.Duration(n) * time.Millisecond
}

// Varint is a number that may be below zero.
func Varint[T ~int | ~int64](c *Coder, v *T) {
	if c.reads {
		*v = T(c.In.Varint())
	} else {
		c.Out = binary.AppendVarint(c.Out, int64(*v))
	}
}

// Text is a text of at most so many bytes.
func (c *Coder) Text(v *string, most int) {
	if c.reads {
		*v = c.In.Text(most)
	} else {
		c.Out = AppendText(c.Out, *v)
	}
}

// Texts is at most so many texts of at most so many bytes each.
func (c *Coder) Texts(v *[]string, most, mostBytes int) {
	if c.reads {
		*v = c.In.Texts(most, mostBytes)
	} else {
		c.Out = AppendTexts(c.Out, *v)
	}
}

// List is at most so many things, of which each takes at least least bytes. What is read takes the place of what was in v.
func List[T any](c *Coder, v *[]T, most, least int, each func(*T)) {
	if !c.reads {
		c.Out = binary.AppendUvarint(c.Out, uint64(len(*v)))
		for i := range *v {
			each(&(*v)[i])
		}
		return
	}
	n := c.In.Count(most, least)
	list := slices.Grow((*v)[:0], n)[:n]
	clear(list)
	*v = list
	for i := range list {
		each(&list[i])
	}
}
