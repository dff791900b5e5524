package apitest

import (
	"net/http"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api"
)

// scopes maps the tokens of ScopedTokens to their scopes.
var scopes = map[string]api.Scope{"tc": api.ScopeCheck, "ta": api.ScopeAdjust, "tr": api.ScopeRead,
	"tall": api.ScopeAdmin, "tcr": api.ScopeCheck | api.ScopeRead,
	"api": api.ScopeCheck | api.ScopeAdjust, "adm": api.ScopeAdmin}

// ScopedTokens returns a change of a node's configuration that adds the tokens for CheckScopes.
func ScopedTokens(t testing.TB) func(*Config) {
	file := TokensFile(t, TokenEntry("c", "tc", "check"), TokenEntry("a", "ta", "adjust"),
		TokenEntry("r", "tr", "read"), TokenEntry("all", "tall", "admin"),
		TokenEntry("cr", "tcr", "check, read"))
	return func(c *Config) { c.TokensFile, c.APIToken, c.AdminToken = file, "api", "adm" }
}

// CheckScopes requests every route below base with every token, and checks who
// is let in. A route is a method and a path.
func CheckScopes(t testing.TB, n *Node, base string, routes map[string]api.Scope) {
	t.Helper()
	n.Client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	for route, need := range routes {
		if need == 0 {
			t.Errorf("%s needs no scope", route)
		}

		method, path, _ := strings.Cut(route, " ")
		for _, text := range []string{"", "wrong", "tc", "ta", "tr", "tall", "tcr", "api", "adm"} {
			c := Call{Method: method, URL: base + path, Body: `{`}
			if text != "" {
				c.Header = map[string]string{"Authorization": "Bearer " + text}
			}

			if method == "DELETE" && scopes[text].Allows(need) && need == api.ScopeAdmin {
				continue // it would remove something
			}

			resp, body := n.Do(c)
			code := NoteCode([]byte(body))

			want := api.Code("")
			switch {
			case need == api.Anyone:
			case scopes[text] == 0:
				want = api.Unauthorized
			case !scopes[text].Allows(need):
				want = api.Forbidden
			}

			have := code == api.Unauthorized || code == api.Forbidden
			if have != (want != "") ||
				want != "" && code != want {
				t.Errorf("%s with %q: have %d %s, want %q", route, text, resp.StatusCode, body, want)
			}
			if want == api.Forbidden && !strings.Contains(body, need.Names()[0]) {
				t.Errorf("%s with %q: %s does not say that it needs %v", route, text, body, need.Names())
			}
			if (want == api.Unauthorized) != (resp.Header.Get("WWW-Authenticate") != "") ||
				want != "" && resp.StatusCode != (&api.Error{Code: want}).Status() {
				t.Errorf("%s with %q: have %d %v", route, text, resp.StatusCode, resp.Header)
			}
		}
	}
}
