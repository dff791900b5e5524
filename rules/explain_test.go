package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/entries"
)

// TestSet_Explain: of each rule that does not apply, every condition that fails
// is named, with both values.
func TestSet_Explain(t *testing.T) {
	doc := mustParse(t, `
rules:
  - {name: post, match: {method: POST}, key: [ip], limits: [{limit: 1, per: 1m}]}
  - {name: api, match: {endpoint: ["/api/*", /v2], method: [GET, POST]}, key: [user], limits: [{limit: 1, per: 1m}]}
  - {name: either, not: {endpoint: [/health, /metrics]}, key: [[user, ip]], limits: [{limit: 1, per: 1m}]}
  - {name: strangers, absent: [user], key: [ip], limits: [{limit: 1, per: 1m}]}
  - {name: tenant, key: [tenant], tiered: true}
  - {name: only-free, tiers: [free], key: [tenant], limits: [{limit: 1, per: 1m}]}
  - {name: net, match: {ip: 192.0.2.0/24}, key: [ip], limits: [{limit: 1, per: 1m}]}
tiers: {free: {limits: [{limit: 1, per: 1m}]}, paid: {limits: [{limit: 2, per: 1m}]}}
subjects: {tenant: {acme: {tier: paid}}}
`)
	set, err := Compile(doc, 1)
	expect.NoError(t, err)
	for _, test := range []struct {
		attrs string
		want  []string
	}{
		{"ip=198.51.100.7 method=post endpoint=/health user=ann tenant=acme", []string{
			`post: method: "post" is not "POST"`,
			`api: endpoint: "/health" is not one of "/api/*", "/v2"; method: "post" is not one of "GET", "POST"`,
			`either: not endpoint: "/health" is one of "/health", "/metrics"`,
			`strangers: absent: user is present, "ann"`,
			`tenant: applies`,
			`only-free: tiers: "paid" is not "free"`,
			`net: ip: "198.51.100.7" is not "192.0.2.0/24"`,
		}},
		{"tenant=globex", []string{
			`post: key: ip is absent; method: it is absent, not "POST"`,
			`api: key: user is absent; endpoint: it is absent, not one of "/api/*", "/v2"; method: it is absent, not one of "GET", "POST"`,
			`either: key: none of user, ip is present`,
			`strangers: key: ip is absent`,
			`tenant: tiered: the subject has no tier, and there is no default_tier`,
			`only-free: tiers: the subject has no tier, not "free"`,
			`net: key: ip is absent; ip: it is absent, not "192.0.2.0/24"`,
		}},
		{"ip=192.0.2.9 method=POST",
			[]string{`post: applies`, `api: key: user is absent; endpoint: it is absent, not one of "/api/*", "/v2"`,
				`either: applies`, `strangers: applies`, `tenant: key: tenant is absent`,
				`only-free: key: tenant is absent`, `net: applies`}},
	} {
		var attrs []Attribute
		for _, pair := range strings.Fields(test.attrs) {
			name, value, _ := strings.Cut(pair, "=")
			attrs = append(attrs, Attribute{name, value})
		}
		for i, e := range set.Explain(attrs, nil) {
			got := fmt.Sprintf("%s: %s", e.Rule, strings.Join(e.Why, "; "))
			if e.Applies {
				got = e.Rule + ": applies"
			}
			expect.Equal(t, got, test.want[i], "%s", test.attrs)
		}
		if one := set.Explain(attrs, set.Rule("api")); len(one) != 1 || one[0].Rule != "api" {
			t.Errorf("only api: got %+v", one)
		}
	}
	long := set.Explain([]Attribute{{"ip", "x"}, {"method", strings.Repeat("é", 500)}}, set.Rule("post"))
	if text := long[0].Why[0]; len(text) > 200 || !strings.Contains(text, "…") {
		t.Errorf("a long value: got %q", text)
	}
}

// TestSet_Explain_entries: the tier that an entry gives a subject is the one that is compared.
func TestSet_Explain_entries(t *testing.T) {
	set, err := Compile(mustParse(t, `
rules: [{name: only-free, tiers: [free], key: [tenant], limits: [{limit: 1, per: 1m}]}]
tiers: {free: {limits: [{limit: 1, per: 1m}]}, paid: {limits: [{limit: 2, per: 1m}]}}
default_tier: free
`), 1)
	expect.NoError(t, err)
	form, err := set.Document.ReadSubject("tenant", "acme", []byte("tier: paid"))
	expect.NoError(t, err)
	state, err := entries.New().With(entries.Change{Entry: form.Entry})
	expect.NoError(t, err)
	got := set.WithEntries(state, nil).Explain([]Attribute{{"tenant", "acme"}}, nil)
	expect.Equal(t, fmt.Sprint(got), `[{only-free false [tiers: "paid" is not "free"]}]`, "explained")
}
