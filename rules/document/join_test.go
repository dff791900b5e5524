package document

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestJoin: several files make one document, in the order in which they are given.
func TestJoin(t *testing.T) {
	doc, err := Join([]File{
		{"a.yaml",
			[]byte("version: 1\ndefaults: {algorithm: fixed-window}\nrules:\n  - {name: a, key: [ip], limits: [{limit: 1, per: 1m}]}\nlists: {deny: [{ip: 192.0.2.7}]}\n" +
				"subjects:\n  tenant: {acme: {tier: free}}\n")},
		{"b.json",
			[]byte(`{"rules": [{"name": "b", "key": ["tenant"], "tiered": true}], "tiers": {"free": {"limits": [{"limit": 2, "per": "1m"}]}}}`)},
		{"c.yml",
			[]byte("version: 1\nlists:\n  deny: [{ip: 192.0.2.8}]\n  allow: [{ip: 192.0.2.9}]\nsubjects:\n  tenant: {globex: {tier: free}}\n  user: {ann: {tier: free}}\n" +
				"tiers: {paid: {limits: [{limit: 3, per: 1m}]}}\n")},
	})
	expect.NoError(t, err)
	want := mustParse(t, `
defaults: {algorithm: fixed-window}
rules:
  - {name: a, key: [ip], limits: [{limit: 1, per: 1m}]}
  - {name: b, key: [tenant], tiered: true}
lists: {deny: [{ip: 192.0.2.7}, {ip: 192.0.2.8}], allow: [{ip: 192.0.2.9}]}
tiers: {free: {limits: [{limit: 2, per: 1m}]}, paid: {limits: [{limit: 3, per: 1m}]}}
subjects: {tenant: {acme: {tier: free}, globex: {tier: free}}, user: {ann: {tier: free}}}
`)
	if got := string(doc.JSON()); got != string(want.JSON()) {
		t.Errorf("got %s, want %s", got, want.JSON())
	}
	if text, err := doc.Text(); err != nil || !strings.HasPrefix(text, "version: 1\n") {
		t.Errorf("got the text %q, %v", text, err)
	}
}

// TestJoin_Mistakes: a mistake names its file and line, and a name that stands
// twice names both places.
func TestJoin_Mistakes(t *testing.T) {
	const first = "version: 1\nrules:\n  - {name: a, key: [ip], limits: [{limit: 1, per: 1m}]}\ntiers:\n  free: {limits: [{limit: 1, per: 1m}]}\nsubjects:\n  tenant:\n    acme: {tier: free}\n"
	for _, test := range []struct{ name, second, want string }{
		{"a rule twice", "rules:\n  - {name: a, key: [user], limits: [{limit: 1, per: 1m}]}\n",
			`b.yaml:2: rule "a" is in a.yaml:3 and in b.yaml:2`},
		{"a tier twice", "tiers:\n\n  free: {limits: [{limit: 1, per: 1m}]}\n",
			`b.yaml:3: tiers.free is in a.yaml:5 and in b.yaml:3`},
		{"a subject twice", "subjects: {tenant: {acme: {tier: free}}}\n",
			`b.yaml:1: subjects.tenant.acme is in a.yaml:8 and in b.yaml:1`},
		{"a setting", "default: deny\n", ""},
		{"no YAML", "rules:\n  - {name: b\n", "b.yaml:"},
		{"an empty file", "# nothing\n", "b.yaml:1: a part of a document must be a mapping"},
		{"a mistake", "# ours\nrules:\n  - {name: b, key: [ip], limits: [{limit: -1, per: 1m}]}\n", "b.yaml:3: "},
		{"an unknown key", "rulez: []\n", "b.yaml:1: "},
		{"a value of another kind", "rules: {}\n", "b.yaml:1: rules is in a.yaml:2 and in b.yaml:1"},
	} {
		_, err := Join([]File{{"a.yaml", []byte(first)}, {"b.yaml", []byte(test.second)}})
		if test.want == "" && err == nil {
			continue
		}
		mistakes, ok := errors.AsType[Errors](err)
		if !ok || test.want == "" {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
			continue
		}
		got := fmt.Sprintf("%s:%d: %s", mistakes[0].File, mistakes[0].Line, mistakes[0].Message)
		if !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
	if _, err := Join([]File{{"a", []byte("default: deny\n")},
		{"b", []byte("default: deny\n")}}); err == nil ||
		!strings.Contains(err.Error(), "default is in a:1 and in b:1") {
		t.Errorf("a setting twice: got %v", err)
	}
}
