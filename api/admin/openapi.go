package admin

import (
	"net/http"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/rules/document"
)

// getOpenAPI answers with the OpenAPI document of both planes.
func getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", typeYAML)
	_, _ = w.Write([]byte(api.OpenAPI)) // on an error the caller is gone
	return nil
}

// getSchema answers with a JSON Schema of the rules file.
func getSchema(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/schema+json")
	_, _ = w.Write(document.Schema()) // on an error the caller is gone
	return nil
}
