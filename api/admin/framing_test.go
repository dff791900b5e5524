package admin_test

import (
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
)

// adminCases are the cases of the data plane, with requests that the admin plane takes.
func adminCases() []apitest.FramingCase {
	var all []apitest.FramingCase
	for _, tt := range apitest.FramingCases {
		switch tt.Name {
		case "a tunnel where any method is taken", // there is no such path
			// net/http has a way of its own, which is as safe
			"asterisk form", "more lines than data", "HTTP/1.0 that expects",
			"an option that nobody knows", // it goes on, because net/http knows no option that frames
			"refused body":                // it goes on, because the body is read and thrown away
			continue
		case "an empty line before", "an empty line between": // here they are answered
			tt.Status = append(slices.Clone(tt.Status), 400)
		}
		tt.Send = strings.ReplaceAll(tt.Send, "/v1/check", "/v1/try")
		all = append(all, tt)
	}
	return all
}

// dialAdmin opens a connection to the admin plane.
func dialAdmin(t *testing.T, n *apitest.Node) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.Admin.Addr().String())
	expect.NoError(t, err)
	expect.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	t.Cleanup(func() { c.Close() })
	return c
}

// The admin plane refuses what can be read in two ways, as the data plane does.
func TestFraming(t *testing.T) {
	t.Parallel()
	names := []string{"n", "m"}
	n := startNode(t, func(c *apitest.Config) { c.Hosts = names })
	certFile, keyFile := testca.WritePair(t, t.TempDir(), "one")
	safe := startNode(t, func(c *apitest.Config) {
		c.Hosts, c.CertFile, c.KeyFile = names, certFile, keyFile
	})
	for _, tt := range adminCases() {
		t.Run(tt.Name, func(t *testing.T) {
			t.Parallel()
			for _, pieces := range []int{1, 7} {
				apitest.TryFraming(t, dialAdmin(t, n), tt, pieces)
			}
			apitest.TryFraming(t, tls.Client(dialAdmin(t, safe), &tls.Config{InsecureSkipVerify: true}), tt, 1)
		})
	}
}

// A path leads to its route only as it is written: a proxy in front that allows
// or denies by the path sees the same one.
func TestPathsAsSent(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Hosts = []string{"n"} })
	for _, path := range apitest.OddPaths("/v1/rules", "/v1/cluster") {
		if status, body := sendRaw(t, n.Admin.Addr(),
			"GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); status != 404 {
			t.Errorf("%s: got %d %.100s, want 404", path, status, body)
		}
	}
	for _, path := range []string{"/ui/../v1/rules", "/ui/%2e%2e/v1/rules", "/ui/..%2fv1/rules",
		"/debug/pprof/%68eap", "/v1/rules/.", "/v1/rules/"} {
		if status, body := sendRaw(t, n.Admin.Addr(),
			"GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); status != 404 {
			t.Errorf("%s: got %d %.100s, want 404", path, status, body)
		}
	}

	// A name in a path may need its encoding.
	for path, want := range map[string]int{
		"/v1/rules/login": 200, "/v1/rules/l%6fgin": 200, "/v1/rules/no%2fsuch": 404, "/v1/rules/%zz": 400,
		"http://localhost/v1/rules?version=1": 200, "/metrics?x=/../y": 200, "/": 307, "/ui": 307, "/ui/": 200,
	} {
		if status, body := sendRaw(t, n.Admin.Addr(),
			"GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); status != want {
			t.Errorf("%s: got %d %.100s, want %d", path, status, body, want)
		}
	}
}

// Browsers take no answer for something else than it says it is.
func TestNoSniffing(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, path := range []string{"/v1/rules", "/v1/cluster", "/healthz", "/metrics", "/ui/",
		"/nothing", "/debug/pprof/"} {
		resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + path})
		if got := resp.Header.Values("X-Content-Type-Options"); !slices.Equal(got, []string{"nosniff"}) {
			t.Errorf("%s: got %q, want nosniff", path, got)
		}
	}
}

// Other sites may link to the dashboard, and reach nothing else.
func TestPagesOfOtherSites(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for path, want := range map[string]int{
		"/v1/rules": 403, "/v1/cluster": 403, "/metrics": 403, "/v1/top": 403, "/debug/pprof/": 403,
		"/nothing": 403, "/ui/": 200,
	} {
		for name, value := range map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"} {
			resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + path,
				Header: map[string]string{name: value}})
			expect.Equal(t, resp.StatusCode, want, "%s with %s: %.100s", path, name, body)
		}
	}
}
