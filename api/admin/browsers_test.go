package admin_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// sendRaw sends raw bytes to an address and returns the answer's status and body.
func sendRaw(t *testing.T, addr net.Addr, send string) (int, string) {
	t.Helper()
	c, err := net.Dial("tcp", addr.String())
	expect.NoError(t, err)
	defer c.Close()
	expect.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	if _, err := io.WriteString(c, send); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	expect.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	expect.NoError(t, err)
	apitest.NoteCode(body)
	return resp.StatusCode, string(body)
}

// A page whose host name resolves to this machine can neither read nor write
// anything on the admin plane.
func TestRebinding(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Hosts = []string{"Node1.Example", "other.example."} })
	port := fmt.Sprint(n.Admin.Addr().(*net.TCPAddr).Port)
	for _, tt := range []struct {
		host string
		good bool
	}{
		{"evil.example", false}, {"evil.example:" + port, false}, {"127.0.0.1.evil.example", false},
		{"localhost.evil.example", false}, {"127.1", false}, {"evil.example.", false},
		{"[evil.example]:" + port, false}, {"xlocalhost", false},
		{"node1.example.evil.example", false}, {"127.0.0.1:" + port + ":evil", false},
		{"127.0.0.1", true}, {"127.0.0.1:" + port, true}, {"[::1]:" + port, true}, {"[::1]", true},
		{"192.0.2.7:1", true}, {"localhost", true}, {"LOCALHOST:" + port, true},
		{"localhost.", true}, {"node1.example", true}, {"NODE1.example:81", true}, {"other.example", true}, {"", true},
	} {
		for _, line := range []string{"GET /v1/rules", "PUT /v1/rules", "GET /debug/pprof/",
			"GET /healthz", "GET /metrics", "GET /ui/", "DELETE /v1/usage?rule=only&key=k",
			"POST /v1/try", "GET /nowhere"} {
			body := yamlRules
			if strings.Contains(line, "try") {
				body = `{"rule":"only","key":"k"}`
			}
			// For the browser, the page and the node have the same origin, and the request says so.
			status, have := sendRaw(t, n.Admin.Addr(),
				fmt.Sprintf("%s HTTP/1.1\r\nHost: %s\r\nOrigin: http://%s\r\nSec-Fetch-Site: same-origin\r\nRlnode-Dashboard: 1\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
					line, tt.host, tt.host, len(body), body))
			if refused := status == 421; refused == tt.good {
				t.Errorf("%s of %q: have %d %.200s", line, tt.host, status, have)
			} else if refused &&
				(!strings.Contains(have, "--admin-host") || !strings.Contains(have, string(api.WrongHost))) {
				t.Errorf("%s of %q: have %s", line, tt.host, have)
			}
		}
	}
	if have := n.Rules.Limiter.Rules().Rule("only"); have == nil {
		t.Error("the requests with a valid host wrote nothing")
	}
	if status, _ := sendRaw(t, n.Admin.Addr(), "GET /healthz HTTP/1.0\r\n\r\n"); status != 200 {
		t.Errorf("HTTP/1.0 without a host: have %d", status)
	}
	if status, _ := sendRaw(t, n.Admin.Addr(),
		"GET http://evil.example/v1/rules HTTP/1.1\r\nHost: localhost\r\n\r\n"); status != 421 {
		t.Errorf("a name in the address: have %d", status)
	}
}

// Beyond loopback, host names are checked only if some are configured.
func TestHostsElsewhere(t *testing.T) {
	for _, tt := range []struct {
		addr  string
		hosts []string
		named bool
	}{
		{"127.0.0.1:1", nil, true}, {"127.8.9.10:1", nil, true}, {"[::1]:1", nil, true},
		{"192.0.2.1:1", nil, false}, {"0.0.0.0:1", nil, false}, {"[::]:1", nil, false},
		{"192.0.2.1:1", []string{"node1"}, true},
	} {
		addr, err := net.ResolveTCPAddr("tcp", tt.addr)
		expect.NoError(t, err)
		p := admin.NewPages(addr, tt.hosts)
		r, _ := http.NewRequest("GET", "http://evil.example/", nil)
		expect.Equal(t, p.Refuse(r) != nil, tt.named, "%s with %v: refused", tt.addr, tt.hosts)
		r.Host = "node1:8081"
		if have := p.Refuse(r) != nil; have != (tt.named && len(tt.hosts) == 0) {
			t.Errorf("%s with %v: refused its own name: %v", tt.addr, tt.hosts, have)
		}
	}
}

// A page of another site can't make a node take profiles, even though it could not read them.
func TestProfilesForPages(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/profile?seconds=30",
		"/debug/pprof/trace?seconds=30", "/debug/pprof/heap", "/debug/pprof/symbol"} {
		for _, site := range []string{"cross-site", "same-site"} {
			resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + path,
				Header: map[string]string{"Sec-Fetch-Site": site}})
			if resp.StatusCode != 403 || apitest.NoteCode([]byte(body)) != api.CrossOrigin {
				t.Errorf("%s %s: have %d %s", path, site, resp.StatusCode, body)
			}
		}
	}
	for _, site := range []string{"none", "same-origin"} {
		if resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/debug/pprof/",
			Header: map[string]string{"Sec-Fetch-Site": site}}); resp.StatusCode != 200 {
			t.Errorf("%s: have %d", site, resp.StatusCode)
		}
	}
	// A link on another site's page may lead to the dashboard.
	if resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/ui/",
		Header: map[string]string{"Sec-Fetch-Site": "cross-site",
			"Sec-Fetch-Mode": "navigate"}}); resp.StatusCode != 200 {
		t.Errorf("the dashboard: have %d", resp.StatusCode)
	}
}

// A browser writes only as the dashboard's page does: no form, link or image of
// any page can. Other clients need no header.
func TestBrowsersWriteAsThePage(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	type header = map[string]string
	for _, tt := range []struct {
		name   string
		header header
		want   int
	}{
		{"the page, JSON",
			header{"Sec-Fetch-Site": "same-origin", "Rlnode-Dashboard": "1", "Content-Type": "application/json"},
			200},
		{"the page, YAML",
			header{"Sec-Fetch-Site": "same-origin", "Rlnode-Dashboard": "1",
				"Content-Type": "application/yaml; charset=utf-8"},
			200},
		{"an older browser",
			header{"Origin": n.AdminURL, "Rlnode-Dashboard": "1", "Content-Type": "application/json"},
			200},
		{"without the header", header{"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}, 403},
		{"without the header, an older browser", header{"Origin": n.AdminURL, "Content-Type": "application/json"}, 403},
		{"typed by a person", header{"Sec-Fetch-Site": "none", "Content-Type": "application/json"}, 403},
		{"a form's type",
			header{"Sec-Fetch-Site": "same-origin", "Rlnode-Dashboard": "1", "Content-Type": "text/plain"},
			403},
		{"another form's type",
			header{"Sec-Fetch-Site": "same-origin", "Rlnode-Dashboard": "1",
				"Content-Type": "application/x-www-form-urlencoded"},
			403},
		{"no type", header{"Sec-Fetch-Site": "same-origin", "Rlnode-Dashboard": "1"}, 403},
		{"a broken type",
			header{"Sec-Fetch-Site": "same-origin", "Rlnode-Dashboard": "1", "Content-Type": "application/json;;"},
			403},
		{"a command", header{}, 200},
		{"a command with a form's type", header{"Content-Type": "application/x-www-form-urlencoded"}, 200},
	} {
		for _, one := range []apitest.Call{
			{Method: "PUT", URL: n.AdminURL + "/v1/rules", Body: yamlRules},
			{Method: "POST", URL: n.AdminURL + "/v1/feedback",
				Body: `{"rule":"only","key":"k","verdict":"false-positive"}`},
			{Method: "POST", URL: n.AdminURL + "/v1/try", Body: `{"rule":"only","key":"k"}`},
			{Method: "DELETE", URL: n.AdminURL + "/v1/usage?rule=only&key=k"},
		} {
			one.Header = tt.header
			resp, body := n.Do(one)
			if resp.StatusCode != tt.want || tt.want == 403 && apitest.NoteCode([]byte(body)) != api.CrossOrigin {
				t.Errorf("%s: %s %s: have %d %s, want %d", tt.name, one.Method, one.URL, resp.StatusCode, body, tt.want)
			}
		}
	}
	resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/v1/rules",
		Header: header{"Sec-Fetch-Site": "same-origin"}})
	expect.Equal(t, resp.StatusCode, 200, "a read")
}
