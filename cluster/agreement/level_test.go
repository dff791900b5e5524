package agreement

import (
	"errors"
	"strings"
	"testing"
)

// next is a build that knows one level more than this one.
var next = Build{Level: Newest + 1, Release: "v9.1.0"}

func TestLevels(t *testing.T) {
	s := do(t, New(), found, ringOf(1, 1, 2), Boot{Node: node(1), Boot: 7, Level: Newest + 1}, Boot{Node: node(2), Boot: 8})
	apply := func(b *Build, e Entry) Result {
		t.Helper()
		raw, err := next.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		var r Result
		s, r = b.Apply(s, s.Index+1, raw, nil)
		return r
	}
	refused := func(e Entry, why string) {
		t.Helper()
		before := s.Level
		if r := apply(&next, e); !errors.Is(r.Err, ErrRejected) || !strings.Contains(r.Err.Error(), why) || s.Level != before {
			t.Errorf("have %v at level %d, want %q", r.Err, s.Level, why)
		}
	}
	refused(Raise{Level: Newest}, "is 1 already")
	refused(Raise{Level: Newest + 1}, "knows feature level 1")
	if r := apply(&next, Boot{Node: node(2), Boot: 9, Level: Newest + 1, Release: "v9.1.0", Zones: "2031a"}); r.Err != nil || s.Knows(node(2)) != Newest+1 {
		t.Errorf("have %v", r.Err)
	}
	// An entry of a later level may not be written before the level is raised.
	raw := append(next.signature([]byte{entryMark, byte(kindOf(Empty{})), entryFormat}, Newest+1), 0, 2, '{', '}')
	if err := next.Proposes(s, raw); !errors.Is(err, ErrRejected) {
		t.Errorf("have %v", err)
	}
	if after, r := next.Apply(s, s.Index+1, raw, nil); !errors.Is(r.Err, ErrRejected) || after.Index != s.Index+1 {
		t.Errorf("have %v", r.Err)
	}
	before := s
	if r := apply(&This, Raise{Level: Newest + 1}); !errors.As(r.Err, new(*Unreadable)) || s != before {
		t.Errorf("a build that doesn't know the level went on: %v", r.Err)
	}
	if r := apply(&next, Raise{Level: Newest + 1}); r.Err != nil || s.Level != Newest+1 {
		t.Errorf("have %v", r.Err)
	}
	if err := next.Proposes(s, raw); err != nil {
		t.Error(err)
	}
	refused(Raise{Level: Newest}, "already")
	refused(Boot{Node: node(1), Boot: 17, Level: Newest}, "the cluster is at 2")
	b, err := next.AppendSnapshot(nil, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := This.Parse(b); !errors.As(err, new(*Unreadable)) {
		t.Errorf("have %v", err)
	}
	if back, err := next.Parse(b); err != nil || back.Level != s.Level || back.Boots[node(2)].Zones != "2031a" {
		t.Errorf("have %v", err)
	}
	if alone := do(t, New(), Found{Cluster: found.Cluster, Secret: found.Secret, Level: 1}); alone.Level != 1 {
		t.Errorf("have level %d", alone.Level)
	}
}
