package api

import (
	"net/http"
	"strings"
	"testing"
)

func TestDashboard(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *Config) { c.AdminToken = "secret" })
	n.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if resp, _ := n.do(call{method: "GET", url: n.adm + "/ui"}); resp.StatusCode != 307 || resp.Header.Get("Location") != "/ui/" {
		t.Errorf("have %d to %q", resp.StatusCode, resp.Header.Get("Location"))
	}
	resp, body := n.do(call{method: "GET", url: n.adm + "/ui/"})
	if resp.StatusCode != 200 || !strings.HasPrefix(body, "<!doctype html>") || resp.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("have %d %v %.40s", resp.StatusCode, resp.Header, body)
	}
	for _, tt := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/ui/app.js", 200}, {"HEAD", "/ui/style.css", 200}, {"GET", "/ui/nothing", 404}, {"GET", "/ui/%3Cscript%3E", 404},
		{"GET", "/ui/static/app.js", 404}, {"GET", "/ui/app.js/", 404}, {"POST", "/ui/", 405}, {"DELETE", "/ui/app.js", 405},
	} {
		resp, body := n.do(call{method: tt.method, url: n.adm + tt.path})
		if resp.StatusCode != tt.status {
			t.Errorf("%s %s: have %d, want %d", tt.method, tt.path, resp.StatusCode, tt.status)
		}
		if tt.status >= 400 && (resp.Header.Get("Content-Type") != typeProblem || strings.Contains(body, "<script>") && !strings.Contains(body, `"`)) {
			t.Errorf("%s %s: have %s %s", tt.method, tt.path, resp.Header.Get("Content-Type"), body)
		}
	}
	if resp, _ := n.do(call{method: "GET", url: n.data + "/ui/"}); resp.StatusCode != 404 {
		t.Errorf("on the data plane: have %d", resp.StatusCode)
	}
}
