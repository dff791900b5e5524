package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter/loads"
	"github.com/rlnode/rlnode/rules"
)

// Loads holds the loads that adaptive rules follow. *loads.Loads is one.
type Loads interface {
	// Report reports a load that is valid for ttl. The error wraps a
	// loads.ReportError or loads.ErrFull.
	Report(source string, load float64, ttl time.Duration) error
	// Load returns the load of one source, if it is known.
	Load(source string) (load float64, known bool)
	// Sources lists the known sources.
	Sources() []loads.Source
}

// postLoad accepts a report of a load.
func (s *Server) postLoad(w http.ResponseWriter, r *http.Request) error {
	q, err := readForm(r, codec.LoadForm, codec.MaxLoadBody)
	if err != nil {
		return err
	}

	source := strings.Clone(q.Source)
	if err := s.config.Loads.Report(source, q.Load, q.TTL); err != nil {
		return fmt.Errorf("take load: %w", err)
	}

	s.doors.Logger.Debug("load reported", "source", source, "load", q.Load, "by", callerWithAddress(r))
	return s.reply(w, struct {
		Source string   `json:"source"`
		Load   float64  `json:"load"`
		TTL    int64    `json:"ttl_ms"`
		Rules  []string `json:"rules"`
	}{source, q.Load, q.TTL.Milliseconds(), s.rulesFollowing(source)})
}

// rulesFollowing lists the rules in force that follow a source.
func (s *Server) rulesFollowing(source string) []string {
	names := []string{}
	for _, r := range s.adaptiveRules() {
		if r.Adaptive.Source == source {
			names = append(names, r.Name)
		}
	}
	return names
}

// adaptiveRules lists the adaptive rules in force.
func (s *Server) adaptiveRules() []*rules.Rule {
	set := s.doors.Decider.Rules()
	if set == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(set.Rules), func(r *rules.Rule) bool { return r.Adaptive == nil })
}

// LoadReport is the answer to GET /v1/load: the sources that a node knows, and
// their effect on adaptive rules.
type LoadReport struct {
	Sources []SourceReport   `json:"sources"`
	Rules   []AdaptiveReport `json:"rules"`
}

// SourceReport is the load of a source. A source that this node measures itself has no TTL.
type SourceReport struct {
	Source string  `json:"source"`
	Load   float64 `json:"load"`
	TTL    *int64  `json:"ttl_ms,omitempty"`
}

// AdaptiveReport is the source that an adaptive rule follows, and the factor by
// which its limits are currently multiplied.
type AdaptiveReport struct {
	Rule   string  `json:"rule"`
	Source string  `json:"source"`
	Factor float64 `json:"factor"`
}

// getLoad lists the sources that this node knows, and their effect on adaptive rules.
func (s *Server) getLoad(w http.ResponseWriter, _ *http.Request) error {
	report := LoadReport{[]SourceReport{}, []AdaptiveReport{}}
	for _, l := range s.config.Loads.Sources() {
		source := SourceReport{Source: l.Name, Load: l.Load}
		if l.Name != loads.NodeCPU {
			left := codec.Millis(l.Left)
			source.TTL = &left
		}
		report.Sources = append(report.Sources, source)
	}

	for _, r := range s.adaptiveRules() {
		report.Rules = append(report.Rules,
			AdaptiveReport{Rule: r.Name, Source: r.Adaptive.Source, Factor: s.config.Subjects.LimitFactor(r)})
	}

	return s.reply(w, report)
}

// appendAdaptive appends the source that an adaptive rule follows, its load,
// and the rule's current factor. load is null while it is unknown.
func (s *Server) appendAdaptive(b []byte, r *rules.Rule) []byte {
	if r.Adaptive == nil {
		return b
	}
	b = codec.AppendString(append(b, `,"adaptive":{"source":`...), r.Adaptive.Source)
	if load, known := s.config.Loads.Load(r.Adaptive.Source); known {
		b = appendDecimal(append(b, `,"load":`...), load)
	} else {
		b = append(b, `,"load":null`...)
	}
	return append(appendDecimal(append(b, `,"factor":`...), s.config.Subjects.LimitFactor(r)), '}')
}

func appendDecimal(b []byte, v float64) []byte { return strconv.AppendFloat(b, v, 'g', -1, 64) }
