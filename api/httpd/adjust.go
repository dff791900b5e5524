package httpd

import (
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter"
)

// answerUsage returns a handler that answers with the usage that operation
// returns, and echoes the costs that the caller gave.
func answerUsage(
	operation func(api.Decider, *limiter.Query) (*limiter.Usage, error),
) func(*handlers, *exchange) *api.Error {
	return func(h *handlers, x *exchange) *api.Error {
		q := &x.check
		if e := x.token.NamespaceError(&q.Query); e != nil {
			return e
		}
		if e := q.RequireKey(h.Decider.Rules()); e != nil {
			return e
		}

		u, err := operation(h.Decider, &q.Query)
		if err != nil {
			return h.explain(err)
		}

		x.StartJSON(200)
		x.Body = q.AppendGivenCosts(codec.AppendSubject(x.Body, u))
		x.Body = codec.AppendUsage(x.Body, u)
		x.Body = append(codec.AppendApplied(x.Body, u), '}')

		return nil
	}
}
