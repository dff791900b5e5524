package agreement

import (
	"errors"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// proposed returns an entry as a leader proposes it in a state.
func proposed(t testing.TB, s *State, e Entry) []byte {
	t.Helper()
	b, _, err := ThisBuild.Prepare(s, e)
	expect.NoError(t, err)
	return b
}

// TestAnotherBaseIsRejected: a change prepared for other rules is rejected, and
// is made when it is proposed again.
func TestAnotherBaseIsRejected(t *testing.T) {
	s := do(t, New(), found, write(1, 5))
	for _, e := range []Entry{write(7, 7), SetPrimary{Region: "eu", World: WorldID{1}}, followed(t, moved(t))} {
		late := proposed(t, s, e)
		changed := do(t, s, write(byte(s.Index+9), 6))
		next, r := changed.Apply(changed.Index+1, late)
		if !errors.Is(r.Err, ErrBase) || !errors.Is(r.Err, ErrRejected) ||
			next.History != changed.History || next.Regions != changed.Regions ||
			next.Index != changed.Index+1 {
			t.Errorf("%T: have %v", e, r.Err)
		}
		after, r := next.Apply(next.Index+1, proposed(t, next, e))
		if r.Err != nil {
			t.Errorf("%T, proposed again: have %v", e, r.Err)
		}
		s = after
	}
	// ChangeEntries that change no rules do not depend on them.
	late := proposed(t, s, Reign{5})
	if _, r := do(t, s, write(99, 1)).Apply(s.Index+2, late); r.Err != nil {
		t.Error(r.Err)
	}
}

// TestAnotherResultStopsTheNode: builds that read one document differently
// don't keep running side by side.
func TestAnotherResultStopsTheNode(t *testing.T) {
	s := do(t, New(), found, write(1, 5))
	writer := Build{Level: Newest, Release: "v9.1.0"}
	base, err := s.Edition()
	expect.NoError(t, err)
	good, p, err := writer.Prepare(s, write(2, 6))
	expect.NoError(t, err)
	result, _ := do(t, s, write(2, 6)).Edition()
	for name, terms := range map[string]Transition{
		"document": {base, Edition{result.Number, [32]byte{1}}},
		"number":   {base, Edition{result.Number + 1, result.Hash}}, "none": {base, base},
	} {
		raw, err := writer.encode(write(2, 6), &terms)
		expect.NoError(t, err)
		next, r := ThisBuild.Apply(s, s.Index+1, raw, p)
		if !errors.Is(r.Err, ErrDiffers) || !errors.As(r.Err, new(*Unreadable)) || next != s {
			t.Errorf("%s: have %v", name, r.Err)
		}
	}
	if next, r := ThisBuild.Apply(s, s.Index+1, good, p); r.Err != nil || r.Version != 2 {
		t.Errorf("have %+v", r)
	} else if have, _ := next.Edition(); have != result {
		t.Errorf("have %+v, want %+v", have, result)
	}
	// A wrong write leaves everything as it was.
	bad := write(3, 0)
	bad.IfMatch = 77
	next, r := s.Apply(s.Index+1, proposed(t, s, bad))
	if have, _ := next.Edition(); r.Err == nil || errors.Is(r.Err, ErrBase) || have != base {
		t.Errorf("have %v", r.Err)
	}
}
