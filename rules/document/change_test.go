package document

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

const changeBase = `# mine
rules:
  - {name: a, key: [tenant], tiered: true}
  - {name: b, key: [ip], limits: [{limit: 1, per: 1m}]}
tiers: {free: {limits: [{limit: 1, per: 1m}]}, gold: {limits: [{limit: 9, per: 1m}]}}
default_tier: free
subjects: {tenant: {x: {tier: gold}}}
lists: {deny: [{ip: 1.1.1.1}]}
`

func TestDocument_Apply(t *testing.T) {
	body := func(s string) []byte { return []byte(s) }
	const base = `{"version":1,"lists":{"deny":[{"ip":"1.1.1.1"}]},"rules":[{"name":"a","key":["tenant"],"tiered":true},{"name":"b","key":["ip"],"limits":[{"limit":1,"per":"1m"}]}],"tiers":{"free":{"limits":[{"limit":1,"per":"1m"}]},"gold":{"limits":[{"limit":9,"per":"1m"}]}},"default_tier":"free","subjects":{"tenant":{"x":{"tier":"gold"}}}}`
	tests := []struct {
		name     string
		change   Change
		from, to string // what to replace in base
		errs     []string
		notFound bool
	}{
		{"rule new",
			Change{Part: RulePart, Name: "c", Body: body("{key: [], limits: [{limit: 3, per: 1s}]}")},
			`]}],"tiers"`, `]},{"name":"c","key":[],"limits":[{"limit":3,"per":"1s"}]}],"tiers"`, nil,
			false},
		{"rule in place",
			Change{Part: RulePart, Name: "a",
				Body: body(`{"name": "a", "key": ["tenant"], "limits": [{"limit": 3, "per": "1s"}]}`)},
			`"tiered":true`, `"limits":[{"limit":3,"per":"1s"}]`, nil, false},
		{"rule of another name",
			Change{Part: RulePart, Name: "a", Body: body(`{name: z, key: [tenant], tiered: true}`)}, "",
			"", []string{`1:2 rules[0].name|"z" differs from that of the rule being written, "a"`},
			false},
		{"rule wrong",
			Change{Part: RulePart, Name: "c", Body: body("key: []\nlimits: [{limit: -1, per: 1s}]")},
			"", "", []string{"2:18 rules[2].limits[0].limit|-1 is not in"}, false},
		{"rule unreadable", Change{Part: RulePart, Name: "c", Body: body("key: [")}, "", "",
			[]string{"1:7 |did not find"}, false},
		{"rule empty body", Change{Part: RulePart, Name: "c"}, "", "",
			[]string{"1:1 rules[2]|expected a mapping"}, false},
		{"rule without name",
			Change{Part: RulePart, Body: body("{key: [], limits: [{limit: 3, per: 1s}]}")}, "", "",
			[]string{"0:0 rules[2]|can't be empty", "1:1 rules[2]|needs a name"}, false},
		{"rule deleted", Change{Part: RulePart, Name: "b", Delete: true},
			`,{"name":"b","key":["ip"],"limits":[{"limit":1,"per":"1m"}]}`, "", nil, false},
		{"no rule to delete", Change{Part: RulePart, Name: "z", Delete: true}, "", "", nil, true},
		{"tier new", Change{Part: TierPart, Name: "t", Body: body("limits: [{limit: 2, per: 1m}]")},
			`},"default_tier"`, `,"t":{"limits":[{"limit":2,"per":"1m"}]}},"default_tier"`, nil, false},
		{"tier in place",
			Change{Part: TierPart, Name: "gold", Body: body("limits: [{limit: 2, per: 1m}]")}, `9`, `2`,
			nil, false},
		{"tier in use", Change{Part: TierPart, Name: "gold", Delete: true}, "", "",
			[]string{`0:0 subjects.tenant.x.tier|"gold" is not defined`}, false},
		{"default tier", Change{Part: TierPart, Name: "free", Delete: true}, "", "",
			[]string{`0:0 default_tier|"free" is not defined`}, false},
		{"no tier to delete", Change{Part: TierPart, Name: "z", Delete: true}, "", "", nil, true},
		{"list", Change{Part: ListPart, Name: "allow", Body: body("[{ip: 10.0.0.0/8}]")},
			`]},"rules"`, `],"allow":[{"ip":"10.0.0.0/8"}]},"rules"`, nil, false},
		{"list wrong", Change{Part: ListPart, Name: "allow", Body: body("[{ip: 10.0.0.0/80}]")}, "",
			"", []string{"1:7 lists.allow[0].ip|nor a CIDR"}, false},
		{"list deleted", Change{Part: ListPart, Name: "deny", Delete: true},
			`"lists":{"deny":[{"ip":"1.1.1.1"}]},`, "", nil, false},
		{"no list to delete", Change{Part: ListPart, Name: "allow", Delete: true}, "", "", nil, true},
		{"list of no name", Change{Part: ListPart, Name: "maybe", Body: body("[]")}, "", "", nil, true},
		{"document", Change{Body: []byte(`{"default": "deny"}`)}, base, `{"version":1,"default":"deny"}`, nil, false},
		{"document deleted", Change{Delete: true}, "", "", []string{"0:0 |can't be deleted"}, false},
	}
	doc := mustParse(t, changeBase)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			next, err := doc.Apply(tt.change)
			if have := doc.JSON(); string(have) != base {
				t.Fatalf("the old document has changed: %s", have)
			}
			if tt.notFound {
				if !errors.Is(err, ErrNotFound) {
					t.Errorf("have %v, want ErrNotFound", err)
				}
				return
			}
			if tt.errs != nil {
				checkErrors(t, err, tt.errs)
				return
			}
			expect.NoError(t, err)
			have := next.JSON()
			if want := strings.Replace(base, tt.from, tt.to, 1); string(have) != want {
				t.Errorf("have %s\nwant %s", have, want)
			}
			if again := mustParse(t, string(next.YAML())); !bytes.Equal(again.JSON(), have) {
				t.Errorf("as YAML it is %s", again.JSON())
			}
			for _, w := range next.Warnings() {
				if tt.change.Part != WholeDocument && w.Line != 0 {
					t.Errorf("%v has a position in a text that no longer exists", w)
				}
			}
		})
	}
}

func TestDocument_Piece(t *testing.T) {
	doc := mustParse(t, changeBase)
	tests := []struct {
		of   Change
		want string
	}{
		{Change{Part: RulePart, Name: "a"}, `{"name":"a","key":["tenant"],"tiered":true}`},
		{Change{Part: TierPart, Name: "gold"}, `{"limits":[{"limit":9,"per":"1m"}]}`},
		{Change{Part: ListPart, Name: "deny"}, `[{"ip":"1.1.1.1"}]`},
		{Change{Part: ListPart, Name: "allow"}, `[]`},
		{Change{Part: RulePart, Name: "z"}, ""},
		{Change{Part: TierPart, Name: "z"}, ""},
		{Change{Part: ListPart, Name: "z"}, ""},
	}
	for _, tt := range tests {
		have, _, err := doc.Piece(tt.of)
		if string(have) != tt.want || (tt.want == "") != errors.Is(err, ErrNotFound) {
			t.Errorf("%s: have %s, %v, want %s", tt.of, have, err, tt.want)
		}
	}
}

func TestDocument_Apply_bounds(t *testing.T) {
	doc := mustParse(t, "version: 1")
	change := func(c Change) error {
		next, err := doc.WithChange(c)
		if err == nil {
			doc = next
		}
		return err
	}
	big := "{key: [], match: {a: [" + strings.Repeat(strings.Repeat("x", 1000)+",", 4000) +
		"]}, limits: [{limit: 1, per: 1m}]}"
	for _, name := range []string{"a", "b"} {
		expect.NoError(t, change(Change{Part: RulePart, Name: name, Body: []byte(big)}))
	}
	if err := change(Change{Part: RulePart, Name: "c", Body: []byte(big)}); err == nil ||
		err.Error() != "the document would be larger than 8 MiB" {
		t.Errorf("a third large rule: have %v, want the bound", err)
	}
	expect.NoError(t, change(Change{Part: RulePart, Name: "a", Delete: true}))
	expect.NoError(t, change(Change{Part: RulePart, Name: "c", Body: []byte(big)}))

	var rules []string
	for i := range maxRules {
		rules = append(rules, fmt.Sprintf("{name: r%d, key: [], limits: [{limit: 1, per: 1m}]}", i))
	}
	full := mustParse(t, "rules: ["+strings.Join(rules, ", ")+"]")
	if _, err := full.Apply(Change{Part: RulePart, Name: "one more",
		Body: []byte("{key: [], limits: [{limit: 1, per: 1m}]}")}); err == nil ||
		!strings.Contains(err.Error(), "more than 1000 rules") {
		t.Errorf("have %v", err)
	}
}

func TestDescribe(t *testing.T) {
	tests := map[string]Change{
		"document":         {Name: "of no use"},
		"rule login":       {Part: RulePart, Name: "login"},
		"delete tier free": {Part: TierPart, Name: "free", Delete: true},
		"list deny":        {Part: ListPart, Name: "deny"},
	}
	for want, have := range tests {
		expect.Equal(t, have.What(), want, "have.What()")
	}
}
