package admin

import (
	"net/http"
	"strconv"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter"
)

// try answers with what a check would get, its status and headers as JSON fields. It takes nothing unless the body says
// "peek": false, or sets mode.
func (s *Server) try(w http.ResponseWriter, r *http.Request) error {
	if e := s.doors.ChecksError(); e != nil {
		return e
	}
	q, err := readForm(r, codec.TryForm, codec.MaxBody)
	if err != nil {
		return err
	}
	decider := s.doors.Decider
	if e := q.RequireKey(decider.Rules()); e != nil {
		return e
	}
	if e := tokenFrom(r).NamespaceError(&q.Query); e != nil {
		return e
	}
	if token := tokenFrom(r); token != nil && !q.Peeks() && !token.Scopes.Allows(api.ScopeCheck) {
		return token.MissingScopeError(api.ScopeCheck)
	}
	var a limiter.Answer
	if err := decider.Check(&q.Query, &a); err != nil {
		return err
	}
	var reply codec.Reply
	reply.Compose(&a, q, 0, false, codec.AppendString(nil, s.doors.Node))
	s.sendJSON(w, appendTry(nil, &reply))
	return nil
}

// appendTry appends r, the answer that a check would get, as a JSON object.
func appendTry(b []byte, r *codec.Reply) []byte {
	b = strconv.AppendInt(append(b, `{"status":`...), int64(r.Status), 10)
	b = append(b, `,"headers":{`...)
	for i, h := range r.Headers {
		if i > 0 {
			b = append(b, ',')
		}
		b = codec.AppendString(b, h.Name)
		b = codec.AppendString(append(b, ':'), codec.UnsafeString(h.Value))
	}
	b = append(append(b, `},"answer":`...), r.Body...)
	return append(b, '}')
}
