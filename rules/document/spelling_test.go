package document

import (
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/entries"
)

func TestFindEntry(t *testing.T) {
	doc, err := Parse([]byte("version: 1\nlists:\n  deny:\n    - {ip: 192.0.2.7}\n    - {tenant: [b, a]}\nrules: []\ntiers: {t: {limits: [{limit: 1, per: 1h}]}}\nsubjects:\n  tenant:\n    acme: {tier: t}\n"))
	expect.NoError(t, err)
	listed := func(body string) *entries.Entry {
		f, err := (&Document{}).ReadListed(entries.Deny, []byte(body))
		expect.NoError(t, err)
		return f.Entry
	}
	for e, want := range map[*entries.Entry]int{
		listed("ip: ::ffff:192.0.2.7"): 4, listed("tenant: [a, b]"): 5, listed("tenant: a"): 0,
		{Kind: entries.Subject, Attribute: "tenant", Value: "acme"}: 10,
		{Kind: entries.Subject, Attribute: "tenant", Value: "x"}:    0,
	} {
		line, found := doc.FindEntry(e)
		if line != want || found != (want > 0) {
			t.Errorf("%s: line %d, found %v; want %d", e.ID(), line, found, want)
		}
	}
}
