package api

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/rlnode/rlnode/internal/expect"
)

// The OpenAPI document names exactly the codes that exist, and all its references resolve.
func TestOpenAPINamesTheCodes(t *testing.T) {
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Enum []string }
		}
	}
	expect.NoError(t, yaml.Unmarshal([]byte(OpenAPI), &doc))
	var codes []string
	for c := range kinds {
		codes = append(codes, string(c))
	}
	have := doc.Components.Schemas["Code"].Enum
	slices.Sort(codes)
	slices.Sort(have)
	expect.EqualSlices(t, have, codes, "codes")
	checkReferences(t, OpenAPI)
}

// checkReferences follows every $ref.
func checkReferences(t *testing.T, text string) {
	var root map[string]any
	expect.NoError(t, yaml.Unmarshal([]byte(text), &root))
	for part := range strings.SplitSeq(text, `$ref: "#/`) {
		path, _, ok := strings.Cut(part, `"`)
		if !ok || strings.Contains(path, "\n") {
			continue
		}
		at := any(root)
		for name := range strings.SplitSeq(path, "/") {
			m, _ := at.(map[string]any)
			at = m[name]
		}
		if at == nil {
			t.Errorf("$ref #/%s does not resolve", path)
		}
	}
}
