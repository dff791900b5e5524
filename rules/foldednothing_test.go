package rules

import (
	"errors"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// A value of which folding leaves nothing is none: of attributes it is ignored,
// and a key needs all of them.
func TestFoldedToNothing(t *testing.T) {
	doc, err := document.Parse([]byte("version: 1\nattributes: {user: {fold: [trim]}, ip: {}}\nrules:\n" +
		"  - {name: a, key: [user], limits: [{limit: 5, per: 1m}]}\n  - {name: b, key: [[user, ip]], limits: [{limit: 5, per: 1m}]}\n"))
	expect.NoError(t, err)
	s, err := Compile(doc, 1)
	expect.NoError(t, err)

	for _, test := range []struct {
		rule, key string
		missing   bool
	}{
		{"a", " ", true}, {"a", "", true}, {"a", "user=", false}, {"a", " x ", false},
		{"b", " ", true}, {"b", "user=", true}, {"b", "user= ", true}, {"b", "ip=192.0.2.1", false},
	} {
		r := s.Rule(test.rule)
		key := []string{test.key}
		var m Match
		for range 2 { // the second match is of one that is kept
			err := s.MatchKey(r, key, &m)
			if errors.Is(err, ErrMissing) != test.missing || err != nil != test.missing {
				t.Errorf("%s %q: got %v, want a missing value: %v", test.rule, test.key, err, test.missing)
			}
		}
		if missing := s.MissingAttribute(r, key); (missing != "") != test.missing {
			t.Errorf("%s %q: got %q missing, want some: %v", test.rule, test.key, missing, test.missing)
		}
	}

	var m Match
	for _, user := range []string{"x", "  ", "y", " "} {
		s.Match([]Attribute{{"user", user}, {"ip", "192.0.2.1"}}, nil, &m)
		want := 2
		if user != "x" && user != "y" {
			want = 1 // b, by the address
		}
		expect.Equal(t, len(m.Hits), want, "user %q, hits", user)
	}
}
