package rules

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules/document"
)

// numbered returns a small rules file whose tier holds n.
func numbered(n int) string {
	return fmt.Sprintf(`version: 1
rules:
  - name: tenant   # a comment
    key: [tenant]
    tiered: true
tiers:
  free: {limits: [{limit: %d, per: 1h}]}
default_tier: free
`, n)
}

// tierAmount returns the number that a document's tier holds.
func tierAmount(doc *document.Document) int {
	if doc == nil || len(doc.Tiers) == 0 || len(doc.Tiers[0].Limits) == 0 {
		return 0
	}
	return int(doc.Tiers[0].Limits[0].Limit)
}

func wholeChange(n int) document.Change {
	return document.Change{Part: document.WholeDocument, Body: []byte(numbered(n))}
}

func tierChange(n int) document.Change {
	return document.Change{Part: document.TierPart, Name: "free", Body: fmt.Appendf(nil, "{limits: [{limit: %d, per: 1h}]}", n)}
}

var noon = time.Date(2026, 5, 4, 12, 0, 0, 123_456_789, time.FixedZone("east", 7200))

func mustWrite(t testing.TB, h *History, c document.Change) *History {
	t.Helper()
	next, err := h.Write(Write{Change: c, By: "test", When: noon})
	expect.NoError(t, err)
	return next
}

func bytesOf(t testing.TB, h *History) []byte {
	t.Helper()
	return h.AppendBinary(nil)
}

func readBack(t testing.TB, h *History) *History {
	t.Helper()
	back, err := ParseHistory(bytesOf(t, h))
	expect.NoError(t, err)
	return back
}

func TestNoVersionYet(t *testing.T) {
	for _, h := range []*History{NewHistory(), {}, readBack(t, NewHistory())} {
		doc, v := h.Current()
		if doc != nil || v != (Version{}) || h.Set() != nil || len(h.Versions()) != 0 {
			t.Error("a new history has a version")
		}
		if _, err := h.DocumentAt(1); !errors.Is(err, document.ErrNotFound) {
			t.Errorf("have %v", err)
		}
	}
}

func TestFirstOnly(t *testing.T) {
	seed := Write{Change: wholeChange(1), OnlyFirst: true, By: "seed", When: noon}
	h, err := NewHistory().Write(seed)
	expect.NoError(t, err)
	if again, err := h.Write(seed); !errors.Is(err, ErrConflict) || again != nil {
		t.Errorf("seeded twice: %v", err)
	}
	for _, h := range []*History{h, readBack(t, h)} {
		doc, v := h.Current()
		want := Version{Number: 1, When: noon.UTC().Truncate(time.Millisecond), By: "seed",
			What: "document", Size: len(numbered(1)), Applied: 1}
		if v != want || h.Set().Version != 1 || h.Set().Document != doc {
			t.Errorf("have %+v, want %+v", v, want)
		}
		if text := doc.YAML(); string(text) != numbered(1) {
			t.Errorf("have %q", text)
		}
	}
}

// Every kept version keeps its content, and a decoded history continues exactly like the original.
func TestVersionsReplay(t *testing.T) {
	h, read := NewHistory(), NewHistory()
	const last = 137
	for n := 1; n <= last; n++ {
		c := tierChange(n)
		if n == 1 || n%13 == 1 && (n <= 40 || n >= 120) {
			c = wholeChange(n)
		}
		h, read = mustWrite(t, h, c), mustWrite(t, read, c)
		if doc, v := h.Current(); tierAmount(doc) != n || v.Number != int64(n) || h.Set().Version != int64(n) {
			t.Fatalf("version %d says %d, want %d", v.Number, tierAmount(doc), n)
		}
		if n%7 == 0 {
			read = readBack(t, read)
		}
		if !bytes.Equal(bytesOf(t, h), bytesOf(t, read)) {
			t.Fatalf("version %d: histories differ", n)
		}
		if n%10 == 0 || n == last {
			checkVersions(t, h, n)
			checkVersions(t, readBack(t, h), n)
		}
	}
	expect.Equal(t, len(h.versions), KeptVersions, "versions are kept")
}

func checkVersions(t *testing.T, h *History, last int) {
	t.Helper()
	vs := h.Versions()
	if want := min(last, KeptVersions); len(vs) != want {
		t.Fatalf("%d versions, want %d", len(vs), want)
	}
	for i, v := range vs {
		n := last - i
		if int(v.Number) != n || !v.When.Equal(noon.Truncate(time.Millisecond)) || v.By != "test" || v.Size == 0 {
			t.Fatalf("have %+v, want number %d", v, n)
		}
		if v.What != "tier free" && v.What != "document" {
			t.Fatalf("version %d: what is %q", n, v.What)
		}
		doc, err := h.DocumentAt(v.Number)
		if err != nil || tierAmount(doc) != n {
			t.Fatalf("version %d says %d (%v)", n, tierAmount(doc), err)
		}
	}
	for _, n := range []int64{-1, 0, int64(last + 1), int64(last - KeptVersions)} {
		if _, err := h.DocumentAt(n); !errors.Is(err, document.ErrNotFound) {
			t.Fatalf("version %d: have %v, want ErrNotFound", n, err)
		}
	}
}

// A history doesn't change when writes create others from it.
func TestHistoriesBranch(t *testing.T) {
	base := NewHistory()
	for n := 1; n <= 60; n++ {
		base = mustWrite(t, base, tierFirst(n))
	}
	before := bytesOf(t, base)
	one, other := mustWrite(t, base, tierChange(1000)), mustWrite(t, base, tierChange(2000))
	for n := range 20 {
		one, other = mustWrite(t, one, tierChange(1001+n)), mustWrite(t, other, tierChange(2001+n))
	}
	if !bytes.Equal(before, bytesOf(t, base)) {
		t.Error("a history changed")
	}
	for n := int64(61); n <= 81; n++ {
		a, errA := one.DocumentAt(n)
		b, errB := other.DocumentAt(n)
		if errA != nil || errB != nil || tierAmount(a) != int(939+n) || tierAmount(b) != int(1939+n) {
			t.Fatalf("version %d: %d and %d (%v, %v)", n, tierAmount(a), tierAmount(b), errA, errB)
		}
	}
}

func tierFirst(n int) document.Change {
	if n == 1 {
		return wholeChange(n)
	}
	return tierChange(n)
}

func bigDocument(subjects int) []byte {
	var b bytes.Buffer
	b.WriteString(numbered(1))
	b.WriteString("subjects:\n  tenant:\n")
	for i := range subjects {
		fmt.Fprintf(&b, "    tenant-%d: {tier: free}\n", i)
	}
	return b.Bytes()
}

// packedBytes returns how many bytes of compressed text h holds.
func packedBytes(h *History) (size int) {
	for _, v := range h.versions {
		size += len(v.packed)
	}
	return size
}

// randomComment returns a comment of about n bytes that can hardly be compressed.
func randomComment(random *rand.Rand, n int) []byte {
	b := make([]byte, n*3/4)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return append(append([]byte("# "), base64.StdEncoding.EncodeToString(b)...), '\n')
}

// TestHistory_KeepsFifty: fifty versions of a large document are kept if they compress well.
func TestHistory_KeepsFifty(t *testing.T) {
	big := bigDocument(3_000)
	h := mustWrite(t, NewHistory(), document.Change{Part: document.WholeDocument, Body: big})
	for n := 2; n <= 60; n++ {
		h = mustWrite(t, h, tierChange(n))
	}
	if n, size := len(h.Versions()), packedBytes(h); n != KeptVersions || size > MaxHistory {
		t.Errorf("have %d versions in %d bytes, want %d in at most %d", n, size, KeptVersions, MaxHistory)
	}
	doc, err := h.DocumentAt(37)
	if err != nil || tierAmount(doc) != 37 {
		t.Errorf("version 37: have %d, %v, want 37", tierAmount(doc), err)
	}
}

// TestHistory_KeepsTenOfTheLargest: at least ten versions are kept, whatever
// their size, and no more than fit beyond these.
func TestHistory_KeepsTenOfTheLargest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	write := func(h *History, n, size int) *History {
		return mustWrite(t, h, document.Change{Body: append([]byte(numbered(n)), randomComment(random, size)...)})
	}
	h := NewHistory()
	for n := 1; n <= 12; n++ {
		h = write(h, n, 7<<20)
	}
	vs := h.Versions()
	if len(vs) != MinVersions || packedBytes(h) < MaxHistory {
		t.Fatalf("have %d versions in %d bytes, want %d in more than %d", len(vs), packedBytes(h),
			MinVersions, MaxHistory)
	}
	if doc, err := readBack(t, h).DocumentAt(3); err != nil || tierAmount(doc) != 3 {
		t.Errorf("version 3: have %d, %v, want 3", tierAmount(doc), err)
	}
	if _, err := h.DocumentAt(2); !errors.Is(err, document.ErrNotFound) {
		t.Errorf("version 2: have %v, want ErrNotFound", err)
	}
	for n := 13; n <= 60; n++ { // small ones take the place of large ones
		h = mustWrite(t, h, wholeChange(n))
	}
	expect.Equal(t, len(h.Versions()), KeptVersions, "versions")
}

// TestVersion_Applied: a version names the last one that was written as a
// whole, other than from the dashboard.
func TestVersion_Applied(t *testing.T) {
	h := NewHistory()
	for i, test := range []struct {
		c    document.Change
		via  string
		want int64
	}{
		{tierChange(1), ViaAPI, 0},
		{wholeChange(2), ViaSeed, 2},
		{tierChange(3), ViaAPI, 2},
		{wholeChange(4), ViaDashboard, 2},
		{wholeChange(5), ViaApply, 5},
		{tierChange(6), ViaDashboard, 5},
		{wholeChange(7), ViaAPI, 7},
		{wholeChange(8), ViaRollback, 8},
	} {
		next, err := h.Write(Write{Change: test.c, Via: test.via, Message: "because", By: "ann", When: noon})
		expect.NoError(t, err)
		h = readBack(t, next)
		_, v := h.Current()
		if v.Applied != test.want || v.Via != test.via || v.Message != "because" {
			t.Errorf("version %d: have %+v, want applied %d, via %q", i+1, v, test.want, test.via)
		}
	}
	h, err := h.Reissue("region us joins", "us", noon)
	expect.NoError(t, err)
	if _, v := h.Current(); v.Applied != v.Number {
		t.Errorf("a version that changes nothing: have %+v, want applied %d", v, v.Number)
	}
}

func TestRefusedWrites(t *testing.T) {
	h := mustWrite(t, NewHistory(), wholeChange(1))
	before := bytesOf(t, h)
	var invalid document.Errors
	isInvalid := func(err error) bool { return errors.As(err, &invalid) && !errors.Is(err, ErrConflict) }
	isConflict := func(err error) bool { return errors.Is(err, ErrConflict) }
	tests := []struct {
		name  string
		write Write
		want  func(error) bool
	}{
		{"conflict", Write{Change: wholeChange(2), IfMatch: 7}, isConflict},
		{"older", Write{Change: wholeChange(2), IfMatch: -1}, isConflict},
		{"not the first", Write{Change: wholeChange(2), OnlyFirst: true, IfMatch: 1}, isConflict},
		{"invalid document", Write{Change: document.Change{Body: []byte("version: 1\nrulez: []\n")}}, isInvalid},
		{"deleted document", Write{Change: document.Change{Delete: true}}, isInvalid},
		{"invalid piece",
			Write{Change: document.Change{Part: document.TierPart, Name: "free", Body: []byte("{limits: [{limit: -1, per: 1h}]}")}},
			isInvalid},
		{"too large", Write{Change: document.Change{Body: make([]byte, document.MaxDocument+1)}}, isInvalid},
		{"no text", Write{Change: document.Change{Part: document.RulePart, Name: "\xff"}}, isInvalid},
		{"not found", Write{Change: document.Change{Part: document.RulePart, Name: "no", Delete: true}},
			func(err error) bool { return errors.Is(err, document.ErrNotFound) }},
		{"unknown part", Write{Change: document.Change{Part: 99}},
			func(err error) bool { return errors.Is(err, document.ErrNotFound) || isInvalid(err) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if next, err := h.Write(tt.write); !tt.want(err) || next != nil {
				t.Errorf("have %v", err)
			}
			if !bytes.Equal(before, bytesOf(t, h)) {
				t.Error("something changed")
			}
		})
	}
	if _, err := NewHistory().Write(Write{Change: wholeChange(1), IfMatch: 1}); !isConflict(err) {
		t.Errorf("have %v", err)
	}
	next, err := h.Write(Write{Change: wholeChange(2), IfMatch: 1, By: strings.Repeat("ä", 500) + "\xff"})
	expect.NoError(t, err)
	if _, v := next.Current(); v.Number != 2 || len(v.By) != maxBy {
		t.Errorf("have %+v", v)
	}
	expect.DeepEqual(t, readBack(t, next).Versions(), next.Versions(), "readBack(t, next).Versions()")
}

// The first version may be a piece.
func TestFirstPiece(t *testing.T) {
	h := mustWrite(t, NewHistory(),
		document.Change{Part: document.TierPart, Name: "free", Body: []byte("{limits: [{limit: 3, per: 1h}]}")})
	if doc, v := h.Current(); tierAmount(doc) != 3 || v.What != "tier free" {
		t.Errorf("have %+v", v)
	}
	h = mustWrite(t, h, document.Change{Part: document.TierPart, Name: "free", Delete: true})
	if doc, v := readBack(t, h).Current(); tierAmount(doc) != 0 || v.What != "delete tier free" {
		t.Errorf("have %+v", v)
	}
	if doc, err := h.DocumentAt(1); err != nil || tierAmount(doc) != 3 {
		t.Errorf("have %d, %v", tierAmount(doc), err)
	}
}

// seal appends the checksum of b.
func seal(b []byte) []byte { return wire.AppendSum(b, 0) }

func TestDamagedHistories(t *testing.T) {
	h := mustWrite(t, NewHistory(), wholeChange(1))
	for n := 2; n <= 5; n++ {
		h = mustWrite(t, h, tierChange(n))
	}
	good := bytesOf(t, h)
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 0x10
		if _, err := ParseHistory(b); !errors.Is(err, ErrHistory) {
			t.Fatalf("byte %d: have %v", i, err)
		}
		if _, err := ParseHistory(good[:i]); !errors.Is(err, ErrHistory) {
			t.Fatalf("cut at %d: have %v", i, err)
		}
	}
	body := good[:len(good)-4]
	doc, _ := h.Current()
	unknownKey := wire.Deflate(nil, []byte(strings.Replace(doc.Source(), "default_tier", "default_tire", 1)))
	if len(unknownKey) != len(h.versions[4].packed) {
		unknownKey = append(binary.AppendUvarint(nil, uint64(len(unknownKey))), unknownKey...)
		h.versions[4].packed = wire.AppendText(nil, h.versions[4].packed)
	}
	tests := map[string][]byte{
		"more behind":    append(bytes.Clone(body), 0),
		"one too few":    append([]byte{historyFormat, 4}, body[2:]...),
		"one too many":   append([]byte{historyFormat, 6}, body[2:]...),
		"no number":      append([]byte{historyFormat, 5, 0}, body[3:]...),
		"numbers end":    append(append([]byte{historyFormat, 5}, binary.AppendUvarint(nil, 1<<63-3)...), body[3:]...),
		"numbers wrap":   append(append([]byte{historyFormat, 5}, binary.AppendUvarint(nil, 1<<64-3)...), body[3:]...),
		"endless number": append([]byte{historyFormat, 5}, bytes.Repeat([]byte{0xff}, 20)...),
		"very many":      append([]byte{historyFormat}, binary.AppendUvarint(nil, 1<<60)...),
		"another form":   append([]byte{1}, body[1:]...),
		"no rules":       bytes.Replace(body, h.versions[4].packed, unknownKey, 1),
		"not packed": bytes.Replace(body, h.versions[4].packed,
			bytes.Repeat([]byte{0xff}, len(h.versions[4].packed)), 1),
	}
	for name, b := range tests {
		if bytes.Equal(b, body) {
			t.Fatalf("%s: changed nothing", name)
		}
	}
	for name, b := range tests {
		if back, err := ParseHistory(seal(b)); !errors.Is(err, ErrHistory) || back != nil {
			t.Errorf("%s: have %v, want ErrHistory", name, err)
		}
	}
}

func FuzzParseHistory(f *testing.F) {
	h := NewHistory()
	f.Add(bytesOf(f, h))
	for n := 1; n <= 20; n++ {
		h = mustWrite(f, h, tierFirst(n))
		if n == 1 || n == 3 || n == 20 {
			b := bytesOf(f, h)
			f.Add(b[:len(b)-4])
		}
	}
	gaps := bytesOf(f, adopted(f, adopted(f, NewHistory(), 7, 70, false), 12, 120, false))
	f.Add(gaps[:len(gaps)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		// Mutations rarely guess a checksum.
		for _, b := range [][]byte{b, seal(bytes.Clone(b))} {
			h, err := ParseHistory(b)
			if err != nil {
				if !errors.Is(err, ErrHistory) || h != nil {
					t.Fatalf("have %v", err)
				}
				continue
			}
			for _, v := range h.Versions() {
				_, _ = h.DocumentAt(v.Number) // may fail, must not panic
			}
			again := readBack(t, h)
			if !reflect.DeepEqual(again.Versions(), h.Versions()) {
				t.Fatal("decoding again gives another history")
			}
			if next, err := h.Write(Write{Change: wholeChange(3)}); err != nil ||
				tierAmount(readBack(t, next).doc) != 3 {
				t.Fatalf("can't go on: %v", err)
			}
		}
	})
}

// BenchmarkSmallWrite measures changing one tier in a document with 20,000 subjects.
func BenchmarkSmallWrite(b *testing.B) {
	h := mustWrite(b, NewHistory(), document.Change{Part: document.WholeDocument, Body: bigDocument(20_000)})
	c := document.Change{Part: document.TierPart, Name: "free", Body: []byte("{limits: [{limit: 7, per: 1m}]}")}
	b.ReportAllocs()
	for b.Loop() {
		mustWrite(b, h, c)
	}
}
