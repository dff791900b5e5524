package api

import (
	"github.com/rlnode/rlnode/internal/tracing"
	"github.com/rlnode/rlnode/limiter"
)

// TracedDecision returns what a span says about a decision.
func TracedDecision(a *limiter.Answer) *tracing.Decision {
	d := &tracing.Decision{Allowed: a.Allowed, DecidedBy: a.DecidedBy.String(), RulesVersion: a.RulesVersion}
	if l := a.TightestLimit(); l != nil {
		d.Rule = l.Rule.Name
		d.Limit = l.Limit.Name
		d.Unit = l.Limit.Unit
		d.Remaining = l.Remaining
		d.Delay = l.Delay
	}
	return d
}
