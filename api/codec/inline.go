package codec

import (
	"fmt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// modeNames are the values of mode, by counters.Mode.
var modeNames = [...]string{counters.CheckMode: "check", counters.PeekMode: "peek", counters.CountMode: "count"}

// subjectFields are the fields of a subject with inline limits, given in the check itself or in an element of subjects.
const subjectFields = fieldNamespace | fieldKey | fieldLimits | fieldConsistency | fieldShadow | fieldCost | fieldCosts | fieldMode

// subjectNames lists subjectFields for messages.
const subjectNames = "namespace, key, limits, consistency, cost, costs, mode, shadow"

// subjectForm is the form of an element of subjects.
var subjectForm = &Form{fields: subjectFields, names: subjectNames, validate: (*Request).validateSubject}

// nextSubject appends a subject. It reuses the slices of an earlier request's subject.
func (r *Request) nextSubject() *limiter.Subject {
	n := len(r.Subjects)
	if n < cap(r.Subjects) {
		r.Subjects = r.Subjects[:n+1]
	} else {
		r.Subjects = append(r.Subjects, limiter.Subject{})
	}
	return &r.Subjects[n]
}

// resetSubjects empties the subjects but keeps their slices. It clears all strings, which would keep whole bodies alive.
func resetSubjects(list []limiter.Subject) []limiter.Subject {
	for i := range list {
		s := &list[i]
		clear(s.Key)
		clear(s.Limits)
		clear(s.Costs)
		list[i] = limiter.Subject{
			InlineSubject: rules.InlineSubject{Key: s.Key[:0], Limits: s.Limits[:0]}, Costs: s.Costs[:0],
		}
	}
	return list[:0]
}

// readMode reads the value of mode.
func (s *Decoder) readMode(path string) counters.Mode {
	switch s.word(path) {
	case modeNames[counters.CheckMode]:
	case modeNames[counters.PeekMode]:
		return counters.PeekMode
	case modeNames[counters.CountMode]:
		return counters.CountMode
	default:
		s.failValue(api.BadValue, "%s must be check, peek or count", path)
	}
	return counters.CheckMode
}

// readExact reads the value of consistency.
func (s *Decoder) readExact(path string) bool {
	switch s.word(path) {
	case "exact":
		return true
	case "hybrid":
	default:
		s.failValue(api.BadValue, "%s must be hybrid or exact", path)
	}
	return false
}

// word reads a string that the caller compares with the known words.
func (s *Decoder) word(path string) string { return s.quoted("", path, 1, MaxValue) }

// readSubjects reads the value of subjects.
func (r *Request) readSubjects(s *Decoder) {
	if s.next() != '[' {
		s.skip()
		s.failValue(api.BadValue, "subjects must be an array of objects")
		return
	}
	s.open()
	n := 0
	for ; s.more(n, ']'); n++ {
		if n >= rules.MaxInlineSubjects {
			s.skip()
			s.failValue(api.BadValue, "subjects: at most %d are allowed", rules.MaxInlineSubjects)
			continue
		}
		r.readSubject(s, n)
	}
	if n == 0 {
		s.failValue(api.BadValue, "subjects must have at least one subject")
	}
}

// readSubject reads the i-th element of subjects.
func (r *Request) readSubject(s *Decoder, i int) {
	path := func(field string) string { return fmt.Sprintf("subjects[%d].%s", i, field) }
	if s.next() != '{' {
		s.skip()
		s.failValue(api.BadValue, "subjects[%d] must be an object", i)
		return
	}
	one := Request{Query: limiter.Query{Subjects: r.Subjects}, Cost: 1, part: path} // its fields are read like those of a check
	one.read(s, subjectForm)
	r.Subjects = one.Subjects
}

// validateSubject validates the fields of an inline subject and moves them into it.
func (r *Request) validateSubject(s *Decoder) {
	if r.given&fieldLimits == 0 {
		s.failValue(api.MissingKey, "%s is missing", r.path("limits"))
	}
	if r.given&fieldKey == 0 {
		s.failValue(api.MissingKey, "%s is missing", r.path("key"))
	}
	r.validateCosts(s)
	r.takeSubject()
}

// takeSubject moves the fields of a subject from r into r's last subject.
func (r *Request) takeSubject() {
	if r.given&fieldLimits == 0 {
		r.nextSubject()
	}
	one := &r.Subjects[len(r.Subjects)-1]
	one.Namespace, one.Exact, one.Shadow, one.Mode = r.namespace, r.exact, r.shadow, r.Mode
	one.Key, r.Key = append(one.Key[:0], r.Key...), r.Key[:0]
	one.Costs, r.Costs = append(one.Costs[:0], r.Costs...), r.Costs[:0]
}

// readLimits reads the value of limits into a new subject.
func (r *Request) readLimits(s *Decoder) {
	one := r.nextSubject()
	if s.next() != '[' {
		s.skip()
		s.failValue(api.BadValue, "%s must be an array of objects", r.path("limits"))
		return
	}
	s.open()
	n := 0
	for ; s.more(n, ']'); n++ {
		if n >= rules.MaxInlineLimits {
			s.skip()
			s.failValue(api.BadValue, "%s: at most %d are allowed", r.path("limits"), rules.MaxInlineLimits)
			continue
		}
		if s.next() != '{' {
			s.skip()
			s.failValue(api.BadValue, "%s[%d] must be an object", r.path("limits"), n)
			continue
		}
		one.Limits = append(one.Limits, rules.InlineLimit{})
		r.readLimit(s, &one.Limits[n], n)
	}
	if n == 0 {
		s.failValue(api.BadValue, "%s must have at least one limit", r.path("limits"))
	}
}

// readLimit reads the i-th limit of a subject.
func (r *Request) readLimit(s *Decoder, l *rules.InlineLimit, i int) {
	s.open()
	given := 0
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		if s.syntax != nil {
			return
		}
		number, word, bit := limitField(l, name)
		path := func() string { return fmt.Sprintf("%s[%d].%s", r.path("limits"), i, name) }
		switch {
		case bit == 0:
			s.unknown(name, "limit, per, per_ms, algorithm, burst, unit, name, tz, from")
			continue
		case given&bit != 0:
			s.failSyntax(path() + " is given twice, the second time")
			return
		}
		given |= bit
		switch {
		case number != nil:
			v, ok := s.whole(0)
			if !ok || v < 1 {
				s.failValue(api.BadValue, "%s must be a whole number in plain digits from 1 to %d", path(), int64(algorithms.MaxAmount))
			}
			*number = v
		default:
			if s.next() != '"' {
				s.skip()
				s.failValue(api.BadValue, "%s must be a string", path())
				continue
			}
			if *word = s.text(); s.syntax == nil && (len(*word) == 0 || len(*word) > MaxValue) {
				s.failValue(api.BadValue, "%s must have 1 to %d bytes", path(), MaxValue)
			}
		}
	}
	if s.syntax == nil && given&bitLimit == 0 {
		s.failValue(api.MissingKey, "%s[%d].limit is missing", r.path("limits"), i)
	}
	if s.syntax == nil && given&(bitPer|bitPerMS) == 0 {
		s.failValue(api.MissingKey, "%s[%d].per is missing: the window, such as 10s, 1m or day, or per_ms", r.path("limits"), i)
	}
}

// Bits of the fields of a limit.
const (
	bitLimit = 1 << iota
	bitPer
	bitPerMS
	bitAlgorithm
	bitBurst
	bitUnit
	bitName
	bitTZ
	bitFrom
)

// limitField returns a pointer to the named field of l, either number or text, and its bit; 0 if there is no such field.
func limitField(l *rules.InlineLimit, name string) (number *int64, text *string, bit int) {
	switch name {
	case "limit":
		return &l.Limit, nil, bitLimit
	case "per":
		return nil, &l.Per, bitPer
	case "per_ms":
		return &l.PerMS, nil, bitPerMS
	case "algorithm":
		return nil, &l.Algorithm, bitAlgorithm
	case "burst":
		return &l.Burst, nil, bitBurst
	case "unit":
		return nil, &l.Unit, bitUnit
	case "name":
		return nil, &l.Name, bitName
	case "tz":
		return nil, &l.TZ, bitTZ
	case "from":
		return nil, &l.From, bitFrom
	}
	return nil, nil, 0
}
