package api

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/internal/loads"
	"github.com/rlnode/rlnode/rules"
)

// Loads are what adaptive rules follow. *loads.Loads is one.
type Loads interface {
	// Tell takes a load that is valid for ttl. The error wraps a loads.ReportError or loads.ErrFull.
	Tell(source string, load float64, ttl time.Duration) error
	// Load is what is known of one source.
	Load(source string) (load float64, known bool)
	// Sources lists what is known.
	Sources() []loads.Source
}

// maxLoadBody bounds the body of a report, in bytes.
const maxLoadBody = 4 << 10

// postLoad takes a report.
func (s *adminServer) postLoad(w http.ResponseWriter, r *http.Request) error {
	x := s.api.plane.acquire()
	defer s.api.plane.release(x)
	if err := readForm(r, x, loadForm, maxLoadBody); err != nil {
		return err
	}
	q, source := &x.check, strings.Clone(x.check.source)
	if err := s.api.config.Loads.Tell(source, q.load, q.ttl); err != nil {
		return fmt.Errorf("take load: %w", err)
	}
	s.log.Debug("load told", "source", source, "load", q.load, "by", writer(r))
	b := appendLoad([]byte(`{"source":`), source, q.load)
	b = appendInt(b, `,"ttl_ms":`, q.ttl.Milliseconds())
	b = append(b, `,"rules":`...)
	s.sendJSON(w, append(appendStrings(b, s.followers(source)), '}'))
	return nil
}

// decimal reads a number of at least 0.
func (s *scanner) decimal(field string) float64 {
	if c := s.next(); c != '-' && (c < '0' || c > '9') {
		s.skip()
		s.mean(BadValue, "%s must be a number", field)
		return 0
	}
	v, err := strconv.ParseFloat(s.number(), 64)
	if s.syntax == nil && (err != nil || math.Signbit(v) && v != 0) {
		s.mean(BadValue, "%s must be a number from 0 to %d", field, loads.MaxLoad)
	}
	return math.Abs(v)
}

// appendLoad appends a source's name, and its load.
func appendLoad(b []byte, source string, load float64) []byte {
	b = append(appendString(b, source), `,"load":`...)
	return appendDecimal(b, load)
}

func appendDecimal(b []byte, v float64) []byte { return strconv.AppendFloat(b, v, 'g', -1, 64) }

// followers are the rules in force that follow a source.
func (s *adminServer) followers(source string) (names []string) {
	for _, r := range s.adaptive() {
		if r.Adaptive.Source == source {
			names = append(names, r.Name)
		}
	}
	return names
}

// adaptive are the rules in force that are.
func (s *adminServer) adaptive() (out []*rules.Rule) {
	set := s.api.config.Decider.Rules()
	if set == nil {
		return nil
	}
	for _, r := range set.Rules {
		if r.Adaptive != nil {
			out = append(out, r)
		}
	}
	return out
}

// getLoad lists the sources that this node knows, and what it makes of them.
func (s *adminServer) getLoad(w http.ResponseWriter, _ *http.Request) error {
	b := []byte(`{"sources":[`)
	for i, l := range s.api.config.Loads.Sources() {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLoad(append(b, `{"source":`...), l.Name, l.Load)
		if l.Name != loads.NodeCPU {
			b = appendInt(b, `,"ttl_ms":`, millis(l.Left))
		}
		b = append(b, '}')
	}
	b = append(b, `],"rules":[`...)
	for i, r := range s.adaptive() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(append(b, `{"rule":`...), r.Name), `,"source":`...)
		b = append(appendString(b, r.Adaptive.Source), `,"factor":`...)
		b = append(appendDecimal(b, s.api.config.Subjects.Factor(r)), '}')
	}
	s.sendJSON(w, append(b, "]}"...))
	return nil
}

// appendAdaptive appends what an adaptive rule follows, and how far its limits are lowered now. load is null while it is not
// known.
func (s *adminServer) appendAdaptive(b []byte, r *rules.Rule) []byte {
	if r.Adaptive == nil {
		return b
	}
	load, known := s.api.config.Loads.Load(r.Adaptive.Source)
	b = append(appendString(append(b, `,"adaptive":{"source":`...), r.Adaptive.Source), `,"load":`...)
	if known {
		b = appendDecimal(b, load)
	} else {
		b = append(b, "null"...)
	}
	return append(appendDecimal(append(b, `,"factor":`...), s.api.config.Subjects.Factor(r)), '}')
}
