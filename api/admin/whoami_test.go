package admin_test

import (
	"testing"

	"github.com/rlnode/rlnode/api/apitest"
)

// A caller learns under which name its changes are recorded, and what its token may do.
func TestWhoami(t *testing.T) {
	t.Parallel()
	open := startNode(t, nil)
	guarded := startNode(t, apitest.ScopedTokens(t))
	for _, tt := range []struct {
		node  *apitest.Node
		token string
		want  string
	}{
		{open, "", `{"by":"127.0.0.1","scopes":["check","adjust","read","entries","admin"]}`},
		{guarded, "tr", `{"by":"r (127.0.0.1)","token":"r","scopes":["read"]}`},
		{guarded, "tcr", `{"by":"cr (127.0.0.1)","token":"cr","scopes":["check","read"]}`},
		{guarded, "tall", `{"by":"all (127.0.0.1)","token":"all","scopes":["admin"]}`},
	} {
		c := apitest.Call{Method: "GET", URL: tt.node.AdminURL + "/v1/whoami", Header: map[string]string{}}
		if tt.token != "" {
			c.Header["Authorization"] = "Bearer " + tt.token
		}
		if resp, body := tt.node.Do(c); resp.StatusCode != 200 || body != tt.want+"\n" {
			t.Errorf("%q: have %d %s, want %s", tt.token, resp.StatusCode, body, tt.want)
		}
	}
}
