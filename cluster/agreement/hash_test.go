package agreement

import (
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestTheHashTellsWaysApart: equal entries result in equal hashes, also through
// a snapshot. After a different entry or outcome, all hashes differ.
func TestTheHashTellsWaysApart(t *testing.T) {
	same := func(s *State) *State { return do(t, reread(t, s), Reign{3}) }
	s := rich(t)
	a, b := do(t, s, Reign{3}), same(s)
	if a.Hash != b.Hash || a.Hash == s.Hash || a.ComparedHash != b.ComparedHash {
		t.Errorf("have %x and %x", a.Hash, b.Hash)
	}
	if other := do(t, s, Reign{4}); other.Hash == a.Hash {
		t.Error("another entry makes the same hash")
	}
	for name, change := range map[string]func(*State){
		"epoch": func(s *State) { s.Epoch++ }, "hash": func(s *State) { s.Hash[0]++ },
		"members": func(s *State) { s.Members = nil },
		"level":   func(s *State) { s.Level++ }, "revision": func(s *State) { s.Revision++ },
	} {
		astray := *s
		change(&astray)
		if have, _ := astray.Apply(s.Index+1, encoded(t, Reign{3})); have.Hash == a.Hash {
			t.Errorf("another %s makes the same hash", name)
		}
	}
	moved, _ := a.Apply(3*HashEvery+5, encoded(t, Empty{}))
	if moved.ComparedHash.Index != 3*HashEvery || moved.ComparedHash.Hash != a.Hash {
		t.Errorf("have %+v", moved.ComparedHash)
	}
	expect.Equal(t, do(t, moved, Empty{}).ComparedHash, moved.ComparedHash, "do(t, moved, Empty{}).ComparedHash")
}
