package api

import (
	"strings"

	"github.com/rlnode/rlnode/limiter"
)

// adjust answers POST /v1/adjust.
func (p *dataPlane) adjust(x *exchange) {
	if e := p.readiness.checks(); e != nil {
		x.refuse(e)
		return
	}
	s := &x.scan
	r := adjustRequest{check: &x.check}
	if s.reset(x.request.body); s.object() {
		r.read(s)
		s.end()
	}
	e := s.err()
	if e == nil && r.check.given&fieldKey == 0 {
		e = p.needsKey(r.check.Rule)
	}
	if e != nil {
		x.refuse(e)
		return
	}
	key := make([]string, len(r.check.key))
	for i, v := range r.check.key {
		key[i] = strings.Clone(v) // a person's action, and rare: let whoever carries it out keep it
	}
	u, err := p.decider.Adjust(strings.Clone(r.check.Rule), key, r.check.cost, strings.Clone(r.check.RequestID))
	if err != nil {
		x.refuse(p.explain(err))
		return
	}
	x.json(200)
	b := appendSubject(x.response.body, u)
	b = appendInt(b, `,"cost":`, r.check.cost)
	x.response.body = append(appendUsage(b, u), '}')
}

// appendSubject begins an object with the rule and the key of u.
func appendSubject(b []byte, u *limiter.Usage) []byte {
	b = append(b, `{"rule":`...)
	b = appendString(b, u.Rule.Name)
	b = append(b, `,"key":`...)
	return appendKey(b, u.Key)
}

// appendKey appends a key as a check would give it: a string for a rule with one key attribute, else an array.
func appendKey(b []byte, key []string) []byte {
	if len(key) == 1 {
		return appendString(b, key[0])
	}
	return appendStrings(b, key)
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, v)
	}
	return append(b, ']')
}

// appendUsage appends what u has used of each limit.
func appendUsage(b []byte, u *limiter.Usage) []byte {
	b = append(b, `,"limits":[`...)
	for i := range u.Limits {
		l := &u.Limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLimit(append(b, '{'), l.Limit, l.Window)
		b = appendInt(b, `,"used":`, max(0, l.Used))
		b = appendInt(b, `,"remaining":`, l.Remaining)
		b = appendInt(b, `,"reset_after_ms":`, millis(l.ResetAfter))
		b = append(b, '}')
	}
	return append(b, ']')
}
