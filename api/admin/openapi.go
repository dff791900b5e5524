package admin

import (
	"net/http"

	"github.com/rlnode/rlnode/api"
)

// getOpenAPI answers with the OpenAPI document of both planes.
func getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", typeYAML)
	_, _ = w.Write([]byte(api.OpenAPI)) // on an error the caller is gone
	return nil
}
