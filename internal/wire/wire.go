// Package wire is how the product reads what other nodes send and what lies on disk: with one [Decoder]. It writes with the
// Append functions of encoding/binary and the few that are here. It knows bytes, numbers and texts; the codec of a type of the
// product stands beside that type.
//
// Numbers are varints, or fixed and little endian; fixed ones whose name begins with Big are big endian. Whatever can be
// written in two ways is read in one: varints have no needless bytes, a flag is 0 or 1.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrMalformed: bytes are cut off, are too many, or say what can't be.
var ErrMalformed = errors.New("malformed")

// Decoder takes a message apart, from its beginning to its end. After the first failure nothing is left of the message and
// all that is read is zero, so callers check once, at the end. It allocates nothing for a length before it has seen so many bytes.
type Decoder struct {
	b   []byte
	at  int // in b: what is before it has been read
	err error
}

// NewDecoder returns a decoder of b, which must not change as long as what was read is used: Bytes and Rest refer to it.
func NewDecoder(b []byte) *Decoder { return &Decoder{b: b} }

// Fail makes the message malformed.
func (d *Decoder) Fail() {
	if d.err == nil {
		d.err = ErrMalformed
	}
	d.b, d.at = nil, 0
}

// Failf is Fail with a reason.
func (d *Decoder) Failf(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
	}
	d.b, d.at = nil, 0
}

// Err is nil as long as nothing has failed; else it wraps [ErrMalformed].
func (d *Decoder) Err() error { return d.err }

// Failed reports whether something has failed.
func (d *Decoder) Failed() bool { return d.err != nil }

// More reports whether there is something left to read.
func (d *Decoder) More() bool { return d.at < len(d.b) }

// Len is how many bytes are left.
func (d *Decoder) Len() int { return len(d.b) - d.at }

// Done is the error of reading what, which has to be over.
func (d *Decoder) Done(what string) error {
	if d.More() {
		d.Failf("%d bytes too many", d.Len())
	}
	if d.err != nil {
		return fmt.Errorf("read %s: %w", what, d.err)
	}
	return nil
}

// Byte reads a byte.
func (d *Decoder) Byte() byte {
	if d.at >= len(d.b) {
		d.Fail()
		return 0
	}
	b := d.b[d.at]
	d.at++
	return b
}

// Bool reads a byte that is 0 or 1.
func (d *Decoder) Bool() bool {
	b := d.Byte()
	if b > 1 {
		d.Fail()
	}
	return b == 1
}

// Bytes reads n bytes, without a copy; nil after a failure.
func (d *Decoder) Bytes(n int) []byte {
	if n < 0 || n > len(d.b)-d.at {
		d.Fail()
		return nil
	}
	d.at += n
	return d.b[d.at-n : d.at : d.at]
}

// Rest reads all that is left, without a copy.
func (d *Decoder) Rest() []byte {
	b := d.b[d.at:]
	d.at = len(d.b)
	return b
}

// Fill reads as many bytes as there are in to; after a failure it leaves them.
func (d *Decoder) Fill(to []byte) { copy(to, d.Bytes(len(to))) }

var zeros [8]byte

func (d *Decoder) fixed(n int) []byte {
	if n > len(d.b)-d.at {
		d.Fail()
		return zeros[:n]
	}
	d.at += n
	return d.b[d.at-n : d.at]
}

// Uint16 reads two bytes.
func (d *Decoder) Uint16() uint16 { return binary.LittleEndian.Uint16(d.fixed(2)) }

// Uint32 reads four bytes.
func (d *Decoder) Uint32() uint32 { return binary.LittleEndian.Uint32(d.fixed(4)) }

// Uint64 reads eight bytes.
func (d *Decoder) Uint64() uint64 { return binary.LittleEndian.Uint64(d.fixed(8)) }

// BigUint16 reads two bytes.
func (d *Decoder) BigUint16() uint16 { return binary.BigEndian.Uint16(d.fixed(2)) }

// BigUint32 reads four bytes.
func (d *Decoder) BigUint32() uint32 { return binary.BigEndian.Uint32(d.fixed(4)) }

// BigUint64 reads eight bytes.
func (d *Decoder) BigUint64() uint64 { return binary.BigEndian.Uint64(d.fixed(8)) }

// Uvarint reads a number that is not below zero.
func (d *Decoder) Uvarint() uint64 { return d.upTo(math.MaxUint64) }

// UpTo reads a number from 0 to most.
func (d *Decoder) UpTo(most int64) int64 { return int64(d.upTo(uint64(most))) }

// Varint reads a number that may be below zero.
func (d *Decoder) Varint() int64 {
	v := d.upTo(math.MaxUint64)
	return int64(v>>1) ^ -int64(v&1)
}

func (d *Decoder) upTo(most uint64) uint64 {
	v := uint64(0)
	for i, shift := d.at, 0; i < len(d.b) && shift <= 63; i, shift = i+1, shift+7 {
		b := d.b[i]
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			if v > most || shift > 0 && b == 0 || shift == 63 && b > 1 {
				break
			}
			d.at = i + 1
			return v
		}
	}
	d.Fail()
	return 0
}

// Count reads how many things follow: at most so many, of which each takes at least least bytes.
func (d *Decoder) Count(most, least int) int {
	n := int(d.UpTo(int64(most)))
	if n > d.Len()/least {
		d.Fail()
		return 0
	}
	return n
}

// View reads what AppendText or a length and bytes wrote, at most so many bytes, without a copy.
func (d *Decoder) View(most int) []byte { return d.Bytes(int(d.UpTo(int64(most)))) }

// Text reads what AppendText wrote, at most so many bytes.
func (d *Decoder) Text(most int) string { return string(d.View(most)) }

// ShortText reads what AppendShortText wrote, at most so many bytes.
func (d *Decoder) ShortText(most int) string {
	n := int(d.Byte())
	if n > most {
		d.Fail()
		return ""
	}
	return string(d.Bytes(n))
}

// Texts reads what AppendTexts wrote: at most so many texts of at most so many bytes. Nil: there are none.
func (d *Decoder) Texts(most, mostBytes int) (list []string) {
	for range d.Count(most, 1) {
		list = append(list, d.Text(mostBytes))
	}
	return list
}

// AppendBool writes a byte that is 0 or 1.
func AppendBool(b []byte, yes bool) []byte {
	if yes {
		return append(b, 1)
	}
	return append(b, 0)
}

// AppendText writes a text or bytes, with their length as a uvarint before them.
func AppendText[T ~string | ~[]byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// AppendShortText writes a text of at most 255 bytes, with its length in a byte before it.
func AppendShortText(b []byte, text string) []byte {
	return append(append(b, byte(len(text))), text...)
}

// AppendTexts writes how many texts there are, and these.
func AppendTexts(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, text := range list {
		b = AppendText(b, text)
	}
	return b
}
