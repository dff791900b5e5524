package document

import (
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/entries"
)

func TestMergedViews(t *testing.T) {
	put := func(s *entries.State, f EntryForm, err error) *entries.State {
		t.Helper()
		expect.NoError(t, err)
		next, err := s.With(entries.Change{Entry: f.Entry})
		expect.NoError(t, err)
		return next
	}
	doc := mustParse(t, `
tiers: {free: {limits: [{limit: 1, per: 1h}]}, pro: {limits: [{limit: 2, per: 1h}]}}
rules:
  - {name: tenant, key: [tenant], tiered: true}
  - {name: pair, key: [tenant, ip], limits: [{limit: 3, per: 1h}]}
lists: {deny: [{tenant: old}]}
subjects: {tenant: {acme: {tier: free}, box: {tier: pro}}}
`)
	deny, err := (&Document{}).ReadListed(entries.Deny, []byte(`{ip: 192.0.2.7, note: n}`))
	s := put(entries.New(), deny, err)
	sub, err := doc.ReadSubject("tenant", "acme", []byte("limits: {pair: [{limit: 9, per: 1h}]}"))
	s = put(s, sub, err)
	list, _ := doc.MergedList(entries.Deny, s, 1)
	const wantList = `[{"tenant":"old","origin":"document"},{"ip":"192.0.2.7","note":"n","by":"","when":"1970-01-01T00:00:00.000Z","origin":"entry"}]`
	if string(list) != wantList {
		t.Errorf("deny list %s; want %s", list, wantList)
	}
	one, _, err := doc.MergedSubject("tenant", "acme", s, 1)
	const wantOne = `{"tier":"free","limits":{"pair":[{"limit":9,"per":"1h"}]},"by":"","when":"1970-01-01T00:00:00.000Z","origin":"both"}`
	if err != nil || string(one) != wantOne {
		t.Errorf("subject %s, %v; want %s", one, err, wantOne)
	}
	page, next := doc.ListSubjects("tenant", "", 1, s, 1)
	if len(page) != 1 || next != "acme" || !strings.HasPrefix(page[0], `{"value":"acme","tier":"free"`) {
		t.Errorf("page %q, next %q", page, next)
	}
	if _, _, err := doc.MergedSubject("tenant", "none", s, 1); err == nil {
		t.Error("a subject that nothing names is found")
	}

	// A subject is found by every spelling that stands for it.
	doc = mustParse(t,
		"attributes: {user: {fold: [lower]}}\nrules: [{name: r, key: [user], tiered: true}]\ntiers: {pro: {limits: [{limit: 1, per: 1m}]}}\n")
	ann, err := doc.ReadSubject("user", "ANN", []byte("tier: pro"))
	s = put(entries.New(), ann, err)
	if _, _, err := doc.MergedSubject("user", "ANN", s, 1); err != nil {
		t.Errorf("the entry of ANN, by that name: %v; want it found", err)
	}
}
