package document

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/entries"
)

func TestEntryForms(t *testing.T) {
	doc := mustParse(t, changeBase)
	for body, want := range map[string]string{
		`{"ip": "::ffff:192.0.2.7", "for": "24h", "note": "n"}`:      `deny[{"attribute":"ip","values":["192.0.2.7"]}]`,
		`{"tenant": ["b", "a", "b"], "ip": "2001:DB8::/32"}`:         `deny[{"attribute":"ip","values":["2001:db8::/32"]},{"attribute":"tenant","values":["a","b"]}]`,
		`{"ip": "192.0.2.7/32", "until": "2030-01-01T00:00:00Z"}`:    `deny[{"attribute":"ip","values":["192.0.2.7"]}]`,
		`{"ip": "192.0.2.7", "for": "1h", "until": "2030-01-01T0Z"}`: "until must be",
		`{"ip": "192.0.2.7", "for": "soon"}`:                         "for must be",
		`{"ip": "192.0.2.7", "for": "-1h"}`:                          "for must be",
		`{"ip": "192.0.2.7", "for": "36601d"}`:                       "from 1ms to 36600d",
		`{"ip": "192.0.2.7", "for": "200000d"}`:                      "from 1ms to 36600d",
		`{"ip": "192.0.2.7", "note": ["a"]}`:                         "note must be",
		`{"ip": "192.0.2.7", "note": "a\nb"}`:                        "note must have printable",
		`{"ip": "192.0.2.7", "by": "me"}`:                            "by can't be an attribute",
		`{"note": "only"}`:                                           "expected at least one attribute",
	} {
		f, err := (&Document{}).ReadListed(entries.Deny, []byte(body))
		got := fmt.Sprint(err)
		if err == nil {
			got = f.ID()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s; want %s", body, got, want)
		}
	}
	if _, err := doc.ReadSubject("tenant", "acme", []byte("tier: none")); err == nil ||
		!strings.Contains(err.Error(), "not defined") {
		t.Errorf("an unknown tier: %v; want an error", err)
	}
	f, err := ReadBlock([]byte(`{"rule": "pair", "key": ["acme", "192.0.2.7"], "for": "1h"}`))
	if err != nil || f.Rule != "pair" || !slices.Equal(f.Key, []string{"acme", "192.0.2.7"}) {
		t.Errorf("a block: %+v, %v", f, err)
	}
}

func TestNamesOneValue(t *testing.T) {
	for body, want := range map[string]bool{
		`{ip: 192.0.2.7}`: true, `{ip: "2001:db8::/64"}`: true, `{ip: "2001:db8::1"}`: true, `{user: bob}`: true,
		`{ip: 192.0.2.0/24}`: false, `{ip: "2001:db8::/48"}`: false, `{user: "b*"}`: false, `{user: [a, b]}`: false,
		`{user: bob, ip: 192.0.2.7}`: false, `{user: 10.0.0.0/8}`: false,
	} {
		f, err := (&Document{}).ReadListed(entries.Deny, []byte(body))
		expect.NoError(t, err)
		expect.Equal(t, NamesOneValue(f.Entry), want, "%s", body)
	}
}
