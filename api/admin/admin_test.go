package admin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules/document"
)

const yamlRules = "version: 1\nrules:\n  - name: only\n    key: [ip]\n    limits: [{limit: 7, per: 1m}]\n"

func TestRulesDocument(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	get := func(accept, path string) (*http.Response, string) {
		return n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + path, Header: map[string]string{"Accept": accept}})
	}
	resp, body := get("*/*", "/v1/rules")
	if resp.StatusCode != 200 || resp.Header.Get("ETag") != `"1"` || resp.Header.Get("Content-Type") != admin.TypeYAML {
		t.Errorf("have %d %v", resp.StatusCode, resp.Header)
	}
	if _, err := document.Parse([]byte(body)); err != nil {
		t.Errorf("the document in force can't be read back: %v", err)
	}
	for accept, want := range map[string]string{
		"application/json": codec.TypeJSON, "application/yaml": admin.TypeYAML,
		"text/html, application/json;q=0.5":              codec.TypeJSON,
		"application/json;q=0.5, application/yaml;q=0.9": admin.TypeYAML, "nonsense;;,": admin.TypeYAML,
	} {
		if resp, _ := get(accept, "/v1/rules"); resp.Header.Get("Content-Type") != want {
			t.Errorf("Accept %s: have %s, want %s", accept, resp.Header.Get("Content-Type"), want)
		}
	}
	resp, body = n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules", Body: yamlRules})
	if resp.StatusCode != 200 || strings.TrimSpace(body) != `{"version":2}` || resp.Header.Get("ETag") != `"2"` {
		t.Fatalf("have %d %s", resp.StatusCode, body)
	}
	if status, f := n.Check(`{"rule":"only","key":"k"}`); status != 200 || fmt.Sprint(f["rules_version"]) != "2" {
		t.Errorf("have %d %v", status, f)
	}
	if resp, body := get("", "/v1/rules?version=1"); resp.StatusCode != 200 ||
		resp.Header.Get("ETag") != `"1"` || !strings.Contains(body, "new-idea") {
		t.Errorf("version 1: have %d %v %s", resp.StatusCode, resp.Header, body)
	}
	for path, want := range map[string]int{
		"/v1/rules?version=2": 200, "/v1/rules?version=3": 404, "/v1/rules?version=0": 400,
		"/v1/rules?version=x": 400, "/v1/rules?other=1": 400,
	} {
		if resp, body := get("", path); resp.StatusCode != want {
			t.Errorf("%s: have %d %s, want %d", path, resp.StatusCode, body, want)
		}
	}
	if resp, body := get("", "/v1/rules/versions"); resp.StatusCode != 200 ||
		!strings.HasPrefix(body,
			`{"versions":[{"version":2,"when":"1970-01-01T00:00:00Z","by":"test","what":"all","size":1,"applied":2},{"version":1,`) {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
}

func TestIfMatch(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, tt := range []struct {
		match  string
		status int
	}{
		{"", 200}, {"*", 200}, {`"3"`, 200}, {"4", 200}, {`W/"5"`, 200}, {`"1", "6"`, 200},
		{`"1"`, 412}, {`"0"`, 412}, {"0", 412}, {`"99"`, 412},
		{"x", 400}, {`"7`, 400}, {`"-7"`, 400}, {`"7" x`, 400}, {",", 400},
	} {
		c := apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules", Body: yamlRules}
		if tt.match != "" {
			c.Header = map[string]string{"If-Match": tt.match}
		}
		if resp, body := n.Do(c); resp.StatusCode != tt.status {
			t.Errorf("If-Match %s: have %d %s, want %d", tt.match, resp.StatusCode, body, tt.status)
		}
	}
}

func TestInvalidRules(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	resp, body := n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules",
		Body: "version: 1\nrules:\n  - name: x\n    key: [ip]\n    limits: [{limit: -1, per: 1m}, {limit: 5, per: nope}]\n    colour: red\n"})
	f := apitest.Fields(t, body)
	list, _ := f["errors"].([]any)
	if resp.StatusCode != 422 || f["code"] != string(api.InvalidRules) || len(list) < 3 {
		t.Fatalf("have %d %s", resp.StatusCode, body)
	}
	for _, e := range list {
		m := e.(map[string]any)
		if fmt.Sprint(m["line"]) == "0" || fmt.Sprint(m["column"]) == "0" || m["message"] == "" {
			t.Errorf("have %v", m)
		}
	}
	for _, body := range []string{"", "[", "\x00\xff", "a: &a [*a, *a]",
		strings.Repeat("[", 100_000), "{\"version\":1,\"rules\":5}"} {
		if resp, answer := n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules",
			Body: body}); resp.StatusCode != 422 {
			t.Errorf("%.20q: have %d %.200s", body, resp.StatusCode, answer)
		}
	}
	if resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/rules"}); resp.Header.Get("ETag") != `"1"` {
		t.Errorf("an invalid write changed the rules: have version %s", resp.Header.Get("ETag"))
	}
	if resp, body := n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules",
		Body: yamlRules + strings.Repeat("#", 20<<20)}); resp.StatusCode != 413 {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	_, body := n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules",
		Body: yamlRules + "    usage: monthly\n    shadow: true\n"})
	if !strings.HasPrefix(body, `{"version":2,"warnings":[{"line":6,`) {
		t.Errorf("have %s", body)
	}
}

func TestPieces(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	subject := "/v1/subjects/tenant/" + url.PathEscape("a/b c%2F\"ü")
	for _, tt := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/v1/rules/login", "", 200, `"login"`},
		{"GET", "/v1/rules/nope", "", 404, "not-found"},
		{"PUT", "/v1/rules/fresh", `{"key":["ip"],"limits":[{"limit":1,"per":"1h"}]}`, 200, `"version":2`},
		{"PUT", "/v1/rules/fresh", "key: [ip]\nlimits: [{limit: 2, per: 1h}]", 200, `"version":3`},
		{"PUT", "/v1/rules/fresh",
			`{"name":"other","key":["ip"],"limits":[{"limit":1,"per":"1h"}]}`, 422, "invalid-rules"},
		{"GET", "/v1/rules/fresh", "", 200, `"limit":2`},
		{"DELETE", "/v1/rules/fresh", "", 200, `"version":4`},
		{"DELETE", "/v1/rules/fresh", "", 404, "not-found"},
		{"GET", "/v1/tiers/free", "", 200, "100"},
		{"PUT", "/v1/tiers/gold", "limits: [{limit: 9, per: 1h}]", 200, `"version":5`},
		{"PUT", subject, "{tier: gold}", 200, `"entries_version":1`},
		{"GET", subject, "", 200, "gold"},
		{"GET", "/v1/subjects/tenant/a", "", 404, "not-found"},
		{"DELETE", "/v1/tiers/gold", "", 200, `"version":6`},
		{"GET", "/v1/entries?asleep=true", "", 200, `"asleep":true`},
		{"DELETE", subject, "", 200, `"entries_version":2`},
		{"GET", subject, "", 404, "not-found"},
		{"GET", "/v1/lists/deny", "", 200, "192.0.2.0/24"},
		{"PUT", "/v1/lists/deny", "[{ip: 198.51.100.0/24}]", 200, `"version":7`},
		{"GET", "/v1/lists/deny", "", 200, "198.51.100.0/24"},
		{"DELETE", "/v1/lists/allow", "", 200, `"version":8`},
		{"GET", "/v1/lists/other", "", 404, "not-found"},
		{"PUT", "/v1/lists/other", "[]", 404, "not-found"},
		{"DELETE", "/v1/lists/other", "", 404, "not-found"},
		{"POST", "/v1/rules/login", "", 405, "GET, PUT, DELETE, HEAD"},
	} {
		resp, body := n.Do(apitest.Call{Method: tt.method, URL: n.AdminURL + tt.path, Body: tt.body})
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: have %d %s, want %d %s", tt.method, tt.path, resp.StatusCode, body, tt.status, tt.want)
		}
	}
	// Checks on the data plane follow the new rules.
	if status, f := n.Check(`{"attributes":{"ip":"198.51.100.1"}}`); status != 403 || f["decided_by"] != "list" {
		t.Errorf("have %d %v", status, f)
	}
}

// A document that a caller brings is no rollback, whatever it says.
func TestDocumentsAreNoRollbacks(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	resp, body := n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules?via=rollback",
		Body: `{"version":1,"rules":[]}`})
	if resp.StatusCode != 400 || !strings.Contains(body, "via is not one of") {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
}

// What GET shows of a list can't be put back: where an item comes from would be
// an attribute that no check has, and nobody would be denied any more.
func TestListIsNotPutBack(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	const deny = "/v1/lists/deny"
	resp, _ := n.Do(apitest.Call{Method: "POST", URL: n.AdminURL + deny + "/entries",
		Body: `{"ip":"203.0.113.7","note":"attack"}`})
	expect.Equal(t, resp.StatusCode, 200, "status of a new entry")
	for _, form := range []string{"application/json", "application/yaml"} {
		got, shown := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + deny, Header: map[string]string{"Accept": form}})
		resp, body := n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + deny, Body: shown,
			Header: map[string]string{"If-Match": got.Header.Get("ETag")}})
		if resp.StatusCode != 422 || !strings.Contains(body, `"path":"lists.deny[0].origin"`) ||
			!strings.Contains(body, `"path":"lists.deny[1].note"`) {
			t.Errorf("%s put back: have %d %s", shown, resp.StatusCode, body)
		}
	}
	for _, ip := range []string{"192.0.2.1", "203.0.113.7"} {
		if status, f := n.Check(`{"attributes":{"ip":"` + ip + `"}}`); status != 403 || f["decided_by"] != "list" {
			t.Errorf("%s: have %d %v", ip, status, f)
		}
	}
}

// Tiers and subjects are listed page by page.
func TestPages(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	var text strings.Builder
	text.WriteString("version: 1\nrules: [{name: r, key: [ip], tiered: true}]\ntiers:\n")
	for _, name := range []string{"c", "a", "b"} {
		fmt.Fprintf(&text, "  %s: {limits: [{limit: 1, per: 7d}]}\n", name)
	}
	text.WriteString("subjects: {ip: {")
	for i := range 250 {
		fmt.Fprintf(&text, "10.0.0.%d: {tier: a}, ", i)
	}
	n.UseRules(text.String() + "}}\n")
	get := func(path string, status int) string {
		t.Helper()
		resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + path})
		if resp.StatusCode != status || status == 200 && resp.Header.Get("ETag") != `"2"` {
			t.Errorf("%s: have %d %s", path, resp.StatusCode, body)
		}
		return body
	}
	limits := `"limits":[{"limit":1,"per":"7d"}]`
	for path, want := range map[string]string{
		"/v1/tiers": `{"tiers":[{"name":"a",` + limits + `},{"name":"b",` +
			limits + `},{"name":"c",` + limits + `}]}`,
		"/v1/tiers?n=2": `{"next":"b","tiers":[{"name":"a",` + limits +
			`},{"name":"b",` + limits + `}]}`,
		"/v1/tiers?n=2&after=b":            `{"tiers":[{"name":"c",` + limits + `}]}`,
		"/v1/tiers?after=aa&n=1":           `{"next":"b","tiers":[{"name":"b",` + limits + `}]}`,
		"/v1/tiers?after=z":                `{"tiers":[]}`,
		"/v1/subjects/tenant":              `{"subjects":[]}`,
		"/v1/subjects/ip?n=1":              `{"next":"10.0.0.0","subjects":[{"value":"10.0.0.0","tier":"a","origin":"document"}]}`,
		"/v1/subjects/ip?after=10.0.0.99":  `{"subjects":[]}`,
		"/v1/subjects/ip?after=10.0.0.98:": `{"subjects":[{"value":"10.0.0.99","tier":"a","origin":"document"}]}`,
	} {
		expect.Equal(t, strings.TrimSpace(get(path, 200)), want, "%s", path)
	}
	seen, after, pages := map[string]bool{}, "", 0
	for more := true; more; pages++ {
		var page struct {
			Subjects []struct{ Value string }
			Next     string
		}
		expect.NoError(t, json.Unmarshal([]byte(get("/v1/subjects/ip?after="+after, 200)), &page))
		for _, one := range page.Subjects {
			seen[one.Value] = true
		}
		after, more = page.Next, page.Next != ""
	}
	if len(seen) != 250 || pages != 3 {
		t.Errorf("have %d subjects on %d pages", len(seen), pages)
	}
	for _, bad := range []string{"0", "-1", "1001", "x", "1.5"} {
		if body := get("/v1/tiers?n="+bad, 400); !strings.Contains(body, "bad-value") ||
			!strings.Contains(body, "1 to 1000") {
			t.Errorf("n=%s: have %s", bad, body)
		}
	}
}

func TestPiecesByAccept(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, tt := range []struct{ accept, kind, want string }{
		{"", codec.TypeJSON, `"name":"login"`}, {"*/*", codec.TypeJSON, `"name":"login"`},
		{"application/yaml", admin.TypeYAML, "name: login"},
		{"application/json, application/yaml;q=0.5", codec.TypeJSON, `"name":"login"`},
	} {
		resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/rules/login",
			Header: map[string]string{"Accept": tt.accept}})
		if resp.Header.Get("Content-Type") != tt.kind || !strings.Contains(body, tt.want) ||
			resp.Header.Get("Vary") != "Accept" {
			t.Errorf("%q: have %s %s", tt.accept, resp.Header.Get("Content-Type"), body)
		}
	}
}

func TestUsageOwnerTop(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for range 7 {
		n.Check(`{"rule":"login","key":"198.51.100.7"}`)
	}
	n.Check(`{"rule":"pair","key":["acme","/chat"]}`)
	pair := "rule=pair&key=" + url.QueryEscape(`["acme","/chat"]`)
	for _, tt := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/v1/usage?rule=login&key=198.51.100.7", 200,
			`{"rule":"login","key":"198.51.100.7","owner":"n1","limits":[{"name":"login","algorithm":"sliding-window-log","unit":"requests","limit":5,"window_ms":3600000,"used":5,"remaining":0,`},
		{"GET", "/v1/usage?rule=login&key=198.51.100.7", 200, `"blocked_until_ms":0,"shares":{}}`},
		{"GET", "/v1/usage?rule=login&key=::ffff:198.51.100.7", 200, `"used":5`},
		{"GET", "/v1/usage?" + pair, 200,
			`{"rule":"pair","key":["acme","/chat"],"owner":"n1","limits":[{"name":"pair","algorithm":"token-bucket","unit":"requests","limit":3,"window_ms":3600000,"used":1,"remaining":2,`},
		{"GET", "/v1/usage?rule=all", 200, `"key":[],`},
		{"GET", "/v1/usage?rule=login&key=", 400, "missing-key"},
		{"GET", "/v1/usage?rule=pair&key=acme", 400, "bad-value"},
		{"GET", "/v1/usage?rule=pair&key=" + url.QueryEscape(`["a"]`), 400, "bad-value"},
		{"GET", "/v1/usage?rule=pair&key=" + url.QueryEscape(`["a",5]`), 200, `"key":["a","5"]`},
		{"GET", "/v1/usage?rule=pair&key=" + url.QueryEscape(`["a",5.5]`), 400, "bad-value"},
		{"GET", "/v1/usage?rule=pair&key=" + url.QueryEscape(`["a",""]`), 400, "missing-key"},
		{"GET", "/v1/usage?rule=pair&key=" + url.QueryEscape(`["a","b"`), 400, "bad-value"},
		{"GET", "/v1/usage?rule=login&key=%ff", 400, "bad-value"},
		{"GET", "/v1/usage?rule=login&key=" + strings.Repeat("k", 1025), 400, "bad-value"},
		{"GET", "/v1/usage?rule=login", 400, "missing-key"},
		{"GET", "/v1/usage?rule=login&key=" + url.QueryEscape(`["a","b"]`), 400, "key does not fit"},
		{"GET", "/v1/owner?rule=login&key=" + url.QueryEscape(`["a","b"]`), 400, "key does not fit"},
		{"GET", "/v1/usage?rule=all&key=" + url.QueryEscape(`["a","b"]`), 400, "key does not fit"},
		{"GET", "/v1/usage?key=k", 400, "missing-key"},
		{"GET", "/v1/usage?rule=nope&key=k", 404, "unknown-rule"},
		{"GET", "/v1/owner?" + pair, 200, `{"rule":"pair","key":["acme","/chat"],"partition":`},
		{"GET", "/v1/owner?rule=all", 200, `"epoch":1,"owner":"n1","standby":""}`},
		{"GET", "/v1/owner?rule=nope", 404, "unknown-rule"},
		{"GET", "/v1/top", 200, `{"subjects":[{"rule":"login","key":"198.51.100.7","refused":2,"checks":`},
		{"GET", "/v1/top?by=refused&n=1", 200, `"refused":2`},
		{"GET", "/v1/top?by=recent&n=1", 200, `"recent":2}],"nodes":[{"name":"n1","id":`},
		{"GET", "/v1/top?by=near&rule=login", 200, `"key":"198.51.100.7","refused":0,"checks":0,"used":5,"limit":5}`},
		{"GET", "/v1/top?by=used&recent=true", 200, `"used":`},
		{"GET", "/v1/top?by=near&recent=true", 400, "bad-value"},
		{"GET", "/v1/top?recent=1", 400, "bad-value"},
		{"GET", "/v1/top?by=checks", 400, "bad-value"},
		{"GET", "/v1/top?n=0", 400, "bad-value"},
		{"GET", "/v1/top?n=1001", 400, "bad-value"},
		{"GET", "/v1/top?n=x", 400, "bad-value"},
		{"DELETE", "/v1/usage?rule=nope&key=k", 404, "unknown-rule"},
		{"DELETE", "/v1/usage?rule=login&key=198.51.100.7", 200, `"used":0,"remaining":5,`},
		{"GET", "/v1/usage?rule=login&key=198.51.100.7", 200, `"used":0,`},
		{"PUT", "/v1/usage", 405, "GET, POST, DELETE, HEAD"},
		{"GET", "/v1/cluster", 200,
			`{"epoch":1,"settled":true,"view":"connected","leader":"n1","rules_version":1,"recorded_version":0,"members":[{"name":"n1","id":"01000000000000000000000000000000","address":"127.0.0.1","region":"default","zone":"","state":"alive","voter":true,"leader":true,"in_ring":true,"behind":false,"partitions":4096,"reachable":true}],"regions":[{"name":"default","primary":true,"reachable":true,"members":1,"committed":false}]}`},
		{"POST", "/v1/feedback", 400, "bad-json"}, {"POST", "/v1/leave", 200, "left"},
		{"GET", "/nothing/", 404, "not-found"}, {"POST", "/", 404, "not-found"}, {"GET", "/", 200, "<!doctype html>"},
		{"GET", "/debug/pprof/", 200, "goroutine"}, {"GET", "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{"POST", "/debug/pprof/profile", 405, "GET, HEAD"}, {"GET", "/debug/pprof/cmdline", 404, ""},
	} {
		resp, body := n.Do(apitest.Call{Method: tt.method, URL: n.AdminURL + tt.path})
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: have %d %s, want %d %s", tt.method, tt.path, resp.StatusCode, body, tt.status, tt.want)
		}
	}
}

func TestAdminToken(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.AdminToken = "secret" })
	for _, tt := range []struct {
		method, path, header string
		status               int
	}{
		{"GET", "/v1/rules", "", 401}, {"GET", "/v1/rules", "Bearer secret", 200},
		{"PUT", "/v1/rules", "", 401}, {"PUT", "/v1/rules", "Bearer wrong", 401},
		{"PUT", "/v1/rules", "Bearer secret", 200},
		{"PUT", "/v1/rules/x", "", 401}, {"DELETE", "/v1/rules/x", "", 401},
		{"PUT", "/v1/tiers/x", "", 401}, {"PUT", "/v1/subjects/x/y", "", 401},
		{"PUT", "/v1/lists/deny", "", 401}, {"DELETE", "/v1/usage?rule=login&key=k", "", 401},
		{"GET", "/v1/usage?rule=only&key=k", "Bearer secret", 200},
	} {
		c := apitest.Call{Method: tt.method, URL: n.AdminURL + tt.path, Body: yamlRules}
		if tt.header != "" {
			c.Header = map[string]string{"Authorization": tt.header}
		}
		resp, body := n.Do(c)
		if resp.StatusCode != tt.status || (tt.status == 401) != (resp.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s %s %q: have %d %s, want %d", tt.method, tt.path, tt.header, resp.StatusCode, body, tt.status)
		}
	}
}

// A page in a browser can't write, with or without a token.
func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "secret"} {
		n := startNode(t, func(c *apitest.Config) { c.AdminToken = token })
		for _, tt := range []struct {
			method string
			header map[string]string
			status int
		}{
			{"PUT", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
			{"PUT", map[string]string{"Origin": "https://evil.example"}, 403},
			{"DELETE", map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
			{"PUT",
				map[string]string{"Sec-Fetch-Site": "same-origin", "Rlnode-Dashboard": "1",
					"Content-Type": "application/yaml"},
				200},
			{"GET", map[string]string{"Origin": "https://evil.example"}, 403},
			{"GET", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
			{"GET", map[string]string{"Sec-Fetch-Site": "same-origin"}, 200},
		} {
			c := apitest.Call{Method: tt.method, URL: n.AdminURL + "/v1/rules", Body: yamlRules, Header: tt.header}
			if token != "" {
				c.Header["Authorization"] = "Bearer " + token
			}
			resp, body := n.Do(c)
			if resp.StatusCode != tt.status || tt.status == 403 && apitest.NoteCode([]byte(body)) != api.CrossOrigin {
				t.Errorf("%s %v: have %d %s, want %d", tt.method, tt.header, resp.StatusCode, body, tt.status)
			}
		}
	}
}

func TestWriteFailures(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, tt := range []struct {
		err    error
		status int
		code   api.Code
	}{
		{fmt.Errorf("forward: %w", cluster.ErrLeaderUnavailable), 503, api.NoLeader},
		{fmt.Errorf("forward: %w", cluster.ErrNoPrimary), 503, api.NoPrimary},
		{errors.New("no space left on device"), 503, api.WriteFailed},
	} {
		n.Rules.Fail.Store(&tt.err)
		resp, body := n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules", Body: yamlRules})
		if code := apitest.NoteCode([]byte(body)); resp.StatusCode != tt.status || code != tt.code {
			t.Errorf("%v: have %d %s, want %d %s", tt.err, resp.StatusCode, body, tt.status, tt.code)
		}
	}
}

// To parse a document takes many times its size, so one is written at a time.
func TestWritesTakeTurns(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	var inside, most atomic.Int32
	n.Rules.Writing = func() {
		if now := inside.Add(1); now > most.Load() {
			most.Store(now)
		}
		time.Sleep(20 * time.Millisecond) // the others arrive
		inside.Add(-1)
	}

	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			resp, body := n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules", Body: yamlRules})
			expect.Equal(t, resp.StatusCode, 200, "status of a write: %s", body)
		})
	}
	writers.Wait()
	expect.Equal(t, most.Load(), 1, "writes at once")
}

// Before there are rules, endpoints that need them answer with an error, and the others work.
func TestAdminWithoutRules(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) {
		l := limiter.New(nil, nil)
		c.Decider, c.Subjects, c.Metrics = l, l, []metrics.Source{l.Metrics}
	})
	for path, want := range map[string]int{
		"/v1/rules": 503, "/v1/rules/x": 503, "/v1/usage?rule=x": 503, "/v1/owner?rule=x": 503,
		"/v1/cluster": 200, "/metrics": 200, "/healthz": 200, "/v1/top": 200, "/readyz": 503,
	} {
		if resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + path}); resp.StatusCode != want {
			t.Errorf("%s: have %d %s, want %d", path, resp.StatusCode, body, want)
		}
	}
	if status, f := n.Check(`{"rule":"all"}`); status != 503 || f["code"] != string(api.NotReady) {
		t.Errorf("have %d %v", status, f)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for range 6 {
		n.Check(`{"rule":"login","key":"198.51.100.7"}`)
	}
	n.Check(`{"attributes":{"ip":"192.0.2.1"}}`)
	n.Check(`{"attributes":{"idea":"x"},"cost":2}`)
	resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/metrics"})
	if resp.StatusCode != 200 {
		t.Fatalf("have %d %s", resp.StatusCode, body)
	}
	for _, want := range []string{
		`rlnode_checks_total{decided_by="owner",decision="allowed",rule="login"} 5`,
		`rlnode_checks_total{decided_by="owner",decision="refused",rule="login"} 1`,
		`rlnode_checks_total{decided_by="list",decision="refused",rule=""} 1`,
		`rlnode_checks_total{decided_by="owner",decision="shadow-refused",rule="new-idea"} 1`,
		`rlnode_check_seconds_count 8`, `rlnode_check_seconds_bucket{le="2.5e-06"}`,
		`rlnode_headroom_ratio_bucket{rule="login",le="0"} 2`,
		`rlnode_headroom_ratio_bucket{rule="login",le="0.2"} 3`,
		`rlnode_headroom_ratio_count{rule="login"} 6`,
		`rlnode_counters 1`, `rlnode_counters_max 100000`, `rlnode_counters_bytes`,
		`rlnode_counters_evicted_total 0`, `rlnode_counters_expired_total 0`,
		`rlnode_counters_refused_total 0`, `rlnode_rules_version 1`, `rlnode_ready 1`, `rlnode_panics_total 0`,
		`rlnode_build_info{go="go`, `go_goroutines`, `process_resident_memory_bytes`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}
