package gossip

import (
	"encoding/binary"
	"io"
	"slices"
)

// memberlist's messages are msgpack maps. Its decoder accepts far more than its
// encoder writes: arrays in place of maps, nested values, repeated keys,
// lengths without the bytes. The decoder here accepts only what the encoder
// writes, so both decoders read the same values.

// decoder reads a message, which is either complete in buf or continues in a stream.
type decoder struct {
	buf []byte
	pos int       // position of the next byte in buf
	in  io.Reader // what follows buf; nil: nothing
	// reserve asks for memory for a buf of that many bytes in total, or refuses it.
	reserve func(int) error
}

// chunk is the minimum size of a read buffer for a stream, in bytes.
const chunk = 4096

// fill reads until buf has n unread bytes. It allocates memory only as bytes
// arrive, whatever length the message claims.
func (d *decoder) fill(n int) error {
	for len(d.buf)-d.pos < n {
		switch {
		case d.in == nil:
			return errCutShort
		case d.pos+n > maxStream+maxHeaders:
			return errTooLarge
		case len(d.buf) == cap(d.buf):
			more := min(max(chunk, len(d.buf)), maxStream+maxHeaders-len(d.buf))
			if err := d.reserve(len(d.buf) + more); err != nil {
				return err
			}
			d.buf = slices.Grow(d.buf, more)
		}

		k, err := d.in.Read(d.buf[len(d.buf):cap(d.buf)])
		d.buf = d.buf[:len(d.buf)+k]

		switch {
		case err == nil || len(d.buf)-d.pos >= n:
		case err == io.EOF && len(d.buf) > 0:
			return errCutShort
		default:
			return err
		}
	}
	return nil
}

// take returns the next n bytes, which alias buf.
func (d *decoder) take(n int) ([]byte, error) {
	if err := d.fill(n); err != nil {
		return nil, err
	}
	d.pos += n
	return d.buf[d.pos-n : d.pos : d.pos], nil
}

func (d *decoder) byte() (byte, error) {
	b, err := d.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// bigEndian reads a big-endian number of the given size in bytes, at most 8.
func (d *decoder) bigEndian(bytes int) (uint64, error) {
	b, err := d.take(bytes)
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[8-bytes:], b)
	return binary.BigEndian.Uint64(wide[:]), nil
}

// scalar reads a value that contains no other values. Text longer than most
// bytes is malformed; nil is read as empty text.
func (d *decoder) scalar(most uint64) (v value, err error) {
	lead, err := d.byte()
	if err != nil {
		return v, err
	}

	v.kind = text
	size := 0      // bytes of the number that follows: the value, or the length of the text
	n := uint64(0) // that number
	switch {
	case lead < 0x80:
		v.kind = number
		n = uint64(lead)
	case lead >= 0xa0 && lead <= 0xbf:
		n = uint64(lead - 0xa0)
	case lead == 0xc0: // nil
	case lead == 0xc2 || lead == 0xc3:
		v.kind = boolean
	case lead >= 0xc4 && lead <= 0xc6: // bin8 to bin32
		size = 1 << (lead - 0xc4)
	case lead >= 0xcc && lead <= 0xd3: // uint8 to uint64, int8 to int64
		v.kind = number
		size = 1 << (lead & 3)
	case lead >= 0xd9 && lead <= 0xdb: // str8 to str32
		size = 1 << (lead - 0xd9)
	default:
		return v, errMalformed
	}

	if size > 0 {
		n, err = d.bigEndian(size)
	}

	isNegative := lead >= 0xd0 && lead <= 0xd3 && n>>(8*size-1) != 0
	switch {
	case err != nil:
	case isNegative, v.kind == text && n > most:
		err = errMalformed
	case v.kind == text:
		v.bytes, err = d.take(int(n))
	default:
		v.number = n
	}
	return v, err
}

// kind is the type of a field or value.
type kind uint8

const (
	number  kind = iota // 0 to field.max
	text                // at most field.max bytes
	boolean             // true or false
	address             // an IP, as text of 4 or 16 bytes
	version             // a node's protocol versions, as text
)

// field is an entry of a message's map.
type field struct {
	name     string
	kind     kind
	max      uint64
	optional bool
	dest     *value // receives the value; nil: only check it
}

// value is a decoded scalar.
type value struct {
	kind   kind // number, text or boolean
	number uint64
	bytes  []byte
}

const (
	maxFields = 15 // of a map; memberlist's largest has 8
	maxKey    = 32
)

// decodeMap reads a map that has each of the fields exactly once, or at most
// once if it is optional. Unknown fields are skipped.
func (d *decoder) decodeMap(fields []field) error {
	lead, err := d.byte()
	if err != nil {
		return err
	}

	if lead&0xf0 != 0x80 {
		return errMalformed
	}

	var seen uint32
	for range lead & maxFields {
		key, err := d.scalar(maxKey)
		if err != nil {
			return err
		}
		v, err := d.scalar(maxText)
		if err != nil {
			return err
		}

		i := slices.IndexFunc(fields, func(f field) bool { return f.name == string(key.bytes) })
		switch {
		case key.kind != text, i >= 0 && (seen&(1<<i) != 0 || !fields[i].accepts(v)):
			return errMalformed
		case i >= 0:
			seen |= 1 << i
			if fields[i].dest != nil {
				*fields[i].dest = v
			}
		}
	}

	for i, f := range fields {
		if seen&(1<<i) != 0 {
			continue
		}
		if !f.optional {
			return errMalformed
		}
		if f.dest != nil {
			*f.dest = value{}
		}
	}
	return nil
}

// accepts reports whether the field accepts a value.
func (f *field) accepts(v value) bool {
	switch f.kind {
	case number:
		return v.kind == number && v.number <= f.max
	case boolean:
		return v.kind == boolean
	case address:
		return v.kind == text && (len(v.bytes) == 4 || len(v.bytes) == 16)
	case version:
		return v.kind == text && speaksOurVersions(v.bytes)
	}
	return v.kind == text && uint64(len(v.bytes)) <= f.max
}
