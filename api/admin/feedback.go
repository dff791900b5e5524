package admin

import (
	"net/http"

	"github.com/rlnode/rlnode/api/codec"
)

// feedback records that a subject should not have been refused.
func (s *Server) feedback(w http.ResponseWriter, r *http.Request) error {
	if e := s.doors.ChecksError(); e != nil {
		return e
	}

	q, err := readForm(r, codec.FeedbackForm, codec.MaxBody)
	if err != nil {
		return err
	}
	if e := q.RequireKey(s.doors.Decider.Rules()); e != nil {
		return e
	}

	rule, key := q.Subject()
	u, n, err := s.config.Subjects.Feedback(rule, key)
	if err != nil {
		return err
	}

	s.doors.Logger.Info("feedback: false positive", "rule", u.Rule.Name, "key", u.Key, "by", callerWithAddress(r))
	b := codec.AppendSubject(nil, u)
	b = append(b, `,"verdict":"`+codec.FalsePositive+`"`...)
	b = codec.AppendInt(b, `,"false_positives":`, n)
	s.sendJSON(w, append(b, '}'))

	return nil
}
