package api

import _ "embed" // the document

// OpenAPI is the OpenAPI document of both HTTP planes, in YAML.
//
//go:embed openapi.yaml
var OpenAPI string
