package api

import (
	"net/http"
)

// verdictFalsePositive is the only verdict: the check should not have been refused.
const verdictFalsePositive = "false-positive"

// feedback records that a subject was refused and should not have been.
func (s *adminServer) feedback(w http.ResponseWriter, r *http.Request) error {
	if e := s.api.readiness.checks(); e != nil {
		return e
	}
	q, err := readForm(r, feedbackForm, maxCheckBody)
	if err != nil {
		return err
	}
	if e := q.NeedsKey(s.api.config.Decider.Rules()); e != nil {
		return e
	}
	rule, key := q.subject()
	u, n, err := s.api.config.Subjects.Feedback(rule, key)
	if err != nil {
		return err
	}
	s.log.Info("feedback: false positive", "rule", u.Rule.Name, "key", u.Key, "by", writer(r))
	b := appendSubject(nil, u)
	b = append(b, `,"verdict":"`+verdictFalsePositive+`"`...)
	b = appendInt(b, `,"false_positives":`, n)
	s.sendJSON(w, append(b, '}'))
	return nil
}
