package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// The values of MiddlewareOptions.MissingKey that have a special meaning.
const (
	MissingRefuse = "refuse"
	MissingError  = "error"
	MissingAllow  = "allow"
)

// ErrMissingKey means that a value of the key is missing, so that the subject
// is unknown. It wraps ErrRequest.
var ErrMissingKey = fmt.Errorf("%w: the key is missing", ErrRequest)

// CompleteKey returns key if it is not nil and no value is empty. Otherwise it
// does what missing says, as described at MiddlewareOptions.MissingKey: it puts
// a text in place of what is missing, or returns an error that wraps
// ErrMissingKey.
func CompleteKey(key []string, missing string) ([]string, error) {
	at := slices.Index(key, "")
	if at < 0 && key != nil {
		return key, nil
	}
	switch missing {
	case "", MissingRefuse, MissingError, MissingAllow:
		return nil, fmt.Errorf("%w: key[%d] is empty", ErrMissingKey, max(0, at))
	}

	if len(key) == 0 {
		return []string{missing}, nil
	}
	filled := slices.Clone(key)
	for i := range filled {
		if filled[i] == "" {
			filled[i] = missing
		}
	}
	return filled, nil
}

// refuseMissingKey answers a request whose key is missing.
func (g *guard) refuseMissingKey(w http.ResponseWriter, r *http.Request, err error) {
	p := problem{http.StatusBadRequest, codeMissingKey, "A required field is missing",
		"This request does not say whose it is."}
	if g.options.MissingKey == MissingError {
		if g.options.OnError != nil {
			g.options.OnError(r, err)
		}
		p = problem{http.StatusInternalServerError, codeMissingKey,
			http.StatusText(http.StatusInternalServerError), err.Error()}
	}

	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	w.WriteHeader(p.Status)
	json.NewEncoder(w).Encode(p) // an error means that the connection is broken
}

const codeMissingKey = "missing-key"
