package api

import (
	"slices"
	"testing"

	"github.com/rlnode/rlnode/rules/document"
)

// A rule's refusal may not use a code of ours: callers tell answers apart by it.
func TestCodesAreReserved(t *testing.T) {
	for code := range kinds {
		if !slices.Contains(document.ReservedCodes, string(code)) {
			t.Errorf("rules.ReservedCodes lacks %q", code)
		}
	}
}
