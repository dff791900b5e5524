package agreement

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

func reread(t testing.TB, s *State) *State {
	t.Helper()
	back, err := ThisBuild.Parse(snapshotOf(t, s))
	expect.NoError(t, err)
	if !bytes.Equal(snapshotOf(t, back), snapshotOf(t, s)) {
		t.Fatal("a snapshot is read and written otherwise")
	}
	return back
}

func TestG9_RepeatedWriteIsAnsweredAsBefore(t *testing.T) {
	change := func(part document.Part, name, body string) document.Change {
		return document.Change{Part: part, Name: name, Body: []byte(body)}
	}
	// Each fits the state before it.
	writes := []WriteRules{
		write(1, 10),
		{Request: RequestID{2}, Change: document.Change{Body: documentText(11)}, IfMatch: 7},
		{Request: RequestID{3}, Change: document.Change{Body: documentText(12)}, OnlyFirst: true},
		{Request: RequestID{4}, Change: document.Change{Part: document.RulePart, Name: "no", Delete: true}},
		{Request: RequestID{5}, Change: change(document.TierPart, "free", "{limits: [{limit: 0, per: 1x}]}")},
		{Request: RequestID{6}, Change: change(document.TierPart, "free", "{limits: [{limit: 13, per: 1h}]}"), IfMatch: 1},
	}
	s, first := New(), []Result{}
	for _, w := range writes {
		var r Result
		s, r = s.Apply(s.Index+1, encoded(t, w))
		first = append(first, r)
	}
	for _, s := range []*State{s, reread(t, s)} {
		for i, w := range writes {
			next, r := s.Apply(s.Index+1, encoded(t, w))
			if next.History != s.History {
				t.Fatalf("write %d was made twice", i)
			}
			s = next
			want := first[i]
			if r.Version != want.Version || (r.Err == nil) != (want.Err == nil) {
				t.Fatalf("write %d: have %+v, want %+v", i, r, want)
			}
			if want.Err == nil {
				continue
			}
			for _, kind := range []error{ErrRejected, rules.ErrConflict, document.ErrNotFound} {
				if errors.Is(r.Err, kind) != errors.Is(want.Err, kind) {
					t.Errorf("write %d: have %v, want %v", i, r.Err, want.Err)
				}
			}
			var a, b document.Errors
			if errors.As(r.Err, &a) != errors.As(want.Err, &b) || r.Err.Error() != want.Err.Error() {
				t.Errorf("write %d: have %v, want %v", i, r.Err, want.Err)
			}
		}
	}
	if _, v := s.History.Current(); v.Number != 2 || first[0].Version != 1 || first[5].Version != 2 {
		t.Errorf("version %d", v.Number)
	}
}

func TestWritesWithoutRequestAreAllMade(t *testing.T) {
	w := write(0, 1)
	s := do(t, New(), w, w, w)
	if _, v := s.History.Current(); v.Number != 3 || len(s.Answers) != 0 {
		t.Errorf("version %d", v.Number)
	}
}

func TestLastRequestsAreRemembered(t *testing.T) {
	request := func(i int) WriteRules {
		w := WriteRules{Change: document.Change{Part: document.RulePart, Name: "no", Delete: true}}
		binary.BigEndian.PutUint32(w.Request[:], uint32(i+1))
		return w
	}
	s := New()
	for i := range KeptAnswers {
		s, _ = s.Apply(s.Index+1, encoded(t, request(i)))
	}
	branch, _ := s.Apply(s.Index+1, encoded(t, write(0xff, 5)))
	for i := range 10 {
		s, _ = s.Apply(s.Index+1, encoded(t, request(KeptAnswers+i)))
	}
	if len(s.Answers) != KeptAnswers || s.answerTo(request(9).Request) != nil ||
		s.answerTo(request(10).Request) == nil ||
		s.answerTo(request(KeptAnswers+9).Request) == nil {
		t.Errorf("%d answers", len(s.Answers))
	}
	if a := branch.Answers[KeptAnswers-1]; a.Request != (RequestID{0xff}) ||
		branch.answerTo(request(0).Request) != nil {
		t.Error("two states share a slice that differs")
	}
	reread(t, s)
}

// The errors that Apply reports for a hostile document are returned in full
// once, and remembered in part.
func TestRememberedMistakesAreBounded(t *testing.T) {
	body := "version: 1\nrules:\n" + strings.Repeat("  - {nam: "+strings.Repeat("ä", 100)+"}\n", 500)
	w := WriteRules{Request: RequestID{1}, Change: document.Change{Body: []byte(body)}}
	s, r := New().Apply(1, encoded(t, w))
	var all, some document.Errors
	if !errors.As(r.Err, &all) || len(all) < 500 {
		t.Fatalf("have %v", r.Err)
	}
	_, r = reread(t, s).Apply(2, encoded(t, w))
	if !errors.As(r.Err, &some) || len(some) < 5 || len(some) > 200 || some[0] != all[0] {
		t.Fatalf("%d mistakes: %v", len(some), r.Err)
	}
	if last := some[len(some)-1].Message; !strings.HasPrefix(last, "and ") || len(r.Err.Error()) > 4*maxAnswer {
		t.Errorf("the last is %q", last)
	}
	long := firstMistakes(document.Errors{{Path: strings.Repeat("ä", maxPhrase),
		Message: "\xff" + strings.Repeat("x", maxPhrase)}})
	if len(long) != 1 || len(long[0].Path) > maxPhrase || len(long[0].Message) > maxPhrase {
		t.Errorf("have %v", long)
	}
}
