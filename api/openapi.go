package api

import (
	_ "embed" // the document
	"net/http"
)

//go:embed openapi.yaml
var openAPI string

// getOpenAPI answers with the description of both planes.
func getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", typeYAML)
	_, _ = w.Write([]byte(openAPI)) // on an error the caller is gone
	return nil
}
