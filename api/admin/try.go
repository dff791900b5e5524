package admin

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// try answers with the answer that a check would get; its status and headers
// become JSON fields. It says of each rule whether it applies, and if not, why.
// It takes nothing unless the body says "peek": false, or a mode other than
// peek.
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
	body := appendTry(nil, &reply)

	// Only callers that may read the rules see the values of a rule.
	if token := tokenFrom(r); token == nil || token.Scopes.Allows(api.ScopeRead) {
		rules, err := json.Marshal(explain(decider.Rules(), &q.Query))
		if err != nil {
			return err
		}
		body = append(append(append(body[:len(body)-1], `,"rules":`...), rules...), '}')
	}

	s.sendJSON(w, body)
	return nil
}

// explain says of each rule whether it applies to a check. There is nothing to
// explain about limits that come with the call.
func explain(set *rules.Set, q *limiter.Query) []rules.Explanation {
	switch {
	case set == nil || len(q.Subjects) > 0:
		return []rules.Explanation{}
	case q.ByKey:
		return []rules.Explanation{{Rule: q.Rule, Applies: true}} // match conditions play no part
	case q.Rule != "":
		return set.Explain(q.Attributes, set.Rule(q.Rule))
	}
	return set.Explain(q.Attributes, nil)
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
