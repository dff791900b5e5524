package rules

import (
	"errors"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

const commented = `# Rules of the shop. Ask ann before you change them.
version: 1

rules:
  # Five guesses.
  - name: login    # asked by name
    key: [ip]
    limits: [{limit: 5, per: 15m}]

  # One line.
  - {name: search, key: [user], limits: [{limit: 100, per: 1h}]}   # weigh it some day

  - name: last
    key: [tenant]
    tiered: true
# What tenants may do.
tiers:
  free: {limits: [{limit: 9, per: 1h}]}     # nine
  paid:
    limits:
      - {limit: 99, per: 1h}
default_tier: free   # the end
`

// TestHistory_EditsTheText: a piece is changed in the text, and what stands
// around it stays, with its comments.
func TestHistory_EditsTheText(t *testing.T) {
	limit := "{key: [ip], limits: [{limit: 7, per: 15m}]}"
	for _, test := range []struct {
		name, replace, by string
		c                 document.Change
	}{
		{"a rule in a block", `  - name: login    # asked by name
    key: [ip]
    limits: [{limit: 5, per: 15m}]
`, `  - name: login
    key: [ip]
    limits:
      - {limit: 7, per: 15m}
`, document.Change{Part: document.RulePart, Name: "login", Body: []byte(limit)}},
		{"a rule on one line", "  - {name: search, key: [user], limits: [{limit: 100, per: 1h}]}   # weigh it some day\n", `  - name: search
    key: [ip]
    limits:
      - {limit: 7, per: 15m}
`, document.Change{Part: document.RulePart, Name: "search", Body: []byte(limit)}},
		{"a new rule", "    tiered: true\n", `    tiered: true
  - name: new
    key: [ip]
    limits:
      - {limit: 7, per: 15m}
`, document.Change{Part: document.RulePart, Name: "new", Body: []byte(limit)}},
		{"a rule less", `
  # One line.
  - {name: search, key: [user], limits: [{limit: 100, per: 1h}]}   # weigh it some day
`, "", document.Change{Part: document.RulePart, Name: "search", Delete: true}},
		{"a tier", "  free: {limits: [{limit: 9, per: 1h}]}     # nine\n", `  free:
    limits:
      - {limit: 8, per: 1h}
`, document.Change{Part: document.TierPart, Name: "free", Body: []byte("{limits: [{limit: 8, per: 1h}]}")}},
		{"a new tier", "      - {limit: 99, per: 1h}\n", `      - {limit: 99, per: 1h}
  vip:
    limits:
      - {limit: 8, per: 1h}
`, document.Change{Part: document.TierPart, Name: "vip", Body: []byte("{limits: [{limit: 8, per: 1h}]}")}},
		{"a tier less", `  paid:
    limits:
      - {limit: 99, per: 1h}
`, "", document.Change{Part: document.TierPart, Name: "paid", Delete: true}},
		{"the first list", "# the end\n", `# the end
lists:
  deny:
    - {ip: 192.0.2.7}
`, document.Change{Part: document.ListPart, Name: "deny", Body: []byte("[{ip: 192.0.2.7}]")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := mustWrite(t, NewHistory(), document.Change{Body: []byte(commented)})
			doc, _ := mustWrite(t, h, test.c).Current()
			want := strings.Replace(commented, test.replace, test.by, 1)
			if got := string(doc.YAML()); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestHistory_RewritesTheText: where a piece can't be told apart in the text,
// the document is written anew, and right.
func TestHistory_RewritesTheText(t *testing.T) {
	rule := "{key: [ip], limits: [{limit: 7, per: 15m}]}"
	for name, text := range map[string]string{
		"on one line":    "version: 1\nrules: [{name: a, key: [ip], limits: [{limit: 1, per: 1m}]}, {name: b, key: [ip], limits: [{limit: 1, per: 1m}]}]\n",
		"JSON":           `{"version": 1, "rules": [{"name": "a", "key": ["ip"], "limits": [{"limit": 1, "per": "1m"}]}]}`,
		"an alias":       "version: 1\nrules:\n  - {name: z, key: [ip], limits: &l [{limit: 1, per: 1m}]}\n  - name: a\n    key: [ip]\n    limits: *l\n",
		"a document":     "---\nversion: 1\nrules:\n- name: a\n  key: [ip]\n  limits: [{limit: 1, per: 1m}]\n...\n",
		"no line break":  "version: 1\nrules:\n- {name: a, key: [ip], limits: [{limit: 1, per: 1m}]}",
		"carriage":       "version: 1\r\nrules:\r\n  - name: a\r\n    key: [ip]\r\n    limits: [{limit: 1, per: 1m}]\r\n",
		"empty sections": "version: 1\nrules: []\ntiers: {}\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := mustWrite(t, NewHistory(), document.Change{Body: []byte(text)})
			for _, c := range []document.Change{
				{Part: document.RulePart, Name: "a", Body: []byte(rule)},
				{Part: document.RulePart, Name: "new", Body: []byte(rule)},
				{Part: document.TierPart, Name: "free", Body: []byte("{limits: [{limit: 8, per: 1h}]}")},
				{Part: document.RulePart, Name: "a", Delete: true},
				{Part: document.RulePart, Name: "new", Delete: true},
				{Part: document.RulePart, Name: "b", Delete: true},
				{Part: document.RulePart, Name: "z", Delete: true},
			} {
				want, err := h.doc.Apply(c)
				if errors.Is(err, document.ErrNotFound) {
					continue
				}
				expect.NoError(t, err)
				h = mustWrite(t, h, c)
				if got := h.doc.JSON(); string(got) != string(want.JSON()) {
					t.Fatalf("%s: got %s, want %s", c, got, want.JSON())
				}
			}
		})
	}
}

// FuzzEditText: whatever the text, a change of a piece gives the same document as without the text.
func FuzzEditText(f *testing.F) {
	f.Add(commented, "login")
	f.Add("version: 1\nrules:\n- {name: a, key: [ip], limits: [{limit: 1, per: 1m}]}", "a")
	f.Add("version: 1\nrules: [{name: a, key: [ip], limits: [{limit: 1, per: 1m}]}]\n# end", "b")
	f.Fuzz(func(t *testing.T, text, name string) {
		doc, err := document.Parse([]byte(text))
		if err != nil {
			return
		}
		for _, c := range []document.Change{
			{Part: document.RulePart, Name: name, Body: []byte("{key: [ip], limits: [{limit: 7, per: 15m}]}")},
			{Part: document.RulePart, Name: name, Delete: true},
			{Part: document.TierPart, Name: name, Body: []byte("{limits: [{limit: 7, per: 15m}]}")},
		} {
			want, err := doc.Apply(c)
			if err != nil {
				continue
			}
			got, err := doc.WithChange(c)
			if err != nil || string(got.JSON()) != string(want.JSON()) {
				t.Fatalf("%s: got %v, %v, want %s", c, got, err, want.JSON())
			}
		}
	})
}
