package replay

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
)

// TestSpoolSorts puts records through a spool, in memory and in a file, and
// compares the order with a stable sort's.
func TestSpoolSorts(t *testing.T) {
	for _, test := range []struct {
		name    string
		bound   int
		records int
		times   int64
		stored  bool
	}{
		{"none", 1 << 30, 0, 1, false},
		{"in memory", 1 << 30, 5000, 700, false},
		{"all at one time", 2 << 20, 60_000, 1, true},
		{"in a file", 2 << 20, 100_000, 5000, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			s := newSpool(test.bound, dir)
			random := rand.New(rand.NewPCG(1, 1))
			type pair struct {
				time int64
				line int64
			}
			var want []pair
			var scratch []byte
			for i := range test.records {
				r := record{line: int64(i), time: random.Int64N(test.times)}
				r.attributes = []rules.Attribute{{Name: "ip", Value: strings.Repeat("x", random.IntN(200))}}
				if i%1000 == 0 { // longer than a window
					r.attributes[0].Value = strings.Repeat("x", 2*windowSize)
				}
				var err error
				if scratch, err = s.add(&r, scratch); err != nil {
					t.Fatal(err)
				}
				want = append(want, pair{r.time, r.line})
			}
			slices.SortStableFunc(want, func(a, b pair) int { return int(a.time - b.time) })
			expect.Equal(t, s.stored > 0, test.stored, "in the file")
			var have []pair
			var r record
			err := s.each(func(time int64, packed []byte) error {
				have = append(have, pair{time, 0})
				err := r.unpack(packed)
				have[len(have)-1].line = r.line
				return err
			})
			expect.NoError(t, err)
			if !slices.Equal(have, want) {
				t.Error("the records are not in the order of a stable sort")
			}
			if err := s.close(); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestSpoolStopsEarly: the reader's error is returned, from memory and from the file.
func TestSpoolStopsEarly(t *testing.T) {
	stop := errors.New("stop")
	for _, bound := range []int{2 << 20, 1 << 30} {
		s := newSpool(bound, t.TempDir())
		var scratch []byte
		for i := range 100_000 {
			var err error
			if scratch, err = s.add(&record{time: int64(i)}, scratch); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		err := s.each(func(int64, []byte) error {
			n++
			if n == 10 {
				return stop
			}
			return nil
		})
		if !errors.Is(err, stop) || n != 10 {
			t.Errorf("bound %d: have %v after %d records, want %v after 10", bound, err, n, stop)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSpoolWithoutDirectory(t *testing.T) {
	s := newSpool(0, "/nowhere/at/all")
	large := record{attributes: []rules.Attribute{{Name: "ip", Value: strings.Repeat("x", chunkSize-100)}}}
	if _, err := s.add(&large, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.add(&large, nil); err == nil {
		t.Error("have no error, want one: the directory does not exist")
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, test := range []struct {
		have string
		want []string
	}{
		{"", nil},
		{"a", []string{"a"}},
		{"a\n", []string{"a"}},
		{"a\n\nb", []string{"a", "", "b"}},
		{"a\r\nb\r\n", []string{"a\r", "b\r"}},
		{long[1:] + "\nb\n", []string{long[1:], "b"}},
		{long + "y\nb\n", []string{long, "b"}},
		{long + long + long + "\nb", []string{long, "b"}},
		{"b\n" + long + "yy", []string{"b", long}},
	} {
		for _, packed := range []bool{false, true} {
			in := io.Reader(strings.NewReader(test.have))
			if packed {
				in = bytes.NewReader(zipped(t, test.have))
			}
			lines, err := newLineReader(iotest.OneByteReader(in))
			expect.NoError(t, err)
			var have []string
			for {
				if err := lines.readLine(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				have = append(have, string(lines.line))
				if cut := len(lines.line) == maxLine; lines.truncated != cut {
					t.Errorf("a line of %d bytes: have cut %v", len(lines.line), lines.truncated)
				}
			}
			if !slices.Equal(have, test.want) {
				t.Errorf("%.20q, zipped %v: have %d lines %.60q, want %d", test.have, packed,
					len(have), fmt.Sprint(have), len(test.want))
			}
		}
	}
}

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	expect.NoError(t, w.Close())
	return b.Bytes()
}
