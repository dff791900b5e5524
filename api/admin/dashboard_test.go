package admin_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/internal/expect"
)

func TestDashboard(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.AdminToken = "secret" })
	n.Client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if resp, _ := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/ui"}); resp.StatusCode != 307 || resp.Header.Get("Location") != "/ui/" {
		t.Errorf("have %d to %q", resp.StatusCode, resp.Header.Get("Location"))
	}
	resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/ui/"})
	if resp.StatusCode != 200 || !strings.HasPrefix(body, "<!doctype html>") ||
		resp.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("have %d %v %.40s", resp.StatusCode, resp.Header, body)
	}
	for _, tt := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/ui/app.js", 200}, {"HEAD", "/ui/style.css", 200}, {"GET", "/ui/nothing", 404},
		{"GET", "/ui/%3Cscript%3E", 404},
		{"GET", "/ui/static/app.js", 404}, {"GET", "/ui/app.js/", 404}, {"POST", "/ui/", 405},
		{"DELETE", "/ui/app.js", 405},
	} {
		resp, body := n.Do(apitest.Call{Method: tt.method, URL: n.AdminURL + tt.path})
		expect.Equal(t, resp.StatusCode, tt.status, "%s %s", tt.method, tt.path)
		if tt.status >= 400 &&
			(resp.Header.Get("Content-Type") != codec.TypeProblem ||
				strings.Contains(body, "<script>") && !strings.Contains(body, `"`)) {
			t.Errorf("%s %s: have %s %s", tt.method, tt.path, resp.Header.Get("Content-Type"), body)
		}
	}
	if resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.DataURL + "/ui/"}); resp.StatusCode != 404 {
		t.Errorf("on the data plane: have %d", resp.StatusCode)
	}
}
