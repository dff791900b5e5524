package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"unicode/utf8"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/ring"
	"github.com/rlnode/rlnode/rules"
)

const defaultTop = 20 // subjects in a list

// withSubject returns a handler that calls serve with the subject that the query names.
func (s *Server) withSubject(
	serve func(w http.ResponseWriter, r *http.Request, q *limiter.Query) error,
) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		rule, key, err := s.subjectOf(r.URL.Query())
		if err != nil {
			return err
		}
		return serve(w, r, &limiter.Query{Rule: rule, Key: key, ByKey: true})
	}
}

// subjectOf reads the rule and the key that a query names.
func (s *Server) subjectOf(q url.Values) (rule string, key []string, err error) {
	set := s.doors.Decider.Rules()
	if set == nil {
		return "", nil, api.Errorf(api.NotReady, "there are no rules in force yet")
	}
	if e := s.doors.ChecksError(); e != nil {
		return "", nil, e // a subject whose counters are not loaded yet would look unused
	}

	rule, text := q.Get("rule"), q.Get("key")
	if rule == "" {
		return "", nil, api.Errorf(api.MissingKey, "rule is missing")
	}
	if !utf8.ValidString(rule) || !utf8.ValidString(text) {
		return "", nil, api.Errorf(api.BadValue, "rule and key must be UTF-8")
	}

	r := set.Rule(rule)
	if r == nil {
		return "", nil, api.Errorf(api.UnknownRule, "unknown rule %q", api.Excerpt(rule))
	}

	key, e := codec.ParseKey(text)
	switch {
	case len(r.Key) == 0 && text == "":
		return rule, nil, nil
	case !q.Has("key"):
		return "", nil, api.Errorf(api.MissingKey,
			"key is missing: rule %q has the key attributes %q", api.Excerpt(rule), r.Key)
	case len(r.Key) == 1 && len(key) < 2: // an array of several values is no text: it does not fit
		if len(text) > codec.MaxValue {
			return "", nil, api.Errorf(api.BadValue, "key must not have more than %d bytes", codec.MaxValue)
		}
		return rule, []string{text}, nil
	}

	if e != nil {
		return "", nil, e
	}
	return rule, key, nil
}

// getUsage answers with what a subject has used.
func (s *Server) getUsage(w http.ResponseWriter, _ *http.Request, q *limiter.Query) error {
	u, err := s.config.Subjects.Usage(q)
	if err != nil {
		return fmt.Errorf("read usage: %w", err)
	}
	return s.replyUsage(w, u)
}

// deleteUsage resets a subject's counters and answers with the usage afterwards.
func (s *Server) deleteUsage(w http.ResponseWriter, r *http.Request, q *limiter.Query) error {
	q.RequestID = r.URL.Query().Get("request_id")
	if r.URL.Query().Has("request_id") && (q.RequestID == "" || len(q.RequestID) > limiter.MaxRequestID) {
		return api.Errorf(api.BadValue, "request_id must have 1 to %d bytes", limiter.MaxRequestID)
	}

	q.LimitName = r.URL.Query().Get("limit_name")
	if r.URL.Query().Has("limit_name") &&
		(q.LimitName == "" || len(q.LimitName) > codec.MaxValue || !utf8.ValidString(q.LimitName)) {
		return api.Errorf(api.BadValue, "limit_name must have 1 to %d bytes of UTF-8", codec.MaxValue)
	}

	q.HolderID = r.URL.Query().Get("slot")
	if r.URL.Query().Has("slot") && q.HolderID == "" {
		return api.Errorf(api.BadValue, "slot must be the id of one that GET /v1/usage lists")
	}

	u, err := s.config.Subjects.Reset(q)
	if err != nil {
		return fmt.Errorf("reset subject: %w", err)
	}

	s.doors.Logger.Info("usage reset", "rule", q.Rule, "by", callerWithAddress(r)) // no key: it may be a secret
	return s.replyUsage(w, u)
}

func (s *Server) replyUsage(w http.ResponseWriter, u *limiter.Usage) error {
	owner := s.doors.Node // decides `consistency: local` by itself
	if u.Rule.Consistency != rules.Local {
		owner, _, _ = s.config.Cluster.Owner(ring.PartitionOf(u.Hash.Hi))
	}
	b := codec.AppendSubject(nil, u)
	b = append(b, `,"owner":`...)
	b = codec.AppendString(b, owner)
	b = codec.AppendUsage(b, u)
	b = appendRegions(s.appendAdaptive(b, u.Rule), u)
	s.sendJSON(w, append(b, '}'))
	return nil
}

// SubjectOwner is the answer to GET /v1/owner.
type SubjectOwner struct {
	Rule      string     `json:"rule"`
	Key       SubjectKey `json:"key"`
	Partition int        `json:"partition"`
	Epoch     int64      `json:"epoch"`
	Owner     string     `json:"owner"`
	Standby   string     `json:"standby"`
}

// getOwner answers with the owner and the standby of a subject.
func (s *Server) getOwner(w http.ResponseWriter, _ *http.Request, q *limiter.Query) error {
	u, err := s.config.Subjects.Locate(q)
	if err != nil {
		return fmt.Errorf("locate subject: %w", err)
	}
	partition := ring.PartitionOf(u.Hash.Hi)
	report := SubjectOwner{Rule: u.Rule.Name, Key: u.Key, Partition: partition}
	report.Owner, report.Standby, report.Epoch = s.config.Cluster.Owner(partition)
	return s.reply(w, report)
}

// SubjectKey is a key as answers show it: a string if it has one value, else an array.
type SubjectKey []string

// MarshalJSON implements json.Marshaler.
func (k SubjectKey) MarshalJSON() ([]byte, error) { return codec.AppendKey(nil, k), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (k *SubjectKey) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]string)(k))
	}
	*k = []string{""}
	return json.Unmarshal(b, &(*k)[0])
}

// TopSubjects is the answer to GET /v1/top.
type TopSubjects struct {
	Subjects []TopSubject `json:"subjects"`
	Nodes    []nodePart   `json:"nodes,omitempty"`
}

// TopSubject is a subject in one of the lists. Which fields are set depends on
// the list: see topKinds.
type TopSubject struct {
	Rule    string     `json:"rule"`
	Key     SubjectKey `json:"key"`
	Refused int64      `json:"refused"`
	Checks  int64      `json:"checks"`
	Shadow  int64      `json:"shadow,omitempty"`  // times that a shadow rule would have refused
	Used    *int64     `json:"used,omitempty"`    // admitted checks; in the list near, what is used of Limit
	Delayed int64      `json:"delayed,omitempty"` // checks that were allowed after a delay
	Limit   *int64     `json:"limit,omitempty"`   // the tightest limit
	Recent  *int64     `json:"recent,omitempty"`  // within the last five minutes
}

// topKind is a list of subjects.
type topKind struct {
	by   top.By
	fill func(out *TopSubject, s *top.Subject)
}

// topKinds has the lists by the value of the parameter by.
var topKinds = map[string]topKind{
	"refused": {top.Refused, func(out *TopSubject, s *top.Subject) { out.Refused = s.Count }},
	"recent":  {top.Refused, func(out *TopSubject, s *top.Subject) { out.Refused = s.Count }},
	"shadow":  {top.Shadow, func(out *TopSubject, s *top.Subject) { out.Shadow = s.Count }},
	"used":    {top.Used, func(out *TopSubject, s *top.Subject) { out.Used = &s.Count }},
	"delayed": {top.Delayed, func(out *TopSubject, s *top.Subject) { out.Delayed = s.Count }},
	"near": {top.Near,
		func(out *TopSubject, s *top.Subject) { out.Used, out.Limit = &s.Used, &s.Limit }},
}

// getTop lists subjects.
func (s *Server) getTop(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	by, err := choiceParam(q, "by", "refused", "shadow", "used", "delayed", "near", "recent")
	if err != nil {
		return err
	}

	recent, err := choiceParam(q, "recent", "false", "true")
	if err != nil {
		return err
	}

	n, err := countParam(q, defaultTop, top.MaxSubjects)
	if err != nil {
		return err
	}

	kind := topKinds[by]
	o := top.Options{By: kind.by, N: n, Rule: q.Get("rule"), Recent: recent == "true" || by == "recent"}
	if o.Recent && o.By == top.Near {
		return api.Errorf(api.BadValue, "recent: subjects near to a limit are always those of now")
	}

	list, nodes := s.config.Subjects.Top(o)
	answer := TopSubjects{Subjects: []TopSubject{}, Nodes: s.nodeParts(nodes)}
	for i := range list {
		t := &list[i]
		subject := TopSubject{Rule: t.Rule, Key: t.Key, Checks: t.Checks}
		kind.fill(&subject, t)
		if o.Recent {
			subject.Recent = &t.Recent
		}
		answer.Subjects = append(answer.Subjects, subject)
	}

	return s.reply(w, answer)
}

// getCluster answers with the cluster as this node sees it.
func (s *Server) getCluster(w http.ResponseWriter, _ *http.Request) error {
	view := s.config.Cluster.View()
	if set := s.doors.Decider.Rules(); set != nil {
		view.RulesVersion = set.Version
	}
	view.Starting = s.doors.StartingReason()
	return s.reply(w, view)
}

// getHealth answers GET /healthz: the process is alive.
func (s *Server) getHealth(w http.ResponseWriter, _ *http.Request) error {
	s.sendJSON(w, s.doors.HealthReport())
	return nil
}

// getReady answers GET /readyz: whether the node takes checks.
func (s *Server) getReady(w http.ResponseWriter, _ *http.Request) error {
	if e := s.doors.ProbeError(); e != nil {
		return e
	}
	s.sendJSON(w, s.doors.HealthReport())
	return nil
}
