package framing_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/framing"
)

// passed returns how many bytes of text a Checker passes on.
func passed(f *framing.Checker, text string) int {
	n, _ := f.Filter([]byte(text), nil)
	return n
}

// A Checker passes on the same bytes however the input is cut into pieces.
func TestFramingInPieces(t *testing.T) {
	for _, tt := range apitest.FramingCases {
		text := tt.Send + apitest.Behind
		var whole framing.Checker
		want := passed(&whole, text)
		for size := 1; size < 40; size++ {
			var f framing.Checker
			have := 0
			for piece := range slices.Chunk([]byte(text), size) {
				n := passed(&f, string(piece))
				have += n
				if n < len(piece) {
					break
				}
			}
			if f.Err() != whole.Err() {
				t.Fatalf("%s in pieces of %d: have %v, want %v", tt.Name, size, f.Err(), whole.Err())
			}
			// If a line is refused, the pieces before the one that completes it have
			// already been passed on.
			if f.Err() == nil && have != want || have < want-1 ||
				bytes.IndexByte([]byte(text[want:have+max(0, want-have)]), '\n') >= 0 {
				t.Fatalf("%s in pieces of %d: have %d bytes, want %d", tt.Name, size, have, want)
			}
		}
	}
}

// BenchmarkFraming measures the framing of a typical head.
func BenchmarkFraming(b *testing.B) {
	one := []byte("POST /v1/check HTTP/1.1\r\nHost: n\r\nContent-Type: application/json\r\nUser-Agent: me/1.0\r\nAccept: */*\r\nContent-Length: 2\r\n\r\n{}")
	var f framing.Checker
	b.SetBytes(int64(len(one)))
	for b.Loop() {
		if n, err := f.Filter(one, nil); n != len(one) {
			b.Fatal(err)
		}
	}
}
