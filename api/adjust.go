package api

import (
	"strings"
)

// adjust answers POST /v1/adjust.
func (p *dataPlane) adjust(x *exchange) *Error {
	q := &x.check
	if e := q.NeedsKey(p.decider.Rules()); e != nil {
		return e
	}
	rule, key := q.subject()
	u, err := p.decider.Adjust(rule, key, q.cost, strings.Clone(q.RequestID))
	if err != nil {
		return p.explain(err)
	}
	x.JSON(200)
	b := appendSubject(x.Body, u)
	b = appendInt(b, `,"cost":`, q.cost)
	x.Body = append(appendUsage(b, u), '}')
	return nil
}
