package rules

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

// TestDays: every duration in a document may be 7d. It equals 168h, also for
// counters, and round trips as written.
func TestDays(t *testing.T) {
	const text = `version: 1
defaults: {on_limit: delay, max_delay: %[1]s}
rules:
  - name: r
    key: [k]
    limits: [{limit: 5, per: %[1]s}, {limit: 50, per: %[2]s, algorithm: token-bucket}]
  - name: b
    key: [k]
    on_limit: refuse
    block: %[2]s
    limits: [{limit: 5, per: 1m, algorithm: sliding-window-log}]
tiers: {t: {limits: [{limit: 1, per: %[2]s}]}}
`
	compiled := func(one, seven string) (*document.Document, *Set) {
		t.Helper()
		doc, err := document.Parse(fmt.Appendf(nil, text, one, seven))
		expect.NoError(t, err)
		set, err := Compile(doc, 1)
		expect.NoError(t, err)
		return doc, set
	}
	days, inDays := compiled("1d", "6d24h")
	_, inHours := compiled("24h", "168h")
	var have, want Match
	inDays.Match([]Attribute{{"k", "v"}}, nil, &have)
	inHours.Match([]Attribute{{"k", "v"}}, nil, &want)
	if len(have.Hits) != 2 {
		t.Fatalf("have %d rules", len(have.Hits))
	}
	for i := range have.Hits {
		a, b := &have.Hits[i], &want.Hits[i]
		if !reflect.DeepEqual(a.Rule.Blocks, b.Rule.Blocks) || a.Rule.MaxDelay != b.Rule.MaxDelay ||
			a.Subject != b.Subject {
			t.Errorf("rule %s: have %v, %v, want %v, %v", a.Rule.Name, a.Rule.Blocks,
				a.Rule.MaxDelay, b.Rule.Blocks, b.Rule.MaxDelay)
		}
		for n, l := range a.Limits {
			if l.ID != b.Limits[n].ID || l.Limit != b.Limits[n].Limit {
				t.Errorf("rule %s: have %+v, want %+v", a.Rule.Name, l, b.Limits[n])
			}
		}
	}
	canonical := days.JSON()
	if strings.Count(string(canonical), `"6d24h"`) != 3 || strings.Count(string(canonical), `"1d"`) != 2 {
		t.Errorf("have %s", canonical)
	}
	again, err := document.Parse(canonical)
	if err != nil || again.Hash() != days.Hash() {
		t.Errorf("read back: %v, and the same: %t", err, err == nil && again.Hash() == days.Hash())
	}
}
