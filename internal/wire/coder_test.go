package wire

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
)

// sample has a field of each type.
type sample struct {
	yes    bool
	flags  [8]bool
	raw    [3]byte
	fixed  int64
	float  float64
	number int
	life   time.Duration
	signed int64
	text   string
	texts  []string
	list   []uint64
	some   *uint64
	none   *uint64
	rest   []byte
}

func (s *sample) Code(c *Coder) {
	c.Bool(&s.yes)
	c.Flags(&s.flags[0], &s.flags[1], &s.flags[7])
	c.Raw(s.raw[:])
	Fixed(c, &s.fixed)
	c.Float(&s.float)
	Number(c, &s.number, 300)
	c.Millis(&s.life, time.Minute)
	Varint(c, &s.signed)
	c.Text(&s.text, 8)
	c.Texts(&s.texts, 2, 4)
	List(c, &s.list, 3, 8, func(v *uint64) { Fixed(c, v) })
	Optional(c, &s.some, func(v *uint64) { Number(c, v, 9) })
	Optional(c, &s.none, func(v *uint64) { Number(c, v, 9) })
	c.Rest(&s.rest)
	c.Require(s.number > 0)
}

func sampleValue() sample {
	some := uint64(9)
	return sample{true, [8]bool{1: true, 7: true}, [3]byte{1, 2, 3}, -5, math.Pi, 300, time.Second,
		-1 << 40, "text", []string{"a", ""}, []uint64{1, 1 << 63}, &some, nil, []byte{9}}
}

func TestCoder(t *testing.T) {
	want := sampleValue()
	b := Encode(nil, &want)
	have := sample{list: []uint64{7, 7, 7}, none: new(uint64)}
	if err := Decode(b, &have, "sample"); err != nil || !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v, %v, want %+v", have, err, want)
	}
	for n := range len(b) - len(want.rest) {
		expect.ErrorIs(t, Decode(b[:n], &have, "sample"), ErrMalformed, "%d of %d bytes", n, len(b))
	}
	for name, spoil := range map[string]func(s *sample){
		"number":      func(s *sample) { s.number++ },
		"requirement": func(s *sample) { s.number = 0 },
		"duration":    func(s *sample) { s.life = 2 * time.Minute },
		"text":        func(s *sample) { s.text = "too long a text" },
		"texts":       func(s *sample) { s.texts = make([]string, 3) },
		"optional":    func(s *sample) { *s.some = 10 },
		"list":        func(s *sample) { s.list = make([]uint64, 4) },
	} {
		s := sampleValue()
		spoil(&s)
		expect.ErrorIs(t, Decode(Encode(nil, &s), &have, "sample"), ErrMalformed, "%s", name)
	}
}
