package httpd

import (
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter"
)

// usage answers POST /v1/usage.
func (p *plane) usage(x *exchange) *api.Error {
	return p.answerUsage(x, p.Decider.Usage)
}

// resetUsage answers POST /v1/reset.
func (p *plane) resetUsage(x *exchange) *api.Error {
	return p.answerUsage(x, p.Decider.Reset)
}

// adjust answers POST /v1/adjust.
func (p *plane) adjust(x *exchange) *api.Error {
	return p.answerUsage(x, p.Decider.Adjust)
}

// answerUsage answers with the usage that do returns, and echoes the costs that the caller gave.
func (p *plane) answerUsage(x *exchange, operation func(*limiter.Query) (*limiter.Usage, error)) *api.Error {
	q := &x.check
	if e := x.token.NamespaceError(&q.Query); e != nil {
		return e
	}
	if e := q.RequireKey(p.Decider.Rules()); e != nil {
		return e
	}
	u, err := operation(&q.Query)
	if err != nil {
		return p.explain(err)
	}
	x.StartJSON(200)
	x.Body = append(codec.AppendUsage(q.AppendGivenCosts(codec.AppendSubject(x.Body, u)), u), '}')
	return nil
}
