package gossip

import (
	"encoding/binary"
	"io"
	"math"
	"slices"
)

// memberlist's messages are maps of msgpack. Its decoder takes far more than its encoder writes: arrays in place of maps, nested
// values, repeated keys, a length without the bytes. The decoder here takes only what the encoder writes, so that both read the
// same from it.

// decoder reads a message, which is all there or comes from a stream.
type decoder struct {
	buf []byte
	at  int       // where the next byte is in buf
	in  io.Reader // gives what follows buf; nil: nothing does
	// grow asks for so many bytes of memory before buf gets them.
	grow func(int) error
}

// chunk is how much is read from a stream at once at least.
const chunk = 4096

// need makes sure that n bytes are there. It makes room only as they arrive, whatever length the message claims.
func (d *decoder) need(n int) error {
	for len(d.buf)-d.at < n {
		switch {
		case d.in == nil:
			return errCutShort
		case d.at+n > maxStream+maxHeaders:
			return errTooLarge
		case len(d.buf) == cap(d.buf):
			more := min(max(chunk, len(d.buf)), maxStream+maxHeaders-len(d.buf))
			if err := d.grow(len(d.buf) + more); err != nil {
				return err
			}
			d.buf = slices.Grow(d.buf, more)
		}
		k, err := d.in.Read(d.buf[len(d.buf):cap(d.buf)])
		d.buf = d.buf[:len(d.buf)+k]
		switch {
		case err == nil || len(d.buf)-d.at >= n:
		case err == io.EOF && len(d.buf) > 0:
			return errCutShort
		default:
			return err
		}
	}
	return nil
}

// take returns the next n bytes.
func (d *decoder) take(n int) ([]byte, error) {
	if err := d.need(n); err != nil {
		return nil, err
	}
	d.at += n
	return d.buf[d.at-n : d.at : d.at], nil
}

func (d *decoder) byte() (byte, error) {
	b, err := d.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// bigEndian reads a number of so many bytes, at most 8.
func (d *decoder) bigEndian(bytes int) (uint64, error) {
	b, err := d.take(bytes)
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[8-bytes:], b)
	return binary.BigEndian.Uint64(wide[:]), nil
}

// number reads a whole number from 0 to most.
func (d *decoder) number(most uint64) (uint64, error) {
	lead, err := d.byte()
	if err != nil {
		return 0, err
	}
	var n uint64
	switch {
	case lead < 0x80:
		n = uint64(lead)
	case lead >= 0xcc && lead <= 0xcf: // uint8 to uint64
		n, err = d.bigEndian(1 << (lead - 0xcc))
	case lead >= 0xd0 && lead <= 0xd3: // int8 to int64
		size := 1 << (lead - 0xd0)
		if n, err = d.bigEndian(size); n>>(8*size-1) != 0 {
			return 0, errMalformed
		}
	default:
		return 0, errMalformed
	}
	if err == nil && n > most {
		err = errMalformed
	}
	return n, err
}

// bytes reads at most so many bytes, or text. What is nil has none.
func (d *decoder) bytes(most uint64) ([]byte, error) {
	lead, err := d.byte()
	if err != nil {
		return nil, err
	}
	var n uint64
	switch {
	case lead == 0xc0: // nil
	case lead >= 0xa0 && lead <= 0xbf:
		n = uint64(lead - 0xa0)
	case lead >= 0xc4 && lead <= 0xc6: // bin8 to bin32
		n, err = d.bigEndian(1 << (lead - 0xc4))
	case lead >= 0xd9 && lead <= 0xdb: // str8 to str32
		n, err = d.bigEndian(1 << (lead - 0xd9))
	default:
		return nil, errMalformed
	}
	if err != nil {
		return nil, err
	}
	if n > most {
		return nil, errMalformed
	}
	return d.take(int(n))
}

func (d *decoder) boolean() error {
	lead, err := d.byte()
	if err == nil && lead != 0xc2 && lead != 0xc3 {
		err = errMalformed
	}
	return err
}

// skip reads a value of a field that a later version of memberlist may have: one that has no values in it.
func (d *decoder) skip() error {
	if err := d.need(1); err != nil {
		return err
	}
	var err error
	switch lead := d.buf[d.at]; {
	case lead == 0xc2 || lead == 0xc3:
		d.at++
	case lead < 0x80 || (lead >= 0xcc && lead <= 0xd3):
		_, err = d.number(math.MaxUint64)
	default:
		_, err = d.bytes(maxMetadata)
	}
	return err
}

type kind uint8

const (
	number  kind = iota // 0 to most
	text                // at most so many bytes
	boolean             // true or false
	address             // an IP
	version             // the versions that a node speaks
)

// field is one of a message's map.
type field struct {
	name     string
	kind     kind
	most     uint64
	optional bool
	into     *value // nil: it is well-formed, and that is enough
}

type value struct {
	number uint64
	bytes  []byte
}

const (
	maxFields = 15 // of a map; memberlist's largest has 8
	maxKey    = 32
)

// object reads a map that has each of these fields once, but those that are optional at most once.
func (d *decoder) object(fields []field) error {
	lead, err := d.byte()
	if err != nil {
		return err
	}
	if lead&0xf0 != 0x80 {
		return errMalformed
	}
	var seen uint32
	for range lead & maxFields {
		key, err := d.bytes(maxKey)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == string(key) })
		if i < 0 {
			err = d.skip()
		} else if seen&(1<<i) != 0 {
			return errMalformed
		} else {
			seen |= 1 << i
			err = d.field(&fields[i])
		}
		if err != nil {
			return err
		}
	}
	for i, f := range fields {
		if seen&(1<<i) != 0 {
			continue
		}
		if !f.optional {
			return errMalformed
		}
		if f.into != nil {
			*f.into = value{}
		}
	}
	return nil
}

func (d *decoder) field(f *field) (err error) {
	var v value
	switch f.kind {
	case number:
		v.number, err = d.number(f.most)
	case text:
		v.bytes, err = d.bytes(f.most)
	case boolean:
		err = d.boolean()
	case address:
		if v.bytes, err = d.bytes(16); err == nil && len(v.bytes) != 4 && len(v.bytes) != 16 {
			err = errMalformed
		}
	case version:
		if v.bytes, err = d.bytes(6); err == nil && !speaksOurs(v.bytes) {
			err = errMalformed
		}
	}
	if f.into != nil {
		*f.into = v
	}
	return err
}
