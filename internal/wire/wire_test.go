package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// encodeAll encodes one value of each type.
func encodeAll() []byte {
	b := AppendBool([]byte{7}, true)
	b = binary.LittleEndian.AppendUint16(b, 1)
	b = binary.LittleEndian.AppendUint32(b, 2)
	b = binary.LittleEndian.AppendUint64(b, 3)
	b = binary.BigEndian.AppendUint16(b, 4)
	b = binary.BigEndian.AppendUint32(b, 5)
	b = binary.BigEndian.AppendUint64(b, 6)
	b = binary.AppendUvarint(b, math.MaxUint64)
	b = binary.AppendVarint(b, math.MinInt64)
	b = binary.AppendVarint(b, 300)
	b = AppendText(b, "text")
	b = AppendText(b, []byte{0, 255})
	b = AppendShortText(b, "short")
	return AppendTexts(b, []string{"", strings.Repeat("x", 200)})
}

func decodeAll(d *Decoder) bool {
	return d.Byte() == 7 && d.Bool() && d.Uint16() == 1 && d.Uint32() == 2 && d.Uint64() == 3 && d.BigUint16() == 4 &&
		d.BigUint32() == 5 && d.BigUint64() == 6 && d.Uvarint() == math.MaxUint64 && d.Varint() == math.MinInt64 &&
		d.Varint() == 300 && d.Text(4) == "text" && bytes.Equal(d.View(9), []byte{0, 255}) &&
		d.ShortText(5) == "short" &&
		slices.Equal(d.Texts(2, 200), []string{"", strings.Repeat("x", 200)})
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	b := encodeAll()
	d := NewDecoder(b)
	if !decodeAll(d) || d.Done("it") != nil || d.More() {
		t.Errorf("%v, %d bytes are left", d.Err(), d.Len())
	}
	for n := range b {
		if d := NewDecoder(b[:n]); decodeAll(d) || !d.Failed() || !errors.Is(d.Done("it"), ErrMalformed) {
			t.Errorf("%d of %d bytes are read: %v", n, len(b), d.Err())
		}
	}
	d = NewDecoder(append(b, 0))
	if !decodeAll(d) || !errors.Is(d.Done("it"), ErrMalformed) {
		t.Errorf("a byte too many is read: %v", d.Err())
	}
}

func TestWhatCantBeIsRefused(t *testing.T) {
	for name, read := range map[string]func(d *Decoder){
		"a flag of 2":              func(d *Decoder) { d.Byte(); d.Bool() },
		"a redundant byte":         func(d *Decoder) { d.Bytes(2); d.Uvarint() },
		"a number of ten bytes":    func(d *Decoder) { d.Bytes(5); d.Uvarint() },
		"a number too large":       func(d *Decoder) { d.Byte(); d.UpTo(1) },
		"too many":                 func(d *Decoder) { d.Byte(); d.Count(1, 1) },
		"more than there are":      func(d *Decoder) { d.Byte(); d.Count(100, 8) },
		"a long text":              func(d *Decoder) { d.Byte(); d.Text(1) },
		"a long short text":        func(d *Decoder) { d.Byte(); d.ShortText(1) },
		"less than no bytes":       func(d *Decoder) { d.Bytes(-1) },
		"more bytes than are here": func(d *Decoder) { d.Fill(make([]byte, 17)) },
		"what the caller refuses":  func(d *Decoder) { d.Failf("%d is too much", 5) },
	} {
		d := NewDecoder([]byte{0, 2, 0x80, 0, 9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0})
		read(d)
		if !errors.Is(d.Err(), ErrMalformed) || d.Len() != 0 || d.Byte() != 0 || d.Uint64() != 0 ||
			d.Varint() != 0 || d.Text(5) != "" {
			t.Errorf("%s: have %v", name, d.Err())
		}
	}
}

// FuzzDecoder reads arbitrary data in arbitrary order. Encoding what it read
// must give the same bytes.
func FuzzDecoder(f *testing.F) {
	f.Add(encodeAll(), []byte{0, 1, 2, 2, 2, 3, 3, 3, 4, 5, 5, 6, 6, 7, 8})
	f.Fuzz(func(t *testing.T, b, kinds []byte) {
		d := NewDecoder(b)
		var again []byte
		for _, kind := range kinds {
			switch kind % 9 {
			case 0:
				again = append(again, d.Byte())
			case 1:
				again = AppendBool(again, d.Bool())
			case 2:
				again = binary.LittleEndian.AppendUint16(again, d.Uint16())
			case 3:
				again = binary.BigEndian.AppendUint64(again, d.BigUint64())
			case 4:
				again = binary.AppendUvarint(again, d.Uvarint())
			case 5:
				again = binary.AppendVarint(again, d.Varint())
			case 6:
				again = AppendText(again, d.View(100))
			case 7:
				again = AppendShortText(again, d.ShortText(100))
			case 8:
				again = AppendTexts(again, d.Texts(10, 100))
			}
			if d.Failed() {
				return
			}
		}
		if want := b[:len(b)-d.Len()]; !bytes.Equal(again, want) {
			t.Errorf("have %x, want %x", again, want)
		}
	})
}
