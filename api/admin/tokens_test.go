package admin_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/rules/document"
)

// If any token is configured, every route requires its scope, except probes,
// metrics and the dashboard's files.
func TestScopes(t *testing.T) {
	t.Parallel()
	n := startNode(t, apitest.ScopedTokens(t))
	routes := n.Admin.Routes()
	routes["GET /"], routes["GET /ui"] = api.Anyone, api.Anyone
	apitest.CheckScopes(t, n, n.AdminURL, routes)
	if need := routes["POST /v1/new"]; need != 0 || api.ScopeRead.Allows(need) || !api.ScopeAdmin.Allows(need) {
		t.Error("a route without scopes is open to others than admin")
	}
	// A try that takes its cost is a check.
	for text, want := range map[string]int{"tr": 403, "tc": 200, "tcr": 200} {
		resp, body := n.Do(apitest.Call{Method: "POST", URL: n.AdminURL + "/v1/try",
			Body:   `{"rule":"all","peek":false}`,
			Header: map[string]string{"Authorization": "Bearer " + text}})
		if resp.StatusCode != want || want == 403 && !strings.Contains(body, "scope check; r has read") {
			t.Errorf("a try that takes, with %s: have %d %s", text, resp.StatusCode, body)
		}
	}
}

// Versions, logs and traces have the name of a writer's token, and none reveals the token.
func TestWritesNameTheirToken(t *testing.T) {
	t.Parallel()
	var out process.Output
	var by []string
	n := startNode(t, func(c *apitest.Config) {
		c.TokensFile, c.Logger = apitest.TokensFile(t,
			apitest.TokenEntry("deploy", "rlt_secret", "admin")), slog.New(slog.NewTextHandler(&out,
			&slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Rules = notesWriters{c.Rules, &by}
	})
	header := map[string]string{"Authorization": "Bearer rlt_secret"}
	n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules", Body: yamlRules, Header: header})
	n.Do(apitest.Call{Method: "DELETE", URL: n.AdminURL + "/v1/usage?rule=only&key=private", Header: header})
	if len(by) != 1 || by[0] != "deploy (127.0.0.1)" {
		t.Errorf("have %q", by)
	}
	log := out.String()
	if strings.Contains(log, "rlt_") || strings.Contains(log, "private") {
		t.Errorf("the log has %s", log)
	}
	for _, want := range []string{`msg="rules written" version=2 by="deploy (127.0.0.1)"`,
		`msg="usage reset" rule=only by="deploy (127.0.0.1)`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s: %s", want, log)
		}
	}
}

// notesWriters records the writers.
type notesWriters struct {
	admin.RuleStore
	by *[]string
}

func (w notesWriters) Write(ctx context.Context, c document.Change, o cluster.WriteOptions) (int64, error) {
	*w.by = append(*w.by, o.By)
	return w.RuleStore.Write(ctx, c, o)
}
