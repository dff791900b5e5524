package admin_test

import (
	"testing"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
)

func TestOpenAPIIsTrue(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	if resp, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/openapi.yaml"}); resp.StatusCode != 200 || body != api.OpenAPI {
		t.Fatalf("have %d", resp.StatusCode)
	}
	apitest.CheckOpenAPI(t, "admin plane", n.Admin.Routes())
}
