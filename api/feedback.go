package api

import (
	"net/http"
)

// verdictFalsePositive is the only verdict: the check should not have been refused.
const verdictFalsePositive = "false-positive"

// feedback records that a subject was refused and should not have been.
func (s *adminServer) feedback(w http.ResponseWriter, r *http.Request) error {
	x := s.api.plane.acquire()
	defer s.api.plane.release(x)
	if e := s.api.readiness.checks(); e != nil {
		return e
	}
	if err := readForm(r, x, feedbackForm, maxCheckBody); err != nil {
		return err
	}
	if e := s.api.plane.needsKey(&x.check); e != nil {
		return e
	}
	rule, key := x.check.subject()
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
