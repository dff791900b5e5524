package wire

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
)

// Coder writes or reads a message. A type lists its fields once, in order,
// which defines its format in both directions. Reading validates, as a
// [Decoder] does; writing does not.
type Coder struct {
	In    Decoder // the input still to be read
	Out   []byte  // the output so far
	reads bool
}

// NewReader returns a Coder that reads body.
func NewReader(body []byte) Coder { return Coder{In: Decoder{b: body}, reads: true} }

// Message is a value that a Coder can write and read.
type Message interface{ Code(c *Coder) }

// Encode appends m to b.
func Encode(b []byte, m Message) []byte {
	c := Coder{Out: b}
	m.Code(&c)
	return c.Out
}

// Decode reads m from body and requires that nothing is left. what names the
// message in the error, which wraps [ErrMalformed].
func Decode(body []byte, m Message, what string) error {
	c := NewReader(body)
	m.Code(&c)
	return c.In.Done(what)
}

// Reads reports whether c reads.
func (c *Coder) Reads() bool { return c.reads }

// Require makes a message that is being read malformed unless ok is true.
func (c *Coder) Require(ok bool) {
	if !ok && c.reads {
		c.In.Fail()
	}
}

// Bool codes a byte that is 0 or 1.
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

// Flags codes up to eight flags as the bits of one byte.
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

// Raw codes len(v) bytes.
func (c *Coder) Raw(v []byte) {
	if c.reads {
		c.In.Fill(v)
	} else {
		c.Out = append(c.Out, v...)
	}
}

// Rest codes the rest of the message.
func (c *Coder) Rest(v *[]byte) {
	if c.reads {
		*v = slices.Clone(c.In.Rest())
	} else {
		c.Out = append(c.Out, *v...)
	}
}

// Fixed codes a number as eight bytes.
func Fixed[T ~int64 | ~uint64](c *Coder, v *T) {
	if c.reads {
		*v = T(c.In.Uint64())
	} else {
		c.Out = binary.LittleEndian.AppendUint64(c.Out, uint64(*v))
	}
}

// Float codes a number as eight bytes.
func (c *Coder) Float(v *float64) {
	n := math.Float64bits(*v)
	Fixed(c, &n)
	*v = math.Float64frombits(n)
}

// Number codes a number from 0 to bound as a varint.
func Number[T ~int | ~int64 | ~uint8 | ~uint32 | ~uint64](c *Coder, v *T, bound int64) {
	n := uint64(*v)
	switch {
	case c.reads:
		*v = T(c.In.upTo(uint64(bound)))
	case n < 0x80: // the common case
		c.Out = append(c.Out, byte(n))
	default:
		c.Out = binary.AppendUvarint(c.Out, n)
	}
}

// Millis codes a duration of up to bound, in whole milliseconds.
func (c *Coder) Millis(v *time.Duration, bound time.Duration) {
	n := max(0, v.Milliseconds())
	Number(c, &n, bound.Milliseconds())
	*v = time.Duration(n) * time.Millisecond
}

// Varint codes a number that may be negative.
func Varint[T ~int | ~int64](c *Coder, v *T) {
	if c.reads {
		*v = T(c.In.Varint())
	} else {
		c.Out = binary.AppendVarint(c.Out, int64(*v))
	}
}

// Text codes a text of up to bound bytes.
func (c *Coder) Text(v *string, bound int) {
	if c.reads {
		*v = c.In.Text(bound)
	} else {
		c.Out = AppendText(c.Out, *v)
	}
}

// Texts codes up to bound texts of up to maxBytes bytes each.
func (c *Coder) Texts(v *[]string, bound, maxBytes int) {
	if c.reads {
		*v = c.In.Texts(bound, maxBytes)
	} else {
		c.Out = AppendTexts(c.Out, *v)
	}
}

// Optional codes whether *v is nil and, if it is not, what it points to.
func Optional[T any](c *Coder, v **T, code func(*T)) {
	present := *v != nil
	c.Bool(&present)
	if c.reads {
		*v = nil
		if present {
			*v = new(T)
		}
	}
	if present {
		code(*v)
	}
}

// List codes up to bound elements, each of which takes minBytes bytes or more.
// Reading replaces the contents of v.
func List[T any](c *Coder, v *[]T, bound, minBytes int, each func(*T)) {
	if !c.reads {
		c.Out = binary.AppendUvarint(c.Out, uint64(len(*v)))
		for i := range *v {
			each(&(*v)[i])
		}
		return
	}

	n := c.In.Count(bound, minBytes)

	// What v had must not show through where the message leaves a field out.
	list := slices.Grow((*v)[:0], n)[:n]
	clear(list)
	*v = list

	for i := range list {
		each(&list[i])
	}
}
