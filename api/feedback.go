package api

import (
	"net/http"
	"strings"

	"github.com/rlnode/rlnode/rules"
)

// verdictFalsePositive is the only verdict there is: the check should not have been refused.
const verdictFalsePositive = "false-positive"

// feedbackRequest is what a person thinks of a decision.
type feedbackRequest struct {
	check   checkRequest // rule and key
	verdict string
}

// read reads feedback, whose opening brace next has found.
func (r *feedbackRequest) read(s *scanner) {
	s.open()
	given := false
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		if s.syntax != nil {
			return
		}
		switch name {
		case "rule", "key":
			r.check.field(s, name)
		case "verdict":
			if given {
				s.fail("verdict is given twice, the second time")
			}
			given = true
			r.verdict = s.filled("verdict")
		default:
			s.unknown(name, "rule, key, verdict")
		}
	}
	if s.err() != nil {
		return
	}
	switch {
	case r.check.given&fieldRule == 0:
		s.mean(MissingKey, "rule is missing")
	case !given:
		s.mean(MissingKey, "verdict is missing")
	case r.verdict != verdictFalsePositive:
		s.mean(BadValue, "verdict must be %s", verdictFalsePositive)
	}
}

// feedback takes note that a subject was refused and should not have been.
func (s *adminServer) feedback(w http.ResponseWriter, r *http.Request) error {
	body, err := readAll(r)
	if err != nil {
		return err
	}
	if len(body) > maxCheckBody {
		return tooLarge(maxCheckBody)
	}
	if e := s.api.readiness.checks(); e != nil {
		return e
	}
	var scan scanner
	var f feedbackRequest
	if scan.reset(body); scan.object() {
		f.read(&scan)
		scan.end()
	}
	if e := scan.err(); e != nil {
		return e
	}
	key := make([]string, len(f.check.key))
	for i := range key {
		key[i] = strings.Clone(f.check.key[i])
	}
	if f.check.given&fieldKey == 0 {
		if rule := s.ruleNamed(f.check.Rule); rule != nil && len(rule.Key) > 0 {
			return errorf(MissingKey, "key is missing: rule %q has the key attributes %q", excerpt(rule.Name), rule.Key)
		}
	}
	u, n, err := s.api.config.Subjects.Feedback(strings.Clone(f.check.Rule), key)
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

// ruleNamed is a rule in force, nil without one of that name.
func (s *adminServer) ruleNamed(name string) *rules.Rule {
	if set := s.api.config.Decider.Rules(); set != nil {
		return set.Rule(name)
	}
	return nil
}
