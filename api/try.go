package api

import (
	"net/http"
	"strconv"
)

// try answers what a check would get, with the status and headers as data. It takes nothing, unless the check says
// "peek": false.
func (s *adminServer) try(w http.ResponseWriter, r *http.Request) error {
	if e := s.api.readiness.checks(); e != nil {
		return e
	}
	p := s.api.plane
	x := p.acquire()
	defer p.release(x)
	if err := readForm(r, x, checkForm, maxCheckBody); err != nil {
		return err
	}
	q := &x.check
	if q.given&fieldPeek == 0 {
		q.Peek = true
	}
	switch e := p.needsKey(q); {
	case e != nil:
		return e
	case q.wait:
		return errorf(BadValue, "wait must be false: the answer to a try is not held")
	}
	if who := tokenIn(r); who != nil && !q.Peek && !who.scopes.allows(ScopeCheck) {
		return who.lacks(ScopeCheck)
	}
	if err := p.decider.Check(&q.Query, &x.answer); err != nil {
		return err
	}
	s.sendJSON(w, x.appendTry(nil, p.node))
	return nil
}

// appendTry appends what a check's caller would get.
func (x *exchange) appendTry(b []byte, node []byte) []byte {
	x.conclude(statusRefused, false, node)
	b = strconv.AppendInt(append(b, `{"status":`...), int64(x.status), 10)
	b = append(b, `,"headers":{`...)
	for i, h := range x.headers {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, h.name)
		b = appendString(append(b, ':'), view(h.value))
	}
	b = append(append(b, `},"answer":`...), x.response.body...)
	return append(b, '}')
}
