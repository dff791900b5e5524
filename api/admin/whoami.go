package admin

import (
	"net/http"

	"github.com/rlnode/rlnode/api"
)

// anyScope lets every token in.
const anyScope = api.ScopeCheck | api.ScopeAdjust | api.ScopeRead | api.ScopeEntries

// Caller is the answer to GET /v1/whoami: under which name the node records
// what the caller changes, and what it may do.
type Caller struct {
	By     string   `json:"by"`              // the name that versions, entries and the log show
	Token  string   `json:"token,omitempty"` // the name of the token; empty if the node requires none
	Scopes []string `json:"scopes"`
}

// getCaller answers who the caller is. Without tokens, everyone may do everything.
func (s *Server) getCaller(w http.ResponseWriter, r *http.Request) error {
	c := Caller{By: callerWithAddress(r), Scopes: (anyScope | api.ScopeAdmin).Names()}
	if t := tokenFrom(r); t != nil {
		c.Token, c.Scopes = t.Name, t.Scopes.Names()
	}
	return s.reply(w, c)
}
