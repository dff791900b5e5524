// Package wire decodes everything that other nodes send and that lies on disk,
// with one [Decoder]. A [Coder] describes the format of a message once, for
// both directions; other encoders use the Append functions of encoding/binary
// and of this package. A Decoder reads bytes, numbers and strings; the codec of
// a product type lives next to that type.
//
// Numbers are varints, or fixed-size and little endian; the names of functions
// for big endian ones begin with Big. A value has only one valid encoding:
// varints have no redundant bytes, and a flag is 0 or 1.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrMalformed means that data is truncated, too long, or has impossible values.
var ErrMalformed = errors.New("malformed")

// Decoder decodes a message from start to end. After the first failure it drops
// the rest of the message, and every read returns zero, so callers check for
// errors once, at the end. It allocates nothing for a length until it has seen
// that many bytes.
type Decoder struct {
	b   []byte
	at  int // offset in b of the first byte not yet read
	err error
}

// NewDecoder returns a decoder of b. b must not change while results of Bytes
// and Rest are in use, because they point into it.
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

// Err returns nil until something fails, and then an error that wraps [ErrMalformed].
func (d *Decoder) Err() error { return d.err }

// Failed reports whether something has failed.
func (d *Decoder) Failed() bool { return d.err != nil }

// More reports whether anything is left to read.
func (d *Decoder) More() bool { return d.at < len(d.b) }

// Len returns the number of bytes left.
func (d *Decoder) Len() int { return len(d.b) - d.at }

// Done requires that the message has ended, and returns the error of reading
// it. what names the message.
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

// Bytes reads n bytes without copying; nil after a failure.
func (d *Decoder) Bytes(n int) []byte {
	if n < 0 || n > len(d.b)-d.at {
		d.Fail()
		return nil
	}
	d.at += n
	return d.b[d.at-n : d.at : d.at]
}

// Rest reads all that is left, without copying.
func (d *Decoder) Rest() []byte {
	b := d.b[d.at:]
	d.at = len(d.b)
	return b
}

// Fill reads len(to) bytes; after a failure it leaves to unchanged.
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

// BigUint16 reads two bytes, big endian.
func (d *Decoder) BigUint16() uint16 { return binary.BigEndian.Uint16(d.fixed(2)) }

// BigUint32 reads four bytes, big endian.
func (d *Decoder) BigUint32() uint32 { return binary.BigEndian.Uint32(d.fixed(4)) }

// BigUint64 reads eight bytes, big endian.
func (d *Decoder) BigUint64() uint64 { return binary.BigEndian.Uint64(d.fixed(8)) }

// Uvarint reads a number that is not negative.
func (d *Decoder) Uvarint() uint64 { return d.upTo(math.MaxUint64) }

// UpTo reads a number from 0 to bound.
func (d *Decoder) UpTo(bound int64) int64 { return int64(d.upTo(uint64(bound))) }

// Varint reads a number that may be negative.
func (d *Decoder) Varint() int64 {
	v := d.upTo(math.MaxUint64)
	return int64(v>>1) ^ -int64(v&1)
}

func (d *Decoder) upTo(bound uint64) uint64 {
	v := uint64(0)
	for i, shift := d.at, 0; i < len(d.b) && shift <= 63; i, shift = i+1, shift+7 {
		b := d.b[i]
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			// The number is too large, or not in its shortest form: a value has only
			// one encoding.
			if v > bound || shift > 0 && b == 0 || shift == 63 && b > 1 {
				break
			}
			d.at = i + 1
			return v
		}
	}

	d.Fail()
	return 0
}

// Count reads how many elements follow: up to bound, each of which takes
// minBytes bytes or more.
func (d *Decoder) Count(bound, minBytes int) int {
	n := int(d.UpTo(int64(bound)))
	if n > d.Len()/minBytes {
		d.Fail()
		return 0
	}
	return n
}

// View reads what AppendText, or a length and bytes, wrote: up to bound bytes,
// without copying.
func (d *Decoder) View(bound int) []byte { return d.Bytes(int(d.UpTo(int64(bound)))) }

// Text reads what AppendText wrote, up to bound bytes.
func (d *Decoder) Text(bound int) string { return string(d.View(bound)) }

// ShortText reads what AppendShortText wrote, up to bound bytes.
func (d *Decoder) ShortText(bound int) string {
	n := int(d.Byte())
	if n > bound {
		d.Fail()
		return ""
	}
	return string(d.Bytes(n))
}

// Texts reads what AppendTexts wrote: up to bound texts of up to maxBytes bytes
// each. It returns nil for none.
func (d *Decoder) Texts(bound, maxBytes int) (list []string) {
	for range d.Count(bound, 1) {
		list = append(list, d.Text(maxBytes))
	}
	return list
}

// AppendBool appends a byte that is 0 or 1.
func AppendBool(b []byte, yes bool) []byte {
	if yes {
		return append(b, 1)
	}
	return append(b, 0)
}

// AppendText appends a text or bytes, preceded by the length as a uvarint.
func AppendText[T ~string | ~[]byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// AppendShortText appends a text of at most 255 bytes, preceded by its length as one byte.
func AppendShortText(b []byte, text string) []byte {
	return append(append(b, byte(len(text))), text...)
}

// AppendTexts appends the number of texts, and the texts.
func AppendTexts(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, text := range list {
		b = AppendText(b, text)
	}
	return b
}
