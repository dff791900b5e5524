package apitest

import (
	"maps"
	"slices"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/rlnode/rlnode/api"
)

// CheckOpenAPI checks that the OpenAPI document of a plane, "data plane" or
// "admin plane", describes exactly these routes, each a method and a path, with
// the scopes that each needs, and with the answers 401 and 403 if it needs any.
func CheckOpenAPI(t testing.TB, plane string, routes map[string]api.Scope) {
	t.Helper()
	type server struct{ Description string }
	type operation struct {
		Servers   []server // empty: those of the path
		Security  []map[string][]string
		Responses map[string]any
	}
	var doc struct {
		Paths map[string]struct {
			Servers                []server // empty: the data plane
			Get, Put, Post, Delete *operation
		}
	}
	if err := yaml.Unmarshal([]byte(api.OpenAPI), &doc); err != nil {
		t.Fatal(err)
	}

	left := maps.Clone(routes)
	for path, p := range doc.Paths {
		for method, o := range map[string]*operation{"GET": p.Get, "PUT": p.Put, "POST": p.Post, "DELETE": p.Delete} {
			if o == nil {
				continue
			}

			servers := p.Servers
			if len(o.Servers) > 0 {
				servers = o.Servers
			}

			ours := len(servers) == 0 && plane == "data plane" ||
				slices.ContainsFunc(servers, func(s server) bool { return s.Description == plane })
			if !ours {
				continue
			}

			need, known := routes[method+" "+path]
			delete(left, method+" "+path)

			if !known {
				t.Errorf("%s %s: described, but no such route exists", method, path)
			}

			var have []string
			for _, s := range o.Security {
				have = append(have, s["token"]...)
			}

			want := need.Names()
			if !slices.Equal(have, want) || (need == api.Anyone) != (len(o.Security) == 0) {
				t.Errorf("%s %s: have the scopes %v, want %v", method, path, have, want)
			}

			for _, code := range []string{"401", "403"} {
				have := o.Responses[code] != nil
				if have != (need != api.Anyone) {
					t.Errorf("%s %s: %s is described: %v", method, path, code, have)
				}
			}
		}
	}

	if len(left) > 0 {
		t.Errorf("not described: %v", slices.Sorted(maps.Keys(left)))
	}
}
