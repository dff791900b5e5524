package gossip

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/rlnode/rlnode/internal/expect"
)

func TestDecoderNumbers(t *testing.T) {
	for _, test := range []struct {
		have []byte
		most uint64
		want uint64
		bad  bool
	}{
		{have: []byte{0x7f}, most: 127, want: 127},
		{have: []byte{0x7f}, most: 126, bad: true},
		{have: []byte{0xcc, 0xff}, most: math.MaxUint64, want: 255},
		{have: []byte{0xcd, 1, 0}, most: 256, want: 256},
		{have: []byte{0xce, 1, 0, 0, 0}, most: math.MaxUint32, want: 1 << 24},
		{have: append([]byte{0xcf}, bytes.Repeat([]byte{0xff}, 8)...), most: math.MaxUint64, want: math.MaxUint64},
		{have: append([]byte{0xcf}, bytes.Repeat([]byte{0xff}, 8)...), most: math.MaxUint32, bad: true},
		{have: []byte{0xd0, 0x7f}, most: 127, want: 127},
		{have: []byte{0xd0, 0x80}, most: math.MaxUint64, bad: true}, // -128
		{have: []byte{0xd1, 1, 0}, most: 256, want: 256},
		{have: []byte{0xd2, 0xff, 0, 0, 0}, most: math.MaxUint64, bad: true},
		{have: []byte{0xd3, 0, 0, 0, 0, 0, 0, 1, 0}, most: 256, want: 256},
		{have: append([]byte{0xd3}, bytes.Repeat([]byte{0xff}, 8)...), most: math.MaxUint64, bad: true},
		{have: []byte{0xff}, most: 255, bad: true}, // -1
		{have: []byte{0xc0}, most: 255, bad: true},
		{have: []byte{0xa0}, most: 255, bad: true},
		{have: []byte{0xca, 0, 0, 0, 0}, most: 255, bad: true},
		{have: []byte{0xcd, 1}, most: 255, bad: true},
	} {
		d := decoder{buf: test.have}
		v, err := d.scalar(0)
		n := v.number
		if f := (field{kind: number, max: test.most}); err == nil && !f.accepts(v) {
			err = errMalformed
		}
		if (err != nil) != test.bad || (err == nil && (n != test.want || d.pos != len(test.have))) {
			t.Errorf("%x: have %d, %v, want %d, an error: %v", test.have, n, err, test.want, test.bad)
		}
	}
}

func TestDecoderBytes(t *testing.T) {
	for _, test := range []struct {
		have string
		most uint64
		want string
		bad  bool
	}{
		{have: "\xc0", want: ""},
		{have: "\xa2ab", most: 2, want: "ab"},
		{have: "\xa2ab", most: 1, bad: true},
		{have: "\xa2a", most: 2, bad: true},
		{have: "\xc4\x02ab", most: 2, want: "ab"},
		{have: "\xc5\x00\x02ab", most: 2, want: "ab"},
		{have: "\xc6\x00\x00\x00\x02ab", most: 2, want: "ab"},
		{have: "\xd9\x02ab", most: 2, want: "ab"},
		{have: "\xda\x00\x02ab", most: 2, want: "ab"},
		{have: "\xdb\x00\x00\x00\x02ab", most: 2, want: "ab"},
		{have: "\xdb\xff\xff\xff\xff", most: math.MaxUint32, bad: true},
		{have: "\x92\x01\x02", most: 2, bad: true}, // an array
		{have: "\x01", most: 2, bad: true},
		{have: "", most: 2, bad: true},
	} {
		d := decoder{buf: []byte(test.have)}
		v, err := d.scalar(test.most)
		b := v.bytes
		if err == nil && v.kind != text {
			err = errMalformed
		}
		if (err != nil) != test.bad || (err == nil && (string(b) != test.want || d.pos != len(test.have))) {
			t.Errorf("%q: have %q, %v, want %q, an error: %v", test.have, b, err, test.want, test.bad)
		}
	}
}

func TestDecoderObjects(t *testing.T) {
	number, name := value{}, value{}
	fields := []field{
		{name: "N", kind: 0, max: 9, dest: &number},
		{name: "S", kind: text, max: 3, optional: true, dest: &name},
		{name: "B", kind: boolean, optional: true},
		{name: "A", kind: address, optional: true},
		{name: "V", kind: version, optional: true},
	}
	tall := make([]any, 0, 32)
	for range 14 {
		tall = append(tall, "x", 1)
	}
	for _, test := range []struct {
		have []byte
		want string
		bad  bool
	}{
		{have: pack("N", 3)},
		{have: pack("N", 3, "S", "abc", "B", true, "A", []byte{1, 2, 3, 4}, "V", ours), want: "abc"},
		{have: pack("A", make([]byte, 16), "N", 3)},
		{have: pack("later", "x", "N", 3, "more", 1, "none", nil, "flag", false)},
		{have: pack(append(tall, "N", 3)...)},
		{have: pack(), bad: true},
		{have: pack("S", "abc"), bad: true},
		{have: pack("N", 3, "N", 3), bad: true},
		{have: pack("N", 10), bad: true},
		{have: pack("N", 3, "S", "abcd"), bad: true},
		{have: pack("N", 3, "B", 1), bad: true},
		{have: pack("N", 3, "A", []byte{1, 2, 3}), bad: true},
		{have: pack("N", 3, "A", nil), bad: true},
		{have: pack("N", 3, "V", []byte{1, 5, 2}), bad: true},
		{have: pack("N", 3, "V", []byte{3, 5, 3, 0, 0, 0}), bad: true},
		{have: pack("N", 3, "V", []byte{1, 1, 1, 0, 0, 0}), bad: true},
		{have: pack("N", 3, "V", []byte{0, 5, 2, 0, 0, 0}), bad: true},
		{have: pack("N", 3, "V", []byte{1, 5, 2, 0, 1, 1}), bad: true},
		{have: pack("N", 3, "x", raw{0x91, 1}), bad: true},       // an array
		{have: pack("N", 3, "x", raw{0x80}), bad: true},          // a map
		{have: pack("N", 3, "x", raw{0xc7, 1, 5, 0}), bad: true}, // an extension
		{have: pack("N", 3, strings.Repeat("x", maxKey+1), 1), bad: true},
		{have: []byte{0xde, 0, 1, 0xa1, 'N', 3}, bad: true}, // a longer form of a map
		{have: []byte{0x91, 3}, bad: true},
		{have: pack("N", 3)[:3], bad: true},
	} {
		number, name = value{number: 77}, value{bytes: []byte("of the last one")}
		d := decoder{buf: test.have}
		err := d.decodeMap(fields)
		if (err != nil) != test.bad {
			t.Errorf("%x: have %v, want an error: %v", test.have, err, test.bad)
		}
		if err == nil && (number.number != 3 || string(name.bytes) != test.want || d.pos != len(test.have)) {
			t.Errorf("%x: have %v, %q", test.have, number, name.bytes)
		}
	}
}

// Data that arrives in pieces decodes like complete data, and takes at most
// twice as much memory as has arrived.
func TestDecoderOfStreams(t *testing.T) {
	body := pushPullBody(true, ours, ours, ours)
	body = slices.Concat(body[:1], pack("Nodes", 3, "UserStateLen", 100_000, "Join", true),
		body[1+len(pack("Nodes", 3, "UserStateLen", 0, "Join", true)):], make([]byte, 100_000))
	in := &inspector{label: label}
	for name, r := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "at the end": iotest.DataErrReader} {
		room := 0
		have, err := in.inspectStream(r(bytes.NewReader(labeled(body))), accepted,
			func(n int) error { room = n; return nil })
		if err != nil || !bytes.Equal(have, body) {
			t.Errorf("%s: have %d bytes, %v, want %d", name, len(have), err, len(body))
		}
		if room > 3*len(body) {
			t.Errorf("%s: have room of %d", name, room)
		}
	}
	for n := range 400 {
		if _, err := in.inspectStream(bytes.NewReader(labeled(body)[:n]), accepted,
			func(int) error { return nil }); n == 0 && err != io.EOF || n > 0 &&
			!errors.Is(err, errCutShort) {
			t.Fatalf("cut off at %d: have %v", n, err)
		}
	}
	for nodes, want := range map[int]error{0: nil, 1: errTooLarge} {
		head := message(pushPullMsg, "Nodes", nodes, "UserStateLen", maxStream, "Join", true)
		head = append(head, pushPullBody(true, slices.Repeat([][]byte{ours}, nodes)...)[len(pushPullBody(true)):]...)
		huge := io.MultiReader(bytes.NewReader(labeled(head)), zeros{})
		if _, err := in.inspectStream(huge, accepted, func(int) error { return nil }); !errors.Is(err, want) {
			t.Errorf("8 MB and %d members: have %v, want %v", nodes, err, want)
		}
	}
	full := errors.New("full")
	_, err := in.inspectStream(bytes.NewReader(labeled(body)), accepted, func(n int) error {
		if n > 10_000 {
			return full
		}
		return nil
	})
	expect.ErrorIs(t, err, full, "no room")
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
