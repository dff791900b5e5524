package api

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// The description names exactly the addresses, methods and codes that exist.
func TestOpenAPIIsTrue(t *testing.T) {
	t.Parallel()
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
	want := map[string][]string{}
	for _, r := range dataRoutes {
		want[r.path] = []string{strings.ToLower(strings.Split(r.allow, ",")[0])}
		if r.allow == "" {
			want[r.path] = []string{"get"} // which stands for any
		}
	}
	for path, m := range byPattern(n.admin.endpoints()) {
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

// The description says which scope each operation needs, and that the caller may lack it.
func TestOpenAPIKnowsTheScopes(t *testing.T) {
	n := startNode(t, nil)
	type operation struct {
		Security  []map[string][]string
		Responses map[string]any
	}
	var doc struct {
		Paths map[string]struct{ Get, Put, Post, Delete *operation }
	}
	if err := yaml.Unmarshal([]byte(openAPI), &doc); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for path, p := range doc.Paths {
		for method, o := range map[string]*operation{"GET": p.Get, "PUT": p.Put, "POST": p.Post, "DELETE": p.Delete} {
			if o == nil {
				continue
			}
			seen++
			need := n.need(method + " " + path)
			if strings.HasPrefix(path, authPrefix) {
				need = n.need("* " + path)
			}
			var have []string
			for _, s := range o.Security {
				have = append(have, s["token"]...)
			}
			if want := need.names(); !slices.Equal(have, want) || (need == anyone) != (len(o.Security) == 0) {
				t.Errorf("%s %s: have the scopes %v, want %v", method, path, have, want)
			}
			for _, code := range []string{"401", "403"} {
				if have := o.Responses[code] != nil; have != (need != anyone) {
					t.Errorf("%s %s: %s is described: %v", method, path, code, have)
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d operations", seen)
	}
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
