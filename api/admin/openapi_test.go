package admin_test

import (
	"testing"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/rules/document"
)

func TestOpenAPIIsTrue(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	if resp, body := n.Do(apitest.Call{Method: "GET",
		URL: n.AdminURL + "/openapi.yaml"}); resp.StatusCode != 200 || body != api.OpenAPI {
		t.Fatalf("have %d", resp.StatusCode)
	}
	apitest.CheckOpenAPI(t, "admin plane", n.Admin.Routes())

	resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/schema.json"})
	if resp.StatusCode != 200 || body != string(document.Schema()) ||
		resp.Header.Get("Content-Type") != "application/schema+json" {
		t.Errorf("schema: got %d %s of %d bytes", resp.StatusCode, resp.Header.Get("Content-Type"), len(body))
	}
}
