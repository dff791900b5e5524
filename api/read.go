package api

import (
	"cmp"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/loads"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// Bounds of a check.
const (
	maxValue      = 1024 // bytes of a key's or an attribute's value, of a name or a unit
	maxAttributes = 32   // attributes of a check, and values of a key
	maxCosts      = 16   // units in costs
)

// fields is a set of body fields: those given, or those allowed.
type fields uint16

const (
	fieldRule fields = 1 << iota
	fieldKey
	fieldAttributes
	fieldCost
	fieldCosts
	fieldPeek
	fieldWait
	fieldDetail
	fieldTTL
	fieldRequestID
	fieldReservation
	fieldVerdict
	fieldSource
	fieldLoad
)

func fieldOf(name string) fields {
	switch name {
	case "rule":
		return fieldRule
	case "key":
		return fieldKey
	case "attributes":
		return fieldAttributes
	case "cost":
		return fieldCost
	case "costs":
		return fieldCosts
	case "peek":
		return fieldPeek
	case "wait":
		return fieldWait
	case "detail":
		return fieldDetail
	case "ttl_ms":
		return fieldTTL
	case "request_id":
		return fieldRequestID
	case "reservation":
		return fieldReservation
	case "verdict":
		return fieldVerdict
	case "source":
		return fieldSource
	case "load":
		return fieldLoad
	}
	return 0
}

// form describes what a body may contain.
type form struct {
	fields    fields
	names     string // of the fields, for messages
	leastCost int64
	longest   time.Duration // the bound on ttl_ms
	// validate checks the fields against each other and sets what follows from them.
	validate func(*checkRequest, *scanner)
}

const checkFields = fieldRule | fieldKey | fieldAttributes | fieldCost | fieldCosts | fieldPeek | fieldWait | fieldDetail

// The forms of all bodies that are one object, on both planes, except batches.
var (
	checkForm = &form{
		fields: checkFields, names: "rule, key, attributes, cost, costs, peek, wait, detail", validate: (*checkRequest).validateCheck,
	}
	reserveForm = &form{
		fields: checkFields | fieldTTL | fieldRequestID, longest: limiter.MaxReservationTime,
		names: "rule, key, attributes, cost, costs, wait, detail, ttl_ms, request_id", validate: (*checkRequest).validateReserve,
	}
	settleForm = &form{
		fields: fieldReservation | fieldCosts, names: "reservation, costs", validate: (*checkRequest).validateSettle,
	}
	adjustForm = &form{
		fields: fieldRule | fieldKey | fieldCost | fieldRequestID, names: "rule, key, cost, request_id", leastCost: -algorithms.MaxAmount,
		validate: (*checkRequest).validateAdjust,
	}
	tryForm = &form{fields: checkFields, names: checkForm.names, validate: (*checkRequest).validateTry}

	feedbackForm = &form{
		fields: fieldRule | fieldKey | fieldVerdict, names: "rule, key, verdict", validate: (*checkRequest).validateFeedback,
	}
	loadForm = &form{
		fields: fieldSource | fieldLoad | fieldTTL, names: "source, load, ttl_ms", longest: loads.MaxTTL, validate: (*checkRequest).validateLoad,
	}
)

// checkRequest is a check, or another body, as it was sent. Its strings are valid as long as the scanner's. It is reused,
// with the slices of its Query.
type checkRequest struct {
	limiter.Query
	given  fields
	wait   bool
	detail bool

	reserving   bool          // it is a reservation
	ttl         time.Duration // of a reservation or a load
	reservation string        // the id of the reservation to settle, or of this one once it is allowed
	verdict     string
	source      string
	load        float64
	cost        int64
}

// Reset prepares r for the next request.
func (r *checkRequest) Reset() {
	// The strings would keep whole bodies alive.
	clear(r.Key)
	clear(r.Attributes)
	clear(r.Costs)
	*r = checkRequest{Query: limiter.Query{Key: r.Key[:0], Attributes: r.Attributes[:0], Costs: r.Costs[:0]}}
}

// read parses a body of form f whose opening brace next has found.
func (r *checkRequest) read(s *scanner, f *form) {
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		if s.syntax != nil {
			return
		}
		r.readField(s, f, name)
	}
	if s.err() == nil {
		f.validate(r, s)
		r.ByKey = r.given&fieldAttributes == 0
	}
}

// readField reads the value of one field.
func (r *checkRequest) readField(s *scanner, f *form, name string) {
	field := fieldOf(name)
	switch {
	case field&f.fields == 0:
		s.unknown(name, f.names)
		return
	case r.given&field != 0:
		s.fail(name + " is given twice, the second time")
		return
	}
	r.given |= field
	switch field {
	case fieldRule:
		r.Rule = s.quoted("", name, 1, maxValue)
	case fieldKey:
		r.readKey(s)
	case fieldAttributes:
		r.readAttributes(s)
	case fieldCost:
		r.cost = s.amount("", name, f.leastCost)
	case fieldCosts:
		r.readCosts(s)
	case fieldPeek:
		r.Peek = s.boolean(name)
	case fieldWait:
		r.wait = s.boolean(name)
	case fieldDetail:
		r.detail = s.boolean(name)
	case fieldTTL:
		ms, ok := s.whole(0)
		if !ok || ms < 1 || ms > f.longest.Milliseconds() {
			s.mean(BadValue, "ttl_ms must be a whole number from 1 to %d", f.longest.Milliseconds())
			return
		}
		r.ttl = time.Duration(ms) * time.Millisecond
	case fieldRequestID:
		r.RequestID = s.quoted("", name, 1, limiter.MaxRequestID)
	case fieldReservation:
		r.reservation = s.quoted("", name, 0, maxCheckBody)
	case fieldVerdict:
		r.verdict = s.quoted("", name, 1, maxValue)
	case fieldSource:
		r.source = s.quoted("", name, 0, maxLoadBody) // loads has bounds of its own
	case fieldLoad:
		r.load = s.decimal(name)
	}
}

// subject copies the rule and the key, for callers that keep them.
func (r *checkRequest) subject() (rule string, key []string) {
	key = make([]string, len(r.Key))
	for i, v := range r.Key {
		key[i] = strings.Clone(v)
	}
	return strings.Clone(r.Rule), key
}

// NeedsKey returns an error if r names a rule of set without a key; nil if that rule has no key attributes.
func (r *checkRequest) NeedsKey(set *rules.Set) *Error {
	if !r.ByKey || r.given&fieldKey != 0 {
		return nil
	}
	if rule := set.Rule(r.Rule); rule != nil && len(rule.Key) == 0 {
		return nil
	}
	return errorf(MissingKey, "key is missing: rule %q is asked about a key, or about attributes", excerpt(r.Rule))
}

func (r *checkRequest) validateCheck(s *scanner) {
	switch has := func(f fields) bool { return r.given&f != 0 }; {
	case r.given == 0:
		s.mean(MissingKey, "the object is empty: give rule and key, or attributes")
	case has(fieldKey) && has(fieldAttributes):
		s.mean(BadValue, "key and attributes exclude each other")
	case has(fieldKey) && !has(fieldRule):
		s.mean(MissingKey, "rule is missing: a key is asked of one rule")
	case !has(fieldRule) && !has(fieldAttributes):
		s.mean(MissingKey, "give rule and key, or attributes")
	}
	if r.given&fieldCost != 0 {
		for i := range r.Costs {
			if r.Costs[i].Unit == rules.Requests {
				s.mean(BadValue, "cost and costs.requests exclude each other")
			}
		}
		r.Costs = append(r.Costs, limiter.UnitCost{Unit: rules.Requests, Cost: r.cost})
	}
}

// validateTry makes r a peek, unless it says otherwise.
func (r *checkRequest) validateTry(s *scanner) {
	r.validateCheck(s)
	if r.wait {
		s.mean(BadValue, "wait must be false: the answer to a try is not held")
	}
	r.Peek = r.Peek || r.given&fieldPeek == 0
}

func (r *checkRequest) validateReserve(s *scanner) {
	r.validateCheck(s)
	if r.Peek {
		s.mean(BadValue, "peek must not be true: a reservation takes")
	}
	r.reserving, r.ttl = true, cmp.Or(r.ttl, defaultTTL)
}

func (r *checkRequest) validateSettle(s *scanner) {
	r.needs(s, fieldReservation, "reservation is missing: the id that /v1/reserve answered")
	r.needs(s, fieldCosts, "costs is missing: what was used, by unit; {} cancels all")
}

func (r *checkRequest) validateAdjust(s *scanner) {
	r.needs(s, ^fields(0), "the object is empty: give rule, key and cost")
	r.needs(s, fieldRule, "rule is missing")
	if r.cost == 0 {
		s.mean(BadValue, "cost must be a whole number other than 0, from -%d to %d", int64(algorithms.MaxAmount), int64(algorithms.MaxAmount))
	}
}

func (r *checkRequest) validateFeedback(s *scanner) {
	r.needs(s, fieldRule, "rule is missing")
	r.needs(s, fieldVerdict, "verdict is missing")
	if r.verdict != verdictFalsePositive {
		s.mean(BadValue, "verdict must be %s", verdictFalsePositive)
	}
}

func (r *checkRequest) validateLoad(s *scanner) {
	r.needs(s, fieldSource, "source is missing")
	r.needs(s, fieldLoad, "load is missing")
	r.ttl = cmp.Or(r.ttl, loads.DefaultTTL)
}

// needs records an error if none of the fields in any was given.
func (r *checkRequest) needs(s *scanner, any fields, otherwise string) {
	if r.given&any == 0 {
		s.mean(MissingKey, "%s", otherwise)
	}
}

// readKey reads a string or an array of strings.
func (r *checkRequest) readKey(s *scanner) {
	switch s.next() {
	case '"':
		r.Key = append(r.Key, s.quoted("", "each value of key", 0, maxValue))
	case '[':
		s.open()
		for n := 0; s.more(n, ']'); n++ {
			if n >= maxAttributes {
				s.mean(BadValue, "key must not have more than %d values", maxAttributes)
				s.skip()
				continue
			}
			r.Key = append(r.Key, s.quoted("", "each value of key", 0, maxValue))
		}
	default:
		s.skip()
		s.mean(BadValue, "key must be a string or an array of strings")
	}
}

func (r *checkRequest) readAttributes(s *scanner) {
	if s.next() != '{' {
		s.skip()
		s.mean(BadValue, "attributes must be an object of strings")
		return
	}
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		if s.syntax != nil {
			return
		}
		if len(name) > maxValue {
			s.mean(BadValue, "attributes: a name must not have more than %d bytes", maxValue)
		}
		for i := range r.Attributes {
			if r.Attributes[i].Name == name {
				s.fail("attributes." + excerpt(name) + " is given twice")
				return
			}
		}
		if n >= maxAttributes {
			s.mean(BadValue, "attributes must not be more than %d", maxAttributes)
			s.skip()
			continue
		}
		r.Attributes = append(r.Attributes, rules.Attribute{Name: name, Value: s.quoted("attributes", name, 0, maxValue)})
	}
}

func (r *checkRequest) readCosts(s *scanner) {
	if s.next() != '{' {
		s.skip()
		s.mean(BadValue, "costs must be an object of amounts by unit")
		return
	}
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		unit := s.name()
		if s.syntax != nil {
			return
		}
		if len(unit) > maxValue {
			s.mean(BadValue, "costs: a unit must not have more than %d bytes", maxValue)
		}
		for i := range r.Costs {
			if r.Costs[i].Unit == unit {
				s.fail("costs." + excerpt(unit) + " is given twice")
				return
			}
		}
		if n >= maxCosts {
			s.mean(BadValue, "costs must not name more than %d units", maxCosts)
			s.skip()
			continue
		}
		if s.next(); s.syntax == nil {
			r.Costs = append(r.Costs, limiter.UnitCost{Unit: unit, Cost: s.amount("costs", unit, 0)})
		}
	}
}

// parseKey parses a JSON array of strings, as strictly as a check's.
func parseKey(text string) ([]string, *Error) {
	var s scanner
	var c checkRequest
	s.reset([]byte(text))
	if s.next() != '[' {
		return nil, errorf(BadValue, `key must be a JSON array of strings, such as ["acme","/chat"]`)
	}
	c.readKey(&s)
	s.end()
	switch {
	case s.syntax != nil:
		return nil, errorf(BadValue, "key must be a JSON array of strings: %s", s.syntax.Detail)
	case s.meaning != nil:
		return nil, s.meaning
	}
	return c.Key, nil
}
