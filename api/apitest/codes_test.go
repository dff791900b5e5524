package apitest_test

import (
	"slices"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// Every code is listed for a plane, whose tests must provoke it.
func TestCodesAreProvoked(t *testing.T) {
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Enum []api.Code }
		}
	}
	expect.NoError(t, yaml.Unmarshal([]byte(api.OpenAPI), &doc))
	have := slices.Concat(apitest.DataCodes, apitest.AdminCodes)
	slices.Sort(have)
	have = slices.Compact(have)
	want := doc.Components.Schemas["Code"].Enum
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("have %v, want %v", have, want)
	}
}
