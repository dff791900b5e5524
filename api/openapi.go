package api

import (
	_ "embed" // the document
	"net/http"
)

//go:embed openapi.yaml
var openAPI string

// getOpenAPI answers the description of both planes.
func getOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", typeYAML)
	_, _ = w.Write([]byte(openAPI)) // a caller who has gone misses nothing
	return nil
}
