package rules

import (
	"testing"

	"github.com/rlnode/rlnode/rules/document"
)

const chargesNothing = `version: 1
rules:
  - name: a
    key: [user]
    cost: {by: model, values: {big: 5}}
    limits: [{limit: 10, per: 1m, unit: tokens}]
`

// What only a review refuses stays readable where a document is stored or
// adopted, and where one of its pieces is written.
func TestReview_refusesOnlyWholeDocuments(t *testing.T) {
	const want = "5:5: rules[0].cost: its unit is requests, but no limit of the rule has that unit; did you mean unit: tokens?"
	if _, err := document.Review([]byte(chargesNothing)); err == nil || err.Error() != want {
		t.Errorf("Review: got %v, want %s", err, want)
	}

	doc := mustParse(t, chargesNothing)
	if w := doc.Warnings(); len(w) != 1 || w[0].Error() != want {
		t.Errorf("Warnings: got %v, want %s", w, want)
	}
	if _, err := NewHistory().Adopt(Version{Number: 7}, chargesNothing, true); err != nil {
		t.Errorf("Adopt: %v", err)
	}

	h, err := NewHistory().Write(Write{Change: document.Change{Body: []byte(chargesNothing)}})
	if err != nil {
		t.Fatalf("Write of a stored document: %v", err)
	}
	piece := document.Change{Part: document.RulePart, Name: "b",
		Body: []byte("{key: [user], cost: {by: model}, limits: [{limit: 1, per: 1m, unit: tokens}]}")}
	if h, err = h.Write(Write{Change: piece}); err != nil {
		t.Fatalf("Write of a piece: %v", err)
	}
	if w := h.doc.Warnings(); len(w) != 2 || w[1].Path != "rules[1].cost" {
		t.Errorf("Warnings after a piece: got %v, want two, the second about rules[1].cost", w)
	}
}
