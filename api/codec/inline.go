package codec

import (
	"fmt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// modeNames are the values of mode, by counters.Mode.
var modeNames = [...]string{counters.CheckMode: "check", counters.PeekMode: "peek", counters.CountMode: "count"}

// subjectFields are the fields of a subject with inline limits, given in the
// check itself or in an element of subjects.
const subjectFields = fieldNamespace | fieldKey | fieldLimits | fieldConsistency | fieldShadow |
	fieldCost | fieldCosts | fieldMode

// subjectNames lists subjectFields for messages.
const subjectNames = "namespace, key, limits, consistency, cost, costs, mode, shadow"

// subjectForm is the form of an element of subjects.
var subjectForm = &Form{fields: subjectFields, names: subjectNames, validate: (*Request).validateSubject}

// nextSubject appends a subject. It reuses the slices of an earlier request's subject.
func (q *Request) nextSubject() *limiter.Subject {
	n := len(q.Subjects)
	if n < cap(q.Subjects) {
		q.Subjects = q.Subjects[:n+1]
	} else {
		q.Subjects = append(q.Subjects, limiter.Subject{})
	}
	return &q.Subjects[n]
}

// resetSubjects empties the subjects but keeps their slices. It clears all
// strings, which would keep whole bodies alive.
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

// atMost is the mode of checks that take as much of their cost as there is.
const atMost = "at_most"

// readMode reads the value of mode.
func (q *Request) readMode(dec *Decoder, path string) counters.Mode {
	switch dec.readWord(path) {
	case atMost:
		q.AtMost = true
	case modeNames[counters.CheckMode]:
	case modeNames[counters.PeekMode]:
		return counters.PeekMode
	case modeNames[counters.CountMode]:
		return counters.CountMode
	default:
		dec.failValue(api.BadValue, "%s must be check, peek, count or at_most", path)
	}
	return counters.CheckMode
}

// readExact reads the value of consistency.
func (dec *Decoder) readExact(path string) bool {
	switch dec.readWord(path) {
	case "exact":
		return true
	case "hybrid":
	default:
		dec.failValue(api.BadValue, "%s must be hybrid or exact", path)
	}
	return false
}

// readWord reads a string that the caller compares with the known words.
func (dec *Decoder) readWord(path string) string { return dec.readBounded("", path, 1, MaxValue) }

// readSubjects reads the value of subjects.
func (q *Request) readSubjects(dec *Decoder) {
	if dec.skipSpace() != '[' {
		dec.skip()
		dec.failValue(api.BadValue, "subjects must be an array of objects")
		return
	}

	dec.enter()
	n := 0
	for ; dec.hasMore(n, ']'); n++ {
		if n >= rules.MaxInlineSubjects {
			dec.skip()
			dec.failValue(api.BadValue, "subjects: at most %d are allowed", rules.MaxInlineSubjects)
			continue
		}
		q.readSubject(dec, n)
	}

	if n == 0 {
		dec.failValue(api.BadValue, "subjects must have at least one subject")
	}
}

// readSubject reads the i-th element of subjects.
func (q *Request) readSubject(dec *Decoder, i int) {
	path := func(field string) string { return fmt.Sprintf("subjects[%d].%s", i, field) }
	if dec.skipSpace() != '{' {
		dec.skip()
		dec.failValue(api.BadValue, "subjects[%d] must be an object", i)
		return
	}
	// The fields of a subject are read like those of a check.
	part := Request{Query: limiter.Query{Subjects: q.Subjects}, Cost: 1, fieldPath: path}
	part.read(dec, subjectForm)
	q.Subjects = part.Subjects
	q.AtMost = q.AtMost || part.AtMost
}

// validateSubject validates the fields of an inline subject and moves them into it.
func (q *Request) validateSubject(dec *Decoder) {
	if q.given&fieldLimits == 0 {
		dec.failValue(api.MissingKey, "%s is missing", q.path("limits"))
	}
	if q.given&fieldKey == 0 {
		dec.failValue(api.MissingKey, "%s is missing", q.path("key"))
	}
	q.validateCosts(dec)
	q.moveToSubject()
}

// moveToSubject moves the fields of a subject from q into q's last subject.
func (q *Request) moveToSubject() {
	// If limits were given, readLimits has already begun the subject.
	if q.given&fieldLimits == 0 {
		q.nextSubject()
	}
	subject := &q.Subjects[len(q.Subjects)-1]
	subject.Namespace = q.namespace
	subject.Exact = q.exact
	subject.Shadow = q.shadow
	subject.Mode = q.Mode
	subject.Key = append(subject.Key[:0], q.Key...)
	q.Key = q.Key[:0]
	subject.Costs = append(subject.Costs[:0], q.Costs...)
	q.Costs = q.Costs[:0]
}

// readLimits reads the value of limits into a new subject.
func (q *Request) readLimits(dec *Decoder) {
	subject := q.nextSubject()

	if dec.skipSpace() != '[' {
		dec.skip()
		dec.failValue(api.BadValue, "%s must be an array of objects", q.path("limits"))
		return
	}

	dec.enter()
	n := 0
	for ; dec.hasMore(n, ']'); n++ {
		if n >= rules.MaxInlineLimits {
			dec.skip()
			dec.failValue(api.BadValue, "%s: at most %d are allowed", q.path("limits"), rules.MaxInlineLimits)
			continue
		}

		if dec.skipSpace() != '{' {
			dec.skip()
			dec.failValue(api.BadValue, "%s[%d] must be an object", q.path("limits"), n)
			continue
		}

		// Elements that are no objects have no place in Limits.
		subject.Limits = append(subject.Limits, document.InlineLimit{})
		q.readLimit(dec, &subject.Limits[len(subject.Limits)-1], n)
	}

	if n == 0 {
		dec.failValue(api.BadValue, "%s must have at least one limit", q.path("limits"))
	}
}

// readLimit reads the i-th limit of a subject.
func (q *Request) readLimit(dec *Decoder, l *document.InlineLimit, i int) {
	dec.enter()
	given := 0
	for n := 0; dec.hasMore(n, '}'); n++ {
		name := dec.readName()
		if dec.syntaxErr != nil {
			return
		}

		number, word, bit := limitField(l, name)
		path := func() string { return fmt.Sprintf("%s[%d].%s", q.path("limits"), i, name) }
		switch {
		case bit == 0:
			dec.rejectUnknown(name, "limit, per, per_ms, ttl, ttl_ms, algorithm, burst, unit, name, tz, from")
			continue
		case given&bit != 0:
			dec.failSyntax(path() + " is given twice, the second time")
			return
		}
		given |= bit

		switch {
		case number != nil:
			least := int64(1)
			if bit == bitLimit {
				least = 0
			}
			v, ok := dec.readInteger(0)
			if !ok || v < least {
				dec.failValue(api.BadValue,
					"%s must be a whole number in plain digits from %d to %d", path(), least,
					int64(algorithms.MaxAmount))
			}
			*number = v
		default:
			if dec.skipSpace() != '"' {
				dec.skip()
				dec.failValue(api.BadValue, "%s must be a string", path())
				continue
			}
			*word = dec.readString()
			if dec.syntaxErr == nil && (len(*word) == 0 || len(*word) > MaxValue) {
				dec.failValue(api.BadValue, "%s must have 1 to %d bytes", path(), MaxValue)
			}
		}
	}

	if dec.syntaxErr == nil && given&bitLimit == 0 {
		dec.failValue(api.MissingKey, "%s[%d].limit is missing", q.path("limits"), i)
	}
	if dec.syntaxErr == nil && given&(bitPer|bitPerMS|bitTTL|bitTTLMS) == 0 {
		dec.failValue(api.MissingKey,
			"%s[%d].per is missing: the window, such as 10s, 1m or day, or per_ms; or, with algorithm: concurrency, ttl or ttl_ms",
			q.path("limits"), i)
	}
}

// Bits of the fields of a limit.
const (
	bitLimit = 1 << iota
	bitPer
	bitPerMS
	bitTTL
	bitTTLMS
	bitAlgorithm
	bitBurst
	bitUnit
	bitName
	bitTZ
	bitFrom
)

// limitField returns a pointer to the named field of l, either number or text,
// and its bit; 0 if there is no such field.
func limitField(l *document.InlineLimit, name string) (number *int64, text *string, bit int) {
	switch name {
	case "limit":
		return &l.Limit, nil, bitLimit
	case "per":
		return nil, &l.Per, bitPer
	case "per_ms":
		return &l.PerMS, nil, bitPerMS
	case "ttl":
		return nil, &l.TTL, bitTTL
	case "ttl_ms":
		return &l.TTLMS, nil, bitTTLMS
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
