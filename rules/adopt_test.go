package rules

import (
	"errors"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

func adopted(t testing.TB, h *History, number int64, n int, replace bool) *History {
	t.Helper()
	next, err := h.Adopt(Version{Number: number, When: noon, By: "them", What: "document", Size: 7},
		numbered(n), replace)
	expect.NoError(t, err)
	return next
}

// An adopted version keeps its original number; numbers may be skipped.
func TestAdoptedVersions(t *testing.T) {
	h := adopted(t, NewHistory(), 7, 70, false)
	h = adopted(t, adopted(t, h, 8, 80, false), 12, 120, false)
	h = mustWrite(t, h, tierChange(130)) // as if this had become the primary
	for _, h := range []*History{h, readBack(t, h)} {
		for number, want := range map[int64]int{7: 70, 8: 80, 12: 120, 13: 130} {
			if doc, err := h.DocumentAt(number); err != nil || tierAmount(doc) != want {
				t.Errorf("version %d says %d (%v), want %d", number, tierAmount(doc), err, want)
			}
		}
		for _, number := range []int64{0, 1, 6, 9, 11, 14} {
			if _, err := h.DocumentAt(number); !errors.Is(err, document.ErrNotFound) {
				t.Errorf("version %d: have %v", number, err)
			}
		}
		vs := h.Versions()
		if len(vs) != 4 ||
			vs[1] != (Version{Number: 12, When: toMillisecond(noon), By: "them", What: "document", Size: 7}) ||
			h.Set().Version != 13 {
			t.Errorf("have %+v", vs)
		}
	}
	for _, number := range []int64{-1, 0, 12, 13, 1<<63 - 1} {
		next, err := h.Adopt(Version{Number: number}, numbered(1), false)
		if !errors.Is(err, ErrConflict) || next != nil {
			t.Errorf("version %d: have %v", number, err)
		}
	}
	var invalid document.Errors
	if _, err := h.Adopt(Version{Number: 99}, "rulez: []", false); !errors.As(err, &invalid) {
		t.Errorf("have %v", err)
	}
	replaced := adopted(t, h, 2, 20, true)
	if vs := replaced.Versions(); len(vs) != 1 || vs[0].Number != 2 || tierAmount(readBack(t, replaced).doc) != 20 {
		t.Errorf("have %+v", vs)
	}
	for n := range 80 {
		h = adopted(t, h, int64(20+3*n), n+1, false)
	}
	if vs := readBack(t, h).Versions(); len(vs) != KeptVersions || vs[0].Number != 257 || vs[49].Number != 110 {
		t.Errorf("%d are kept: %d to %d", len(vs), vs[len(vs)-1].Number, vs[0].Number)
	}
}

// A version without a change has the same document under a new number.
func TestSameDocumentAgain(t *testing.T) {
	if _, err := NewHistory().Reissue("x", "y", noon); !errors.Is(err, ErrConflict) {
		t.Errorf("have %v", err)
	}
	h := mustWrite(t, mustWrite(t, NewHistory(), wholeChange(1)), tierChange(2))
	next, err := h.Reissue("region us joins", "us", noon)
	expect.NoError(t, err)
	doc, v := readBack(t, next).Current()
	if tierAmount(doc) != 2 ||
		v != (Version{Number: 3, When: toMillisecond(noon), By: "us", What: "region us joins", Applied: 1}) ||
		next.Set().Version != 3 {
		t.Errorf("have %d, %+v", tierAmount(doc), v)
	}
	if !next.Set().DividesAs(h.Set()) || tierAmount(mustWrite(t, next, tierChange(9)).doc) != 9 {
		t.Error("the document changed")
	}
}

func TestTextOfDocument(t *testing.T) {
	h := mustWrite(t, NewHistory(), wholeChange(1))
	if text, err := h.doc.Text(); err != nil || text != numbered(1) {
		t.Errorf("have %q, %v", text, err)
	}
	text, err := mustWrite(t, h, tierChange(2)).doc.Text()
	expect.NoError(t, err)
	doc, err := document.Parse([]byte(text))
	if err != nil || tierAmount(doc) != 2 {
		t.Errorf("have %d, %v", tierAmount(doc), err)
	}
}
