package admin_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// operation is an endpoint in the OpenAPI document.
type operation struct {
	Parameters  []struct{ Name, In string }
	RequestBody any `yaml:"requestBody"`
	Responses   map[string]any
}

// Each endpoint takes exactly the parameters that are described. What it does
// not take is an error that names it, and so is a body where none is described:
// a call that changes something must not do more than was meant.
func TestParametersAreKnown(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	var doc struct {
		Paths map[string]map[string]yaml.Node
	}
	expect.NoError(t, yaml.Unmarshal([]byte(api.OpenAPI), &doc))

	refused := func(method, path, body, code, name string) {
		t.Helper()
		resp, answer := n.Do(apitest.Call{Method: method, URL: n.AdminURL + path, Body: body})
		if resp.StatusCode != 400 || !strings.Contains(answer, `"`+code+`"`) || !strings.Contains(answer, name) {
			t.Errorf("%s %s %s: have %d %s, want 400 %s that names %s",
				method, path, body, resp.StatusCode, answer, code, name)
		}
	}

	routes := n.Admin.Params()
	for _, route := range slices.Sorted(maps.Keys(routes)) {
		method, path, _ := strings.Cut(route, " ")
		var o operation
		found := doc.Paths[path][strings.ToLower(method)]
		expect.NoError(t, found.Decode(&o))

		described := []string{}
		for _, p := range o.Parameters {
			if p.In == "query" {
				described = append(described, p.Name)
			}
		}
		slices.Sort(described)
		expect.EqualSlices(t, slices.Sorted(slices.Values(routes[route])), described, "parameters of %s", route)
		if o.Responses["400"] == nil {
			t.Errorf("%s: 400 is not described", route)
		}

		path = strings.NewReplacer("{list}", "deny", "{name}", "login", "{attribute}", "user",
			"{value}", "ann").Replace(path)
		refused(method, path+"?nonsense=1", "", "unknown-field", "nonsense")
		refused(method, path+"?=1", "", "unknown-field", "parameter")
		refused(method, path+"?a;b=1", "", "bad-value", "query")
		for _, name := range described {
			refused(method, path+"?"+name+"=1&"+name+"=2", "", "bad-value", name)
			refused(method, path+"?"+strings.ReplaceAll(name, "_", "-")+"x=1", "", "unknown-field", name[:1])
		}
		if method != "GET" && o.RequestBody == nil {
			refused(method, path, `{"level":99}`, "unknown-field", "body")
		}
	}
	if version := n.Rules.Limiter.Rules().Version; version != 1 {
		t.Errorf("the rules have version %d, want 1: a refused call has changed them", version)
	}

	// What probes, scrapes and loads files may add parameters of its own.
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/ui/", "/openapi.yaml", "/schema.json",
		"/debug/pprof/"} {
		resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + path + "?name[]=a&name[]=b&_=1"})
		expect.Equal(t, resp.StatusCode, 200, "%s: %.100s", path, body)
	}
}

// A condition that a write does not know is not ignored.
func TestUnknownConditions(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, c := range []apitest.Call{
		{Method: "PUT", URL: "/v1/rules/login", Body: `{"key":["ip"],"limits":[{"limit":1,"per":"1m"}]}`,
			Header: map[string]string{"If-None-Match": "*"}},
		{Method: "PUT", URL: "/v1/rules", Body: yamlRules, Header: map[string]string{"If-None-Match": `"1"`}},
		{Method: "DELETE", URL: "/v1/rules/login",
			Header: map[string]string{"If-Unmodified-Since": "Mon, 02 Jan 2006 15:04:05 GMT"}},
		{Method: "POST", URL: "/v1/lists/deny/entries", Body: `{"ip":"192.0.2.7"}`,
			Header: map[string]string{"If-Match": `"1"`}},
	} {
		name := slices.Collect(maps.Keys(c.Header))[0]
		c.URL = n.AdminURL + c.URL
		resp, body := n.Do(c)
		if resp.StatusCode != 400 || !strings.Contains(body, "bad-value") || !strings.Contains(body, name) {
			t.Errorf("%s %s: have %d %s, want 400 that names it", c.URL, name, resp.StatusCode, body)
		}
	}
	if version := n.Rules.Limiter.Rules().Version; version != 1 {
		t.Errorf("the rules have version %d, want 1", version)
	}
}
