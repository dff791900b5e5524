package rules

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// wrongValues take the place of values of a document.
var wrongValues = []any{nil, map[string]any{}, []any{}, "", "x", "*", 0, -1, 1e300, true,
	[]any{nil}, []any{map[string]any{}}, map[string]any{"x": nil}, map[string]any{"": []any{}}}

// damage calls yield with v after each replacement of a value somewhere in it.
func damage(v any, yield func(any)) {
	for _, wrong := range wrongValues {
		yield(wrong)
	}
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			damage(v[key], func(part any) {
				whole := maps.Clone(v)
				whole[key] = part
				yield(whole)
			})
		}
	case []any:
		for i := range v {
			damage(v[i], func(part any) {
				whole := slices.Clone(v)
				whole[i] = part
				yield(whole)
			})
		}
	}
}

// Whatever stands in the place of a value, in a whole document, a piece of it
// or an entry, is read or reported as a mistake.
func TestDamagedDocuments(t *testing.T) {
	text, err := os.ReadFile("document/testdata/contract.yaml")
	expect.NoError(t, err)
	doc := mustParse(t, string(text))
	set, err := Compile(doc, 1)
	expect.NoError(t, err)
	var whole map[string]any
	expect.NoError(t, json.Unmarshal(doc.JSON(), &whole))

	seen := 0
	try := func(what string, v any, read func(body []byte) error) {
		damage(v, func(damaged any) {
			body, err := json.Marshal(damaged)
			expect.NoError(t, err)
			seen++
			defer func() {
				if v := recover(); v != nil {
					t.Fatalf("%s %s: %v\n%s", what, body, v, debug.Stack())
				}
			}()
			err = read(body)
			var mistakes document.Errors
			if err != nil && !errors.As(err, &mistakes) && !errors.Is(err, entries.ErrInvalid) &&
				!errors.Is(err, document.ErrNotFound) {
				t.Errorf("%s %s: got %v, want no error or mistakes", what, body, err)
			}
		})
	}
	change := func(part document.Part, name string) func(body []byte) error {
		return func(body []byte) error {
			_, err := doc.Apply(document.Change{Part: part, Name: name, Body: body})
			return err
		}
	}

	for _, one := range whole["rules"].([]any) {
		try("rule", one, change(document.RulePart, one.(map[string]any)["name"].(string)))
	}
	for name, one := range whole["tiers"].(map[string]any) {
		try("tier", one, change(document.TierPart, name))
	}
	list := []any{map[string]any{"ip": "1.2.3.4", "user": []any{"a", "b*"}}}
	try("list", list, change(document.ListPart, "deny"))
	delete(whole, "rules")
	try("document", whole, func(body []byte) error {
		_, err := document.Parse(body)
		return err
	})

	meta := map[string]any{"for": "1h", "note": "n"}
	with := func(v map[string]any) map[string]any {
		maps.Copy(v, meta)
		return v
	}
	stored := func(kind entries.Kind) func(body []byte) error {
		return func(body []byte) error {
			_, err := document.ReadStored(kind, body)
			return err
		}
	}
	for _, kind := range []entries.Kind{entries.Deny, entries.Allow} {
		listed := with(map[string]any{"ip": "1.2.3.4", "user": []any{"a"}})
		try("listed", listed, func(body []byte) error {
			_, err := doc.ReadListed(kind, body)
			return err
		})
		try("stored list", listed, stored(kind))
	}
	subject := with(map[string]any{"tier": "free",
		"limits": map[string]any{"tenant": []any{map[string]any{"limit": 5, "per": "1m"}}}})
	try("subject", subject, func(body []byte) error {
		_, err := set.Document.ReadSubject("tenant", "acme", body)
		return err
	})
	maps.Copy(subject,
		map[string]any{"attribute": "tenant", "value": "acme", "by": "ann", "when": "2026-11-28T12:00:00Z"})
	try("stored subject", subject, stored(entries.Subject))
	block := with(map[string]any{"rule": "tenant", "key": []any{"a", "b"}})
	try("block", block, func(body []byte) error {
		_, err := document.ReadBlock(body)
		return err
	})
	try("stored block", block, stored(entries.Block))
	t.Logf("%d damaged bodies", seen)
}
