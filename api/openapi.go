package api

import _ "embed" // the document

// OpenAPI describes both HTTP planes.
//
//go:embed openapi.yaml
var OpenAPI string
