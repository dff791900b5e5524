package httpd

import (
	"strings"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
)

// adjust answers POST /v1/adjust.
func (p *plane) adjust(x *exchange) *api.Error {
	q := &x.check
	if e := q.NeedsKey(p.Decider.Rules()); e != nil {
		return e
	}
	rule, key := q.Subject()
	u, err := p.Decider.Adjust(rule, key, q.Cost, strings.Clone(q.RequestID))
	if err != nil {
		return p.explain(err)
	}
	x.JSON(200)
	b := codec.AppendSubject(x.Body, u)
	b = codec.AppendInt(b, `,"cost":`, q.Cost)
	x.Body = append(codec.AppendUsage(b, u), '}')
	return nil
}
