package top

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/rlnode/rlnode/internal/wire"
)

func readPart(b []byte) (part Part, err error) {
	return part, wire.Decode(b, &part, "list")
}

// A part survives encoding and decoding.
func TestPart(t *testing.T) {
	want := Part{[]Subject{{Rule: "r", Key: []string{"a", ""}, Count: 5, Checks: 9}, {Rule: "s", Count: 1}}}
	have, err := readPart(wire.Encode(nil, &want))
	if err != nil || !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v, %v", have, err)
	}
}

// A list from another node is validated before it is used.
func TestPartOfStrangers(t *testing.T) {
	good := wire.Encode(nil, &Part{[]Subject{{Rule: "r", Key: []string{"a", "b"}, Count: 3, Checks: 4}}})
	for cut := range good {
		if part, err := readPart(good[:cut]); err == nil {
			t.Errorf("cut at %d: have %v, want an error", cut, part)
		}
	}
	if _, err := readPart(binary.AppendUvarint([]byte{1}, 1<<40)); err == nil {
		t.Error("a name of a terabyte: want an error")
	}
}

func FuzzPart(f *testing.F) {
	f.Add(wire.Encode(nil, &Part{[]Subject{{Rule: "r", Key: []string{"a", ""}, Count: 5, Checks: 9}}}))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = readPart(b) })
}
