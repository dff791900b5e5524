package agreement

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules/document"
)

// rich returns a state with content in every field.
func rich(t testing.TB) *State {
	s := do(t, New(), found, ringOf(1, 1, 2, 3), RegisterProcess{Node: node(1), Boot: 7},
		RegisterProcess{Node: node(1), Boot: 8}, Reign{4}, EndNode{Node: node(2), Generation: 0},
		EndNode{Node: node(77), Generation: 0}, write(1, 5), ringOf(2, 1, 2, 3, 4))
	for _, e := range []Entry{
		WriteRules{Request: RequestID{2}, Change: write(0, 0).Change, OnlyFirst: true},
		WriteRules{Request: RequestID{3}, Change: write(0, 0).Change},
	} {
		s, _ = s.Apply(s.Index+1, encoded(t, e))
	}
	return s
}

func TestSnapshots(t *testing.T) {
	settled := do(t, New(), found, ringOf(1, 1, 2, 3), write(1, 1))
	for _, s := range []*State{New(), do(t, New(), found), settled, rich(t), moved(t)} {
		back := reread(t, s)
		if (back.From == back.To) != back.Settled || back.SigningKey == nil != (s.SigningKey == nil) {
			t.Errorf("have %+v", back)
		}
		for _, e := range []Entry{SettleMove{Epoch: s.Epoch}, ringOf(s.Epoch+1, 1, 5),
			EndNode{Node: node(5), Generation: 0}, write(9, 9), Forget{node(3)}} {
			var a, b Result
			s, a = s.Apply(s.Index+1, encoded(t, e))
			back, b = back.Apply(back.Index+1, encoded(t, e))
			if (a.Err == nil) != (b.Err == nil) || a.Version != b.Version ||
				!bytes.Equal(snapshotOf(t, s), snapshotOf(t, back)) {
				t.Fatalf("%T: the states diverge: %v, %v", e, a.Err, b.Err)
			}
		}
	}
	prefixed, err := rich(t).AppendBinary([]byte("before"))
	if err != nil || string(prefixed[:6]) != "before" || !bytes.Equal(prefixed[6:], snapshotOf(t, rich(t))) {
		t.Errorf("have %q, %v", prefixed[:6], err)
	}
}

func seal(b []byte) []byte { return wire.AppendSum(b, 0) }

func TestDamagedSnapshots(t *testing.T) {
	good := snapshotOf(t, rich(t))
	for i := 0; i < len(good); i += 1 + i/100 {
		b := bytes.Clone(good)
		b[i] ^= 1
		if s, err := ThisBuild.Parse(b); !errors.Is(err, ErrSnapshot) || s != nil {
			t.Fatalf("byte %d: have %v", i, err)
		}
	}
	for i := 0; i < len(good); i += 97 {
		if _, err := ThisBuild.Parse(good[:i]); !errors.Is(err, ErrSnapshot) {
			t.Fatalf("cut at %d: have %v", i, err)
		}
		if _, err := ThisBuild.Parse(seal(bytes.Clone(good[:i]))); !errors.Is(err, ErrSnapshot) {
			t.Fatalf("cut and sealed at %d: have %v", i, err)
		}
	}
	if _, err := ThisBuild.Parse(seal(append(bytes.Clone(good[:len(good)-4]), 0))); !errors.Is(err, ErrSnapshot) {
		t.Errorf("trailing data: have %v", err)
	}
}

// A snapshot whose parts contradict one another is refused, even with the right checksum.
func TestContradictorySnapshots(t *testing.T) {
	tests := map[string]func(*State){
		"secret":        func(s *State) { s.SigningKey = s.SigningKey[1:] },
		"no secret":     func(s *State) { s.SigningKey = nil },
		"secret alone":  func(s *State) { s.Cluster = ClusterID{} },
		"level":         func(s *State) { s.Level = 0 },
		"check":         func(s *State) { s.ComparedHash.Index = s.Index/HashEvery*HashEvery + HashEvery },
		"odd check":     func(s *State) { s.ComparedHash.Index = 1 },
		"epoch":         func(s *State) { s.Epoch = -1 },
		"no epoch":      func(s *State) { s.Epoch = 0 },
		"no ring":       func(s *State) { s.From = nil },
		"settled":       func(s *State) { s.Settled = true },
		"not settled":   func(s *State) { s.To = s.From },
		"last ended":    func(s *State) { s.LastEnded = s.Index + 1 },
		"revision":      func(s *State) { s.Revision = s.Index + 1 },
		"no process":    func(s *State) { s.Processes[node(1)] = Process{Index: 1} },
		"later process": func(s *State) { s.Processes[node(1)] = Process{Boot: 1, Index: s.Index + 1} },
		"too many processes": func(s *State) {
			s.Processes[node(1)] = Process{Boot: 1, Former: make([]uint64, maxFormer+1)}
		},
		"a process twice": func(s *State) { s.Processes[node(1)] = Process{Boot: 1, Former: []uint64{2, 1}} },
		"unknown member":  func(s *State) { delete(s.Members, node(4)) },
		"generation":      func(s *State) { s.Generations[node(2)] = 0 },
		"hidden stranger": func(s *State) { s.Strangers = nil },
		"false stranger":  func(s *State) { s.Strangers = []ring.NodeID{node(2)} },
		"twice a stranger": func(s *State) {
			s.Strangers = append(s.Strangers, s.Strangers[0])
			s.Generations[node(78)] = 1
		},
		"no answer":       func(s *State) { s.Answers[0] = nil },
		"too many":        func(s *State) { s.Answers = make([]*answer, KeptAnswers+1) },
		"too many known":  func(s *State) { manyKnown(s) },
		"member by twice": func(s *State) { s.Members[node(90)] = member(1) },
	}
	for name, harm := range tests {
		s := rich(t)
		harm(s)
		if back, err := ThisBuild.Parse(snapshotOf(t, s)); !errors.Is(err, ErrSnapshot) || back != nil {
			t.Errorf("%s: have %v, want ErrSnapshot", name, err)
		}
	}
}

// TestUnreadableSnapshots: for an intact snapshot with unknown content, the
// error names the release needed. For a damaged one, it does not.
func TestUnreadableSnapshots(t *testing.T) {
	writer := Build{Level: Newest + 1, Release: "v9.1.0"}
	good, err := writer.AppendSnapshot(nil, rich(t))
	expect.NoError(t, err)
	if _, err := ThisBuild.Parse(good); err != nil {
		t.Fatal(err)
	}
	body := good[len(writer.appendOrigin([]byte{snapshotFormat}, 1)) : len(good)-4]
	field := bytes.Replace(body, []byte(`"epoch"`), []byte(`"epoxy"`), 1)
	for name, test := range map[string]struct {
		snapshot []byte
		why      string
	}{
		"level": {append(writer.appendOrigin([]byte{snapshotFormat}, Newest+1), body...),
			"run release v9.1.0 or a later one"},
		"format": {append(writer.appendOrigin([]byte{99}, 1), body...), "release v9.1.0 wrote it"},
		"field":  {append(writer.appendOrigin([]byte{snapshotFormat}, 1), field...), "release v9.1.0 wrote it"},
	} {
		_, err := ThisBuild.Parse(seal(test.snapshot))
		if !errors.As(err, new(*Unreadable)) || !errors.Is(err, ErrSnapshot) ||
			!strings.Contains(err.Error(), test.why) {
			t.Errorf("%s: have %v, want %q", name, err, test.why)
		}
		_, err = ThisBuild.Parse(append(test.snapshot, 1, 2, 3, 4))
		if errors.As(err, new(*Unreadable)) || !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s, damaged: have %v", name, err)
		}
	}
}

// Documents behind those of the held versions are not overlooked.
func TestSnapshotsWithTooManyDocuments(t *testing.T) {
	s := rich(t)
	text := string(documentText(1))
	regions := Regions{Held: []Held{{Version: 1}, {Version: 2}}}
	for _, texts := range [][]string{{text}, {text, text}} {
		err := regions.compile(appendTexts(nil, texts), s.History)
		if (err == nil) != (len(texts) == 1) {
			t.Errorf("%d documents for two versions, one of which is in force: got error %v", len(texts), err)
		}
	}
}

func manyKnown(s *State) {
	for i := range MaxKnown + 1 {
		s.Members[node(i)] = member(i)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []*State{New(), do(f, New(), found), rich(f), moved(f)} {
		b := snapshotOf(f, s)
		f.Add(b[:len(b)-4])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// Mutations rarely guess a checksum.
		for _, b := range [][]byte{b, seal(bytes.Clone(b))} {
			s, err := ThisBuild.Parse(b)
			if err != nil {
				if !errors.Is(err, ErrSnapshot) || s != nil {
					t.Fatalf("have %v", err)
				}
				continue
			}
			back := reread(t, s)
			for _, e := range []Entry{SettleMove{Epoch: s.Epoch}, EndNode{Node: node(1), Generation: 0}, write(9, 9)} {
				if s.Index == 1<<64-1 {
					break
				}
				s, _ = s.Apply(s.Index+1, encoded(t, e))
				back, _ = back.Apply(back.Index+1, encoded(t, e))
			}
			if !bytes.Equal(snapshotOf(t, s), snapshotOf(t, back)) {
				t.Fatal("the states diverge")
			}
		}
	})
}

func FuzzApply(f *testing.F) {
	for _, e := range []Entry{
		found, Empty{}, ringOf(3, 1, 2), Leave{Epoch: 3, Node: node(1)}, SettleMove{Epoch: 2},
		EndNode{Node: node(2), Generation: 1}, Forget{node(3)}, write(5, 5),
		RegisterProcess{Node: node(1), Boot: 7}, SetPrimary{Region: "us", World: WorldID{1}},
		ChangeRegion{Name: "za", When: 5}, ChangeRegion{Name: "us", Remove: true},
		Mark{Version: 4}, Mark{3, 9}, Skipped{Hash: []byte("x")}, Raise{Level: 1}, global(70, ""),
		followed(f, moved(f)), followed(f, begun(f, "us")),
	} {
		f.Add(encoded(f, e))
	}
	states := []*State{New(), rich(f), do(f, rich(f), SettleMove{Epoch: 2}), moved(f)}
	f.Fuzz(func(t *testing.T, entry []byte) {
		for _, s := range states {
			before := snapshotOf(t, s)
			next, r := s.Apply(s.Index+1, entry)
			again, other := s.Apply(s.Index+1, bytes.Clone(entry))
			if errors.As(r.Err, new(*Unreadable)) {
				if next != s || again != s || !errors.Is(r.Err, ErrEntry) {
					t.Fatalf("an entry that can't be read has changed something: %v", r.Err)
				}
				continue
			}
			if next.Index != s.Index+1 || (r.Err == nil) != (other.Err == nil) || r.Version != other.Version {
				t.Fatalf("have %+v and %+v", r, other)
			}
			invariants(t, next)
			reread(t, next)
			if !bytes.Equal(snapshotOf(t, next), snapshotOf(t, again)) || !bytes.Equal(before, snapshotOf(t, s)) {
				t.Fatal("the result depends on more than the entry")
			}
		}
	})
}

// Texts that share nearly everything take little room where they are encoded.
// Their bound is that of what they take once they are decoded.
func TestTextsAreBoundedOnceDecoded(t *testing.T) {
	text := strings.Repeat("x", document.MaxDocument)
	many := slices.Repeat([]string{text}, maxDocumentBytes/len(text)+1)
	if _, err := parseTexts(appendTexts(nil, many), len(many)); err == nil {
		t.Errorf("%d texts of %d bytes: got no error, want one", len(many), len(text))
	}
	few := many[:len(many)-1]
	if _, err := parseTexts(appendTexts(nil, few), len(few)); err != nil {
		t.Errorf("%d texts of %d bytes: got %v, want no error", len(few), len(text), err)
	}
}
