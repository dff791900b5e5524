package admin

import (
	"net/http"

	"github.com/rlnode/rlnode/api"
)

type (
	ActivityReport = activityReport
	CheckCounts    = checkCounts
	HistoryReport  = historyReport
	NodeActivity   = nodeActivity
	NodeSteps      = nodeSteps
	RuleActivity   = ruleActivity
	Vitals         = vitals
	StepReport     = stepReport
)

const (
	CatchTime        = maxCatchUp
	IncompleteHeader = incompleteHeader
	TypeCSV          = typeCSV
	TypeYAML         = typeYAML
)

var (
	Cell     = escapeCell
	NewPages = newPageGuard
)

// Refuse returns why r is not answered.
func (p *pageGuard) Refuse(r *http.Request) *api.Error { return p.check(r) }

// Connections returns the connections.
func (s *Server) Connections() *api.Connections { return s.conns }

// Routes lists all endpoints with the scopes that they need.
func (s *Server) Routes() map[string]api.Scope {
	all := map[string]api.Scope{}
	for _, e := range s.endpoints() {
		all[e.path()] = e.need
	}
	return all
}

// Params lists the query parameters of all endpoints that do not take any.
func (s *Server) Params() map[string][]string {
	all := map[string][]string{}
	for _, e := range s.endpoints() {
		if names, takesAll := e.params(); !takesAll {
			all[e.path()] = names
		}
	}
	return all
}

// NewNodeSteps returns a node's entry in a history.
func NewNodeSteps(name, id string, answered bool, steps int) NodeSteps {
	return NodeSteps{nodePart{name, id, answered}, steps}
}

// NewNodeActivity returns a node's entry in a report of activity, with the counts of rest.
func NewNodeActivity(name, id string, answered bool, rest NodeActivity) NodeActivity {
	rest.nodePart = nodePart{name, id, answered}
	return rest
}
