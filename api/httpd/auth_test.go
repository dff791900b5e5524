package httpd

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

const authRules = `
version: 1
lists:
  deny: [{ip: 192.0.2.0/24}]
rules:
  - {name: ip, key: [ip], limits: [{limit: 3, per: 8760h, algorithm: fixed-window}]}
  - {name: login, match: {endpoint: /login, Method: POST}, key: [], limits: [{limit: 2, per: 8760h, algorithm: fixed-window}]}
  - {name: key, key: [api_key], cost: {by: endpoint, values: {/search: 10}}, limits: [{limit: 20, per: 8760h, algorithm: fixed-window}]}
  - {name: small, key: [tenant], limits: [{limit: 1, per: 8760h, algorithm: fixed-window}], cost: {by: tenant, values: {big: 2}}}
profiles:
  web: {ip: header:X-Forwarded-For, trusted_hops: 2, endpoint: header:X-Forwarded-Uri, Method: header:X-Forwarded-Method, api_key: header:X-Api-Key}
  key: {api_key: header:x-api-key, endpoint: header:X-Original-Url}
  tenants: {tenant: header:X-Tenant}
  "a b/c": {ip: header:X-Real-IP}
`

func startAuth(t *testing.T, change func(*apitest.Config)) *node {
	n := startNode(t, change)
	n.UseRules(authRules)
	return n
}

func TestAuthDecides(t *testing.T) {
	n := startAuth(t, nil)
	tests := []struct {
		path, headers string
		status        int
		rule, left    string // of the first item of RateLimit; empty: no such header
	}{
		{"/v1/auth/web", "X-Forwarded-For: 203.0.113.9, 10.0.0.1", 200, "ip", "2"},
		{"/v1/auth/web", "X-Forwarded-For: 203.0.113.9:1234,10.0.0.1", 200, "ip", "1"},
		{"/v1/auth/web", "X-Forwarded-For: 8.8.8.8, ::ffff:203.0.113.9, 10.0.0.1", 200, "ip", "0"},
		{"/v1/auth/web", "X-Forwarded-For: 9.9.9.9, 203.0.113.9, 10.0.0.1", 429, "ip", "0"},
		{"/v1/auth/web?deny_status=403", "X-Forwarded-For: 203.0.113.9, 10.0.0.1", 403, "ip", "0"},
		{"/v1/auth/web?x=1&deny_status=499&deny_status=1", "X-Forwarded-For: 203.0.113.9, 10.0.0.1", 499, "ip", "0"},
		{"/v1/auth/web?deny_status=400", "X-Forwarded-For: 10.0.0.1", 200, "ip", "2"}, // fewer than two: the leftmost
		{"/v1/auth/web", "X-Forwarded-For: [2001:db8::1]:1, 10.0.0.1", 200, "ip", "2"},
		{"/v1/auth/web", "X-Forwarded-For: 2001:db8::2, 10.0.0.1", 200, "ip", "1"}, // the same /64

		// Without a credible address, the address of the peer counts.
		{"/v1/auth/web", "", 200, "ip", "2"},
		{"/v1/auth/web", "X-Forwarded-For: unknown", 200, "ip", "1"},
		{"/v1/auth/web", "X-Forwarded-For: x'); --, _a", 200, "ip", "0"},
		{"/v1/auth/web", "X-Forwarded-For: ", 429, "ip", "0"},
		{"/v1/auth/web", "X-Forwarded-For: 127.0.0.1, 10.0.0.1", 429, "ip", "0"},
		{"/v1/auth/a%20b%2Fc", "", 429, "ip", "0"},

		// All or nothing, and the query is not part of the endpoint.
		{"/v1/auth/web",
			"X-Forwarded-For: 10.1.0.1|X-Forwarded-Uri: /login?a=1|X-Forwarded-Method: POST", 200,
			"login", "1"},
		{"/v1/auth/web",
			"X-Forwarded-For: 10.1.0.2|X-Forwarded-Uri: /login|X-Forwarded-Method: POST", 200, "login",
			"0"},
		{"/v1/auth/web",
			"X-Forwarded-For: 10.1.0.3|X-Forwarded-Uri: /login#a?b|X-Forwarded-Method: POST", 429,
			"login", "0"},
		{"/v1/auth/web", "X-Forwarded-For: 10.1.0.3|X-Forwarded-Uri: /login|X-Forwarded-Method: GET", 200, "ip", "2"},

		// The rule's cost table applies.
		{"/v1/auth/key", "X-Api-Key: k1", 200, "key", "19"},
		{"/v1/auth/key", "X-Api-Key: k1|X-Original-Url: /search?q=1", 200, "key", "9"},
		{"/v1/auth/key", "X-Api-Key: k1|X-Original-Url: /search", 429, "key", "9"},

		// No rule applies; the check can never be allowed; the lists.
		{"/v1/auth/key", "", 200, "", ""},
		{"/v1/auth/key", "X-Api-Key: ", 200, "", ""},
		{"/v1/auth/tenants?deny_status=401", "X-Tenant: big", 401, "small", "1"},
		{"/v1/auth/web", "X-Forwarded-For: 192.0.2.5, 10.0.0.1", 403, "", ""},
		{"/v1/auth/web?deny_status=429", "X-Forwarded-For: 192.0.2.5, 10.0.0.1", 429, "", ""},
		{"/v1/auth/web?deny_status=401", "X-Forwarded-For: 192.0.2.5, 10.0.0.1", 401, "", ""},

		// The profile's name is followed by the path and the query of the request that
		// the proxy asks about.
		{"/v1/auth/web/any/../../../../healthz?deny_status=200",
			"X-Forwarded-For: 203.0.113.9, 10.0.0.1", 429, "ip", "0"},
		{"/v1/auth/web/%zz?deny_status=403", "X-Forwarded-For: 203.0.113.9, 10.0.0.1", 429, "ip", "0"},
		{"/v1/auth/web?deny_status=403", "X-Forwarded-For: 203.0.113.9, 10.0.0.1", 403, "ip", "0"},
	}
	for i, tt := range tests {
		resp, body := n.sendRaw("GET", tt.path, tt.headers)
		name, left := "", ""
		if item := resp.Header.Get("RateLimit"); item != "" {
			name, left, _ = strings.Cut(strings.Split(item, ",")[0], ";r=")
			left, _, _ = strings.Cut(left, ";")
			name = strings.Trim(name, `"`)
		}
		if resp.StatusCode != tt.status || name != tt.rule || left != tt.left {
			t.Errorf("%d %s %q: have %d %q %s, want %d %q %s", i, tt.path, tt.headers,
				resp.StatusCode, name, left, tt.status, tt.rule, tt.left)
		}
		checkAuthAnswer(t, resp, body)
	}
}

// checkAuthAnswer checks what all answers have in common.
func checkAuthAnswer(t *testing.T, resp *http.Response, body string) {
	t.Helper()
	kind := resp.Header.Get("Content-Type")
	if resp.StatusCode == 200 {
		if body != "" || kind != "" || resp.Header.Get("Retry-After") != "" {
			t.Errorf("allowed: have %q of type %q, %v", body, kind, resp.Header)
		}
		return
	}
	f := apitest.Fields(t, body)
	if kind != codec.TypeProblem || fmt.Sprint(f["status"]) != fmt.Sprint(resp.StatusCode) || f["allowed"] != false {
		t.Errorf("refused: have type %q, %s", kind, body)
	}
	ends := fmt.Sprint(f["retry_after_ms"]) != "-1"
	if have := resp.Header.Get("Retry-After"); (have != "") != ends {
		t.Errorf("retry after: have %q, %s", have, body)
	}
}

// sendRaw sends a request exactly as given; | separates header lines.
func (n *node) sendRaw(method, path, headers string) (*http.Response, string) {
	n.T.Helper()
	c := n.dial(n.T)
	defer c.Close()
	if headers != "" {
		headers = strings.ReplaceAll(headers, "|", "\r\n") + "\r\n"
	}
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: n\r\n%s\r\n", method, path, headers)
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		n.T.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.T.Fatal(err)
	}
	apitest.NoteCode(body)
	return resp, string(body)
}

func TestAuthErrors(t *testing.T) {
	n := startAuth(t, func(c *apitest.Config) { c.APIToken = "secret" })
	const token = "Authorization: Bearer secret"
	tests := []struct {
		path, headers string
		status        int
		code          api.Code
		detail        string
	}{
		{"/v1/auth/web", "", 401, api.Unauthorized, "Bearer"},
		{"/v1/auth/web", "Authorization: Bearer secreT", 401, api.Unauthorized, "Bearer"},
		{"/v1/auth/web", token, 200, "", ""},
		{"/v1/auth/nope", token, 404, api.NotFound, `"nope"`},
		{"/v1/auth/", token, 404, api.NotFound, "profile"},
		{"/v1/auth", token, 404, api.NotFound, "/v1/auth"},
		{"/v1/auth//web", token, 404, api.NotFound, `""`},
		{"/v1/auth/we%zz", token, 404, api.NotFound, "we%zz"},
		{"/v1/auth/%ff", token, 404, api.NotFound, "%ff"},
		{"/v1/auth/" + strings.Repeat("x", 5000), token, 404, api.NotFound, "xxx"},
		{"/v1/auth/web?deny_status=", token, 400, api.BadValue, "deny_status"},
		{"/v1/auth/web?deny_status", token, 200, "", ""},
		{"/v1/auth/web?deny_status=200", token, 400, api.BadValue, "400 to 499"},
		{"/v1/auth/web?deny_status=399", token, 400, api.BadValue, "deny_status"},
		{"/v1/auth/web?deny_status=500", token, 400, api.BadValue, "deny_status"},
		{"/v1/auth/web?deny_status=4030", token, 400, api.BadValue, "deny_status"},
		{"/v1/auth/web?deny_status=4%33", token, 400, api.BadValue, "deny_status"},
		{"/v1/auth/web?deny_status=403&x=%zz", token, 200, "", ""},
	}
	for _, tt := range tests {
		resp, body := n.sendRaw("GET", tt.path, tt.headers)
		if resp.StatusCode != tt.status {
			t.Errorf("%.60s: have %d, want %d: %s", tt.path, resp.StatusCode, tt.status, body)
		}
		if tt.code == "" {
			continue
		}
		f := apitest.Fields(t, body)
		if detail, _ := f["detail"].(string); f["code"] != string(tt.code) || !strings.Contains(detail, tt.detail) {
			t.Errorf("%.60s: have %s, want %s, %q", tt.path, body, tt.code, tt.detail)
		}
	}
}

// Any method is allowed. A large body affects only the connection.
func TestAuthMethodsAndBodies(t *testing.T) {
	t.Parallel()
	n := startAuth(t, nil)
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS",
		"TRACE", "PROPFIND", "get"} {
		resp, body := n.sendRaw(method, "/v1/auth/web?deny_status=403", "X-Forwarded-For: 203.0.113.9")
		want := 200
		if n.usageOf("ip", "203.0.113.9") > 3 {
			t.Fatal("more checks were allowed than the limit")
		}
		if resp.StatusCode == 403 {
			want = 403
			if resp.Header.Get("Retry-After") == "" || (body == "") != (method == "HEAD") {
				t.Errorf("%s: have %v %q", method, resp.Header, body)
			}
		}
		expect.Equal(t, resp.StatusCode, want, "%s", method)
	}
	expect.Equal(t, n.usageOf("ip", "203.0.113.9"), int64(3), "used")
	const ask = " /v1/auth/key HTTP/1.1\r\nHost: n\r\nX-Api-Key: k\r\n"
	next := "GET" + ask + "\r\n"
	small, big := strings.Repeat("x", 20<<10), strings.Repeat("x", 1<<20)
	tests := []struct {
		name, send string
		answers    int
		closes     bool
	}{
		{"none", "POST" + ask + "\r\n", 2, false},
		{"GET with a body", "GET" + ask + "Content-Length: 4\r\n\r\nGET ", 2, false},
		{"HEAD with a body", "HEAD" + ask + "Content-Length: 4\r\n\r\nGET ", 2, false},
		{"small", "PUT" + ask + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(small), small), 2, false},
		{"small in chunks",
			"POST" + ask + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(small), small),
			2, false},
		{"no JSON", "POST" + ask + "Content-Length: 2\r\n\r\n\xff{", 2, false},
		{"form",
			"POST" + ask + "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 5\r\n\r\n--x--",
			2, false},
		{"large", "POST" + ask + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(big), big), 1, true},
		{"large in chunks",
			"POST" + ask + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(big), big),
			1, true},
		{"large and announced",
			"POST" + ask + fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s", len(big), big),
			1, true},
	}
	for _, tt := range tests {
		n.UseRules(fmt.Sprintf("profiles: {key: {api_key: header:X-Api-Key}}\nrules: [{name: %q, key: [api_key], limits: [{limit: 9, per: 8760h, algorithm: fixed-window}]}]", tt.name))
		c := n.dial(t)
		go func() { _, _ = io.WriteString(c, tt.send+next) }() // ends with the connection
		r := bufio.NewReader(c)
		for i := range tt.answers {
			method := "GET"
			if i == 0 {
				method, _, _ = strings.Cut(tt.send, " ")
			}
			resp, err := http.ReadResponse(r, &http.Request{Method: method})
			for err == nil && resp.StatusCode == 100 {
				resp, err = http.ReadResponse(r, &http.Request{Method: method})
			}
			if err != nil || resp.StatusCode != 200 || i+1 == tt.answers && resp.Close != tt.closes {
				t.Fatalf("%s, answer %d: have %v %v", tt.name, i, resp, err)
			}
			expect.Equal(t, resp.Header.Get("X-RateLimit-Remaining"), fmt.Sprint(8-i),
				"%s, answer %d: remain", tt.name, i)
			resp.Body.Close()
		}
		c.Close()
	}
}

// A header that holds a secret is counted by its fingerprint, and the secret appears nowhere.
func TestAuthFingerprints(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.UseRules("profiles: {key: {api_key: fingerprint:X-Api-Key}}\nrules: [{name: key, key: [api_key], limits: [{limit: 2, per: 8760h, algorithm: fixed-window}]}]")
	long := strings.Repeat("k", 3000) // a plain header would count by its first 1,024 bytes
	for i, tt := range []struct {
		headers string
		want    int
	}{
		{"X-Api-Key: k1", 200}, {"X-Api-Key:  k1 ", 200}, {"X-Api-Key: k1", 429},
		{"X-Api-Key: k1|X-Api-Key: k2", 429}, {"X-Api-Key: k2", 200},
		{"X-Api-Key: " + long + "a", 200}, {"X-Api-Key: " + long + "a", 200},
		{"X-Api-Key: " + long + "a", 429}, {"X-Api-Key: " + long + "b", 200},
		{"X-Api-Key: \xff\xfe", 200}, {"X-Api-Key: ", 200}, {"", 200},
		{"X-Api-Key: 6ab9f1eb8f7d3388f4f9d586f66e99fd", 200},
	} {
		if resp, body := n.sendRaw("GET", "/v1/auth/key", tt.headers); resp.StatusCode != tt.want {
			t.Errorf("%d %.40q: have %d %s, want %d", i, tt.headers, resp.StatusCode, body, tt.want)
		}
	}
	expect.Equal(t, n.usageOf("key", "6ab9f1eb8f7d3388f4f9d586f66e99fd"), 2, "used for the fingerprint of k1")
	if _, top := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/v1/top"}); !strings.Contains(top, "6ab9f1eb8f7d3388") || strings.Contains(top, "k1") {
		t.Errorf("top: %s", top)
	}
}

// usageOf returns a subject's usage of a rule's only limit.
func (n *node) usageOf(rule, key string) (used int64) {
	n.T.Helper()
	_, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/usage?rule=" + rule + "&key=" + key})
	if _, err := fmt.Sscanf(body[strings.Index(body, `"used":`):], `"used":%d`, &used); err != nil {
		n.T.Fatalf("%v: %s", err, body)
	}
	return used
}

// The lines of a header are joined if it is a list of addresses; of other
// headers the first line counts. A value that would be invalid in a check is
// cut; it is never an error.
func TestAuthHeaders(t *testing.T) {
	n := startAuth(t, nil)
	long := strings.Repeat("x", 1024)
	tests := []struct{ first, second string }{ // the same subject
		{"X-Forwarded-For: 203.0.113.1|X-Forwarded-For: 10.0.0.1", "X-Forwarded-For: 9.9.9.9, 203.0.113.1, 10.0.0.1"},
		{"X-Forwarded-For: 203.0.113.2|x-forwarded-for: 10.0.0.1|Accept: x",
			"X-FORWARDED-FOR: 9.9.9.9|X-Forwarded-For: 203.0.113.2, 10.0.0.1"},
		{"X-Api-Key: a|X-Forwarded-For: 203.0.113.3", "X-API-KEY: a|X-Api-Key: b|X-Forwarded-For: 203.0.113.4"},
		{"X-Api-Key: " + long + "1|X-Forwarded-For: 203.0.113.5",
			"X-Api-Key: " + long + "2|X-Forwarded-For: 203.0.113.6"},
		{"X-Api-Key: \xff\xfe1|X-Forwarded-For: 203.0.113.7", "X-Api-Key: \xfd1|X-Forwarded-For: 203.0.113.8"},
	}
	for _, tt := range tests {
		for i, h := range []string{tt.first, tt.second} {
			resp, body := n.sendRaw("GET", "/v1/auth/web", h)
			item := resp.Header.Get("RateLimit")
			limit, remaining := 3, 2-i
			if strings.Contains(h, "Api") {
				limit, remaining = 20, 19-i
			}
			if want := fmt.Sprintf(";r=%d;", remaining); resp.StatusCode != 200 || !strings.Contains(item, want) {
				t.Errorf("%.60q: have %d %s, want%s of %d: %s", h, resp.StatusCode, item, want, limit, body)
			}
		}
	}
	if resp, _ := n.sendRaw("GET", "/v1/auth/web",
		"X-Forwarded-For: "+strings.Repeat("9", 20<<10)); resp.StatusCode != 431 {
		t.Errorf("headers too large: have %d", resp.StatusCode)
	}
}

// A node that is not ready yet says so; a draining one still decides.
func TestAuthReadiness(t *testing.T) {
	p := newHandlers(&api.Doors{Config: api.Config{Node: "n2", Decider: newFixed(),
		Logger: slog.New(slog.DiscardHandler)}}, nil)
	x := p.getExchange()
	x.method, x.path = "GET", "/v1/auth/web"
	if serve(p, x); x.Status != 503 || !strings.Contains(string(x.Body), string(api.NotReady)) {
		t.Errorf("not ready: have %d %s", x.Status, x.Body)
	}
	n := startAuth(t, nil)
	n.Drain()
	if resp, body := n.sendRaw("GET", "/v1/auth/web", ""); resp.StatusCode != 200 {
		t.Errorf("draining: have %d: %s", resp.StatusCode, body)
	}
}

// headerMap holds headers that a test sets.
type headerMap map[string][][]byte

func (l headerMap) PeekAll(name string) [][]byte { return l[name] }

// A decision for a proxy allocates nothing once the buffers have grown.
func TestAuthAllocatesNothing(t *testing.T) {
	for _, forwarded := range []string{"203.0.113.9, [2001:db8::1]:443", ""} {
		for _, refused := range []bool{false, true} {
			f := newFixed()
			doc, err := document.Parse([]byte(authRules))
			expect.NoError(t, err)
			if f.set, err = rules.Compile(doc, 17); err != nil {
				t.Fatal(err)
			}
			if refused {
				f.refuse(1, time.Second)
			}
			p := handlersOf(f)
			x := p.getExchange()
			header := headerMap{"X-Forwarded-Uri": {[]byte("/chat?x=y")}, "X-Api-Key": {[]byte("k1")}}
			if forwarded != "" {
				header["X-Forwarded-For"] = [][]byte{[]byte(forwarded)}
			}
			peer := &net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.1"), Port: 1}
			have := testing.AllocsPerRun(500, func() {
				x.reset()
				x.method, x.path, x.query, x.header, x.peer = "GET", "/v1/auth/web", "deny_status=403", header, peer
				serve(p, x)
			})
			expect.Equal(t, have, 0, "%q, refused %v: allocations", forwarded, refused)
			if a := x.check.Attributes; len(a) != 3 || a[0].Name != "ip" ||
				a[1] != (rules.Attribute{Name: "endpoint", Value: "/chat"}) {
				t.Errorf("attributes: have %v", a)
			}
		}
	}
}

// BenchmarkServerAuth measures a proxy's request through the server library, without a connection.
func BenchmarkServerAuth(b *testing.B) {
	f := newFixed()
	doc, err := document.Parse([]byte(authRules))
	expect.NoError(b, err)
	if f.set, err = rules.Compile(doc, 17); err != nil {
		b.Fatal(err)
	}
	s := &Server{handlers: handlersOf(f)}
	var ctx fasthttp.RequestCtx
	ctx.Init(&fasthttp.Request{}, nil, nil)
	b.ReportAllocs()
	for b.Loop() {
		ctx.Request.Reset()
		ctx.Response.Reset()
		ctx.Request.Header.SetMethod("GET")
		ctx.Request.SetRequestURI("/v1/auth/web?deny_status=403")
		ctx.Request.Header.Set("X-Forwarded-For", "203.0.113.9, 198.51.100.7")
		ctx.Request.Header.Set("X-Forwarded-Uri", "/chat?x=y")
		ctx.Request.Header.Set("X-Api-Key", "k1")
		if s.handle(&ctx); ctx.Response.StatusCode() != 200 {
			b.Fatal(ctx.Response.String())
		}
	}
}
