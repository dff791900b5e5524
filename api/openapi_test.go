package api

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// The description names every address, method and code that there is, and no other.
func TestOpenAPIIsTrue(t *testing.T) {
	n := startNode(t, nil)
	resp, body := n.do(call{method: "GET", url: n.adm + "/openapi.yaml"})
	if resp.StatusCode != 200 || body != openAPI {
		t.Fatalf("have %d", resp.StatusCode)
	}
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]any
		Components struct {
			Schemas map[string]struct{ Enum []string }
		}
	}
	if err := yaml.Unmarshal([]byte(openAPI), &doc); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"/debug/pprof/": {"get"}}
	for _, r := range dataRoutes {
		want[r.path] = []string{strings.ToLower(strings.Split(r.allow, ",")[0])}
		if r.allow == "" {
			want[r.path] = []string{"get"} // which stands for any
		}
	}
	for path, m := range n.admin.routes() {
		want[path] = nil
		for method := range m {
			want[path] = append(want[path], strings.ToLower(method))
		}
		slices.Sort(want[path])
	}
	for path, methods := range want {
		var have []string
		for key := range doc.Paths[path] {
			if slices.Contains([]string{"get", "put", "post", "delete"}, key) {
				have = append(have, key)
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, methods) {
			t.Errorf("%s: have %v, want %v", path, have, methods)
		}
	}
	for path := range doc.Paths {
		if want[path] == nil {
			t.Errorf("%s: there is no such address", path)
		}
	}
	var codes []string
	for c := range kinds {
		codes = append(codes, string(c))
	}
	have := doc.Components.Schemas["Code"].Enum
	slices.Sort(codes)
	slices.Sort(have)
	if !slices.Equal(have, codes) {
		t.Errorf("codes: have %v, want %v", have, codes)
	}
	checkReferences(t, openAPI)
}

// checkReferences follows every $ref.
func checkReferences(t *testing.T, text string) {
	var root map[string]any
	if err := yaml.Unmarshal([]byte(text), &root); err != nil {
		t.Fatal(err)
	}
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
			t.Errorf("#/%s leads nowhere", path)
		}
	}
}
