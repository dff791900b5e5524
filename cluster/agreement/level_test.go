package agreement

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// next is a build that knows one level more than this one.
var next = Build{Level: Newest + 1, Release: "v9.1.0"}

func TestLevels(t *testing.T) {
	begun := found
	begun.Level = Newest
	s := do(t, New(), begun, ringOf(1, 1, 2),
		RegisterProcess{Node: node(1), Boot: 7, Level: Newest + 1},
		RegisterProcess{Node: node(2), Boot: 8, Level: Newest})
	apply := func(b *Build, e Entry) Result {
		t.Helper()
		raw, err := next.Encode(e)
		expect.NoError(t, err)
		var r Result
		s, r = b.Apply(s, s.Index+1, raw, nil)
		return r
	}
	refused := func(e Entry, why string) {
		t.Helper()
		before := s.Level
		if r := apply(&next, e); !errors.Is(r.Err, ErrRejected) ||
			!strings.Contains(r.Err.Error(), why) || s.Level != before {
			t.Errorf("have %v at level %d, want %q", r.Err, s.Level, why)
		}
	}
	refused(Raise{Level: Newest}, fmt.Sprintf("is already %d", Newest))
	refused(Raise{Level: Newest + 1}, fmt.Sprintf("knows feature level %d", Newest))
	if r := apply(&next,
		RegisterProcess{Node: node(2), Boot: 9, Level: Newest + 1, Release: "v9.1.0",
			Zones: "2031a"}); r.Err != nil || s.KnownLevel(node(2)) != Newest+
		1 {
		t.Errorf("have %v", r.Err)
	}
	// An entry of a later level may not be written before the level is raised.
	raw := append(next.appendOrigin([]byte{entryMark, byte(kindOf(Empty{})), entryFormat}, Newest+1), 0, 2, '{', '}')
	expect.ErrorIs(t, next.CheckProposable(s, raw), ErrRejected, "next.CheckProposable(s, raw)")
	if after, r := next.Apply(s, s.Index+1, raw, nil); !errors.Is(r.Err, ErrRejected) || after.Index != s.Index+1 {
		t.Errorf("have %v", r.Err)
	}
	before := s
	if r := apply(&ThisBuild, Raise{Level: Newest + 1}); !errors.As(r.Err, new(*Unreadable)) || s != before {
		t.Errorf("a build that doesn't know the level continued: %v", r.Err)
	}
	if r := apply(&next, Raise{Level: Newest + 1}); r.Err != nil || s.Level != Newest+1 {
		t.Errorf("have %v", r.Err)
	}
	if err := next.CheckProposable(s, raw); err != nil {
		t.Error(err)
	}
	refused(Raise{Level: Newest}, "already")
	refused(RegisterProcess{Node: node(1), Boot: 17, Level: Newest}, fmt.Sprintf("the cluster is at %d", Newest+1))
	b, err := next.AppendSnapshot(nil, s)
	expect.NoError(t, err)
	if _, err := ThisBuild.Parse(b); !errors.As(err, new(*Unreadable)) {
		t.Errorf("have %v", err)
	}
	if back, err := next.Parse(b); err != nil || back.Level != s.Level || back.Processes[node(2)].Zones != "2031a" {
		t.Errorf("have %v", err)
	}
	expect.Equal(t,
		do(t, New(), FoundCluster{Cluster: found.Cluster, SigningKey: found.SigningKey, Level: 1}).Level, 1,
		"level")
}

// TestRulesNeedALevel: a document with features of a later release is refused
// until the agreed level includes them.
func TestRulesNeedALevel(t *testing.T) {
	for body, level := range map[string]Level{
		"rules: [{name: r, key: [ip], limits: [{limit: 1, per: 24h}]}]": 1,
		"rules: [{name: r, key: [ip], limits: [{limit: 1, per: 1d}]}]":  2,
		"inline: {allow: false}": 2,
		"envoy: [{domain: d}]":   2,
	} {
		for at := Level(1); at <= 2; at++ {
			begun := found
			begun.Level = at
			write := WriteRules{Change: document.Change{Body: []byte("version: 1\n" + body)}}
			raw, err := ThisBuild.Encode(write)
			expect.NoError(t, err)
			s := do(t, New(), begun)
			if _, r := s.Apply(s.Index+1, raw); (r.Err == nil) != (at >= level) {
				t.Errorf("%s at level %d: %v", body, at, r.Err)
			}
		}
	}
}
