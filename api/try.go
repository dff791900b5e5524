package api

import (
	"net/http"
	"strconv"

	"github.com/rlnode/rlnode/limiter"
)

// try answers what a check would get, with the status and headers as data. It takes nothing, unless the check says
// "peek": false.
func (s *adminServer) try(w http.ResponseWriter, r *http.Request) error {
	if e := s.api.readiness.checks(); e != nil {
		return e
	}
	q, err := readForm(r, tryForm, maxCheckBody)
	if err != nil {
		return err
	}
	decider := s.api.config.Decider
	if e := q.NeedsKey(decider.Rules()); e != nil {
		return e
	}
	if who := tokenIn(r); who != nil && !q.Peek && !who.scopes.allows(ScopeCheck) {
		return who.lacks(ScopeCheck)
	}
	var a limiter.Answer
	if err := decider.Check(&q.Query, &a); err != nil {
		return err
	}
	var reply Reply
	reply.Conclude(&a, q, statusRefused, false, appendString(nil, s.api.config.Node))
	s.sendJSON(w, appendTry(nil, &reply))
	return nil
}

// appendTry appends what a check's caller would get.
func appendTry(b []byte, r *Reply) []byte {
	b = strconv.AppendInt(append(b, `{"status":`...), int64(r.Status), 10)
	b = append(b, `,"headers":{`...)
	for i, h := range r.Headers {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, h.Name)
		b = appendString(append(b, ':'), view(h.Value))
	}
	b = append(append(b, `},"answer":`...), r.Body...)
	return append(b, '}')
}
