package httpd

import (
	"bufio"
	"io"
	"net/http"
	"testing"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
)

// A path leads to its route only as it is written: a proxy in front that allows
// or denies by the path sees the same one.
func TestPathsAsSent(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	ask := func(path string) (int, string) {
		c := n.dial(t)
		defer c.Close()
		if _, err := io.WriteString(c, post(path, `{"rule":"all"}`)); err != nil {
			t.Fatal(err)
		}
		status, body, _ := answer(t, bufio.NewReader(c))
		return status, body
	}
	for _, open := range []string{"/v1/check", "/v1/auth/web"} {
		for _, path := range apitest.OddPaths(open, "/v1/reset") {
			if status, body := ask(path); status != 404 {
				t.Errorf("%s: got %d %s, want 404", path, status, body)
			}
		}
	}
	for _, path := range []string{"/v1/reset", "/v1/reset?x", "http://n/v1/reset", "HTTP://n:8080/v1/reset?/../x"} {
		if status, body := ask(path); status != 200 {
			t.Errorf("%s: got %d %s, want 200", path, status, body)
		}
	}
}

// A token that may not ask about profiles does not learn which there are.
func TestConfinedTokensLearnNoProfiles(t *testing.T) {
	t.Parallel()
	file := apitest.TokensFile(t, apitest.ConfinedEntry("c", "confined", "check", "shop"))
	n := startNode(t, func(c *apitest.Config) { c.TokensFile = file })
	var first string
	for _, name := range []string{"nope", "web", ""} {
		resp, body := n.Do(apitest.Call{Method: http.MethodGet, URL: n.DataURL + "/v1/auth/" + name,
			Header: map[string]string{"Authorization": "Bearer confined"}})
		if first == "" {
			first = body
		}
		if resp.StatusCode != 403 || apitest.NoteCode([]byte(body)) != api.Forbidden || body != first {
			t.Errorf("%q: got %d %s, want what others get: %s", name, resp.StatusCode, body, first)
		}
	}
}
