package codec

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/loads"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// Bounds of a check.
const (
	MaxBody     = 64 << 10            // bytes of a body, except a batch's
	MaxLoadBody = 4 << 10             // bytes of a report of a load
	MaxValue    = rules.MaxValueBytes // bytes of a key's or an attribute's value, of a name or a unit
)

// FalsePositive is the only verdict that feedback can give: the check should not have been refused.
const FalsePositive = "false-positive"

// fields is a set of body fields.
type fields uint32

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
	fieldNamespace
	fieldLimits
	fieldConsistency
	fieldShadow
	fieldMode
	fieldSubjects
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
	case "namespace":
		return fieldNamespace
	case "limits":
		return fieldLimits
	case "consistency":
		return fieldConsistency
	case "shadow":
		return fieldShadow
	case "mode":
		return fieldMode
	case "subjects":
		return fieldSubjects
	}
	return 0
}

// Form describes which fields a body may contain, and their bounds.
type Form struct {
	fields  fields
	names   string // the names of the fields, for messages
	minCost int64
	maxTTL  time.Duration // the upper bound of ttl_ms
	// validate checks the fields against each other and sets the fields of the Request that derive from them.
	validate func(*Request, *Decoder)
}

const checkFields = fieldRule | fieldKey | fieldAttributes | fieldCost | fieldCosts | fieldPeek | fieldWait | fieldDetail |
	fieldNamespace | fieldLimits | fieldConsistency | fieldShadow | fieldMode | fieldSubjects

// targetFields are the fields that name one subject.
const targetFields = fieldRule | fieldKey | fieldNamespace | fieldLimits

const targetNames = "rule, key, namespace, limits"

const (
	inlineNames = "namespace, limits, consistency, shadow, subjects"
	tryNames    = "rule, key, attributes, cost, costs, mode, peek, wait, detail, " + inlineNames
)

// The forms of all bodies that are one object, on both planes, except batches.
var (
	CheckForm = &Form{
		fields: checkFields | fieldRequestID, names: tryNames + ", request_id", validate: (*Request).validatePlainCheck,
	}
	ReserveForm = &Form{
		fields: checkFields | fieldTTL | fieldRequestID, maxTTL: limiter.MaxReservationTime,
		names: "rule, key, attributes, cost, costs, wait, detail, ttl_ms, request_id, " + inlineNames, validate: (*Request).validateReserve,
	}
	SettleForm = &Form{
		fields: fieldReservation | fieldCosts, names: "reservation, costs", validate: (*Request).validateSettle,
	}
	AdjustForm = &Form{
		fields: targetFields | fieldCost | fieldCosts | fieldRequestID, names: targetNames + ", cost, costs, request_id", minCost: -algorithms.MaxAmount,
		validate: (*Request).validateAdjust,
	}
	UsageForm = &Form{fields: targetFields, names: targetNames, validate: (*Request).validateTarget}
	ResetForm = &Form{
		fields: targetFields | fieldRequestID, names: targetNames + ", request_id", validate: (*Request).validateTarget,
	}
	TryForm = &Form{fields: checkFields, names: tryNames, validate: (*Request).validateTry}

	FeedbackForm = &Form{
		fields: fieldRule | fieldKey | fieldVerdict, names: "rule, key, verdict", validate: (*Request).validateFeedback,
	}
	LoadForm = &Form{
		fields: fieldSource | fieldLoad | fieldTTL, names: "source, load, ttl_ms", maxTTL: loads.MaxTTL, validate: (*Request).validateLoad,
	}
)

// Request is a decoded body: a check or one of the other forms. Its strings are valid as long as the Decoder's. It is reused,
// including the slices of its Query.
type Request struct {
	limiter.Query
	given  fields
	Wait   bool
	Detail bool

	Reserving   bool          // the request is a reservation
	TTL         time.Duration // of a reservation or a load
	Reservation string        // the id of the reservation to settle, or of the one that was just made
	verdict     string
	Source      string
	Load        float64
	Cost        int64

	// Fields of an inline subject, until takeSubject moves them.
	namespace     string
	exact, shadow bool
	part          func(field string) string // returns a field's path for messages; nil if r is the whole body
}

// path returns the path of a field for messages.
func (r *Request) path(field string) string {
	if r.part == nil {
		return field
	}
	return r.part(field)
}

// Reset prepares r for the next request.
func (r *Request) Reset() {
	// The strings would keep whole bodies alive.
	clear(r.Key)
	clear(r.Attributes)
	clear(r.Costs)
	*r = Request{Query: limiter.Query{
		Key: r.Key[:0], Attributes: r.Attributes[:0], Costs: r.Costs[:0], Subjects: resetSubjects(r.Subjects),
	}}
}

// read parses a body of form f, starting at its opening brace.
func (r *Request) read(s *Decoder, f *Form) {
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
func (r *Request) readField(s *Decoder, f *Form, name string) {
	field := fieldOf(name)
	switch {
	case field&f.fields == 0:
		s.unknown(name, f.names)
		return
	case r.given&field != 0:
		s.failSyntax(name + " is given twice, the second time")
		return
	}
	r.given |= field
	switch field {
	case fieldRule:
		r.Rule = s.quoted("", name, 1, MaxValue)
	case fieldKey:
		r.readKey(s)
	case fieldAttributes:
		r.readAttributes(s)
	case fieldCost:
		r.Cost = s.amount("", name, f.minCost)
	case fieldCosts:
		r.readCosts(s, f.minCost)
	case fieldPeek:
		if s.boolean(name) {
			r.Mode = counters.PeekMode
		}
	case fieldWait:
		r.Wait = s.boolean(name)
	case fieldDetail:
		r.Detail = s.boolean(name)
	case fieldTTL:
		ms, ok := s.whole(0)
		if !ok || ms < 1 || ms > f.maxTTL.Milliseconds() {
			s.failValue(api.BadValue, "ttl_ms must be a whole number from 1 to %d", f.maxTTL.Milliseconds())
			return
		}
		r.TTL = time.Duration(ms) * time.Millisecond
	case fieldRequestID:
		r.RequestID = s.quoted("", name, 1, limiter.MaxRequestID)
	case fieldReservation:
		r.Reservation = s.quoted("", name, 0, MaxBody)
	case fieldVerdict:
		r.verdict = s.quoted("", name, 1, MaxValue)
	case fieldSource:
		r.Source = s.quoted("", name, 0, MaxLoadBody) // loads has bounds of its own
	case fieldLoad:
		r.Load = s.decimal(name)
	case fieldNamespace:
		r.namespace = s.quoted("", r.path(name), 1, MaxValue)
	case fieldLimits:
		r.readLimits(s)
	case fieldConsistency:
		r.exact = s.readExact(r.path(name))
	case fieldShadow:
		r.shadow = s.boolean(r.path(name))
	case fieldMode:
		r.Mode = s.readMode(r.path(name))
	case fieldSubjects:
		r.readSubjects(s)
	}
}

// Subject returns copies of the rule and the key, which the caller may retain.
func (r *Request) Subject() (rule string, key []string) {
	key = make([]string, len(r.Key))
	for i, v := range r.Key {
		key[i] = strings.Clone(v)
	}
	return strings.Clone(r.Rule), key
}

// AppendGivenCosts appends the fields cost and costs as the caller gave them, if any.
func (r *Request) AppendGivenCosts(b []byte) []byte {
	if r.given&fieldCost != 0 {
		b = AppendInt(b, `,"cost":`, r.Cost)
	}
	if r.given&fieldCosts != 0 {
		costs := r.Costs
		if len(r.Subjects) > 0 {
			costs = r.Subjects[0].Costs
		}
		if r.given&fieldCost != 0 {
			costs = costs[:len(costs)-1] // validateCosts has appended cost
		}
		b = AppendCosts(append(b, `,"costs":`...), costs)
	}
	return b
}

// RequireKey returns an error if r names a rule without giving a key or attributes, unless that rule has no key attributes.
func (r *Request) RequireKey(set *rules.Set) *api.Error {
	if !r.ByKey || r.given&(fieldKey|fieldSubjects) != 0 {
		return nil
	}
	if rule := set.Rule(r.Rule); rule != nil && len(rule.Key) == 0 {
		return nil
	}
	return api.Errorf(api.MissingKey, "key is missing: rule %q needs a key, or attributes", api.Excerpt(r.Rule))
}

func (r *Request) validatePlainCheck(s *Decoder) {
	r.validateCheck(s)
	if r.RequestID != "" && r.Mode != counters.CountMode && !slices.ContainsFunc(r.Subjects, func(one limiter.Subject) bool { return one.Mode == counters.CountMode }) {
		s.failValue(api.BadValue, "request_id is for mode count only: the answers to other checks are not kept")
	}
}

func (r *Request) validateCheck(s *Decoder) {
	if r.given&(fieldPeek|fieldMode) == fieldPeek|fieldMode {
		s.failValue(api.BadValue, "peek and mode exclude each other")
	}
	if r.given&(fieldNamespace|fieldLimits|fieldConsistency|fieldShadow|fieldSubjects) != 0 {
		r.validateInline(s)
		return
	}
	switch has := func(f fields) bool { return r.given&f != 0 }; {
	case r.given == 0:
		s.failValue(api.MissingKey, "the object is empty: give rule and key, attributes, or key and limits")
	case has(fieldKey) && has(fieldAttributes):
		s.failValue(api.BadValue, "key and attributes exclude each other")
	case has(fieldKey) && !has(fieldRule):
		s.failValue(api.MissingKey, "rule is missing: a key belongs to one rule")
	case !has(fieldRule) && !has(fieldAttributes):
		s.failValue(api.MissingKey, "give rule and key, or attributes")
	}
	r.validateCosts(s)
}

// validateInline validates a check with inline limits.
func (r *Request) validateInline(s *Decoder) {
	switch has := func(f fields) bool { return r.given&f != 0 }; {
	case has(fieldRule | fieldAttributes):
		s.failValue(api.BadValue, "limits and subjects exclude rule and attributes")
	case !has(fieldSubjects):
		r.validateSubject(s)
	case has(subjectFields | fieldPeek):
		s.failValue(api.BadValue, "subjects excludes %s and peek: each subject has its own", subjectNames)
	}
}

// validateCosts appends cost to the costs.
func (r *Request) validateCosts(s *Decoder) {
	if r.given&fieldCost != 0 {
		for i := range r.Costs {
			if r.Costs[i].Unit == rules.Requests {
				s.failValue(api.BadValue, "cost and costs.requests exclude each other")
			}
		}
		r.Costs = append(r.Costs, limiter.UnitCost{Unit: rules.Requests, Cost: r.Cost})
	}
}

// validateTry validates a try, which is a peek unless the body sets peek or mode.
func (r *Request) validateTry(s *Decoder) {
	r.validateCheck(s)
	if r.Wait {
		s.failValue(api.BadValue, "wait must be false: the answer to a try is not held")
	}
	if r.given&(fieldPeek|fieldMode) == 0 {
		r.Mode = counters.PeekMode
		for i := range r.Subjects {
			r.Subjects[i].Mode = counters.PeekMode
		}
	}
}

func (r *Request) validateReserve(s *Decoder) {
	r.validateCheck(s)
	if r.Mode != counters.CheckMode || slices.ContainsFunc(r.Subjects, func(one limiter.Subject) bool { return one.Mode != counters.CheckMode }) {
		s.failValue(api.BadValue, "in a reservation peek must not be true, and mode must be check")
	}
	r.Reserving, r.TTL = true, cmp.Or(r.TTL, limiter.DefaultReservationTime)
}

func (r *Request) validateSettle(s *Decoder) {
	r.needs(s, fieldReservation, "reservation is missing: the id that /v1/reserve returned")
	r.needs(s, fieldCosts, "costs is missing: what was used, by unit; {} cancels all")
}

func (r *Request) validateAdjust(s *Decoder) {
	r.needs(s, ^fields(0), "the object is empty: give rule, key and cost")
	r.validateCosts(s)
	if len(r.Costs) == 0 || slices.ContainsFunc(r.Costs, func(c limiter.UnitCost) bool { return c.Cost == 0 }) {
		s.failValue(api.BadValue, "cost, and each of costs, must be a whole number other than 0, from -%d to %d", int64(algorithms.MaxAmount), int64(algorithms.MaxAmount))
	}
	r.validateTarget(s)
	if r.given&fieldNamespace != 0 {
		r.needs(s, fieldLimits, "limits is missing: give the limits to adjust")
	}
}

// validateTarget validates the fields that name one subject.
func (r *Request) validateTarget(s *Decoder) {
	switch has := func(f fields) bool { return r.given&f != 0 }; {
	case !has(fieldRule | fieldNamespace | fieldLimits):
		s.failValue(api.MissingKey, "rule is missing: give rule and key, or namespace, key and limits")
	case has(fieldNamespace|fieldLimits) && has(fieldRule):
		s.failValue(api.BadValue, "namespace and limits exclude rule")
	case has(fieldNamespace | fieldLimits):
		r.needs(s, fieldKey, "key is missing")
		r.takeSubject()
	}
}

func (r *Request) validateFeedback(s *Decoder) {
	r.needs(s, fieldRule, "rule is missing")
	r.needs(s, fieldVerdict, "verdict is missing")
	if r.verdict != FalsePositive {
		s.failValue(api.BadValue, "verdict must be %s", FalsePositive)
	}
}

func (r *Request) validateLoad(s *Decoder) {
	r.needs(s, fieldSource, "source is missing")
	r.needs(s, fieldLoad, "load is missing")
	r.TTL = cmp.Or(r.TTL, loads.DefaultTTL)
}

// needs records an error if none of the fields in any was given.
func (r *Request) needs(s *Decoder, any fields, otherwise string) {
	if r.given&any == 0 {
		s.failValue(api.MissingKey, "%s", otherwise)
	}
}

// readKey reads a string or an array of strings.
func (r *Request) readKey(s *Decoder) {
	switch s.next() {
	case '"':
		r.Key = append(r.Key, s.quoted("", "each value of key", 0, MaxValue))
	case '[':
		s.open()
		for n := 0; s.more(n, ']'); n++ {
			if n >= rules.MaxAttributes {
				s.failValue(api.BadValue, "key must not have more than %d values", rules.MaxAttributes)
				s.skip()
				continue
			}
			r.Key = append(r.Key, s.quoted("", "each value of key", 0, MaxValue))
		}
	default:
		s.skip()
		s.failValue(api.BadValue, "key must be a string or an array of strings")
	}
}

func (r *Request) readAttributes(s *Decoder) {
	if s.next() != '{' {
		s.skip()
		s.failValue(api.BadValue, "attributes must be an object of strings")
		return
	}
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		name := s.name()
		if s.syntax != nil {
			return
		}
		if len(name) > MaxValue {
			s.failValue(api.BadValue, "attributes: a name must not have more than %d bytes", MaxValue)
		}
		for i := range r.Attributes {
			if r.Attributes[i].Name == name {
				s.failSyntax("attributes." + api.Excerpt(name) + " is given twice")
				return
			}
		}
		if n >= rules.MaxAttributes {
			s.failValue(api.BadValue, "attributes: at most %d are allowed", rules.MaxAttributes)
			s.skip()
			continue
		}
		r.Attributes = append(r.Attributes, rules.Attribute{Name: name, Value: s.quoted("attributes", name, 0, MaxValue)})
	}
}

// readCosts reads the value of costs. Each must be at least least.
func (r *Request) readCosts(s *Decoder, least int64) {
	if s.next() != '{' {
		s.skip()
		s.failValue(api.BadValue, "costs must be an object of amounts by unit")
		return
	}
	s.open()
	for n := 0; s.more(n, '}'); n++ {
		unit := s.name()
		if s.syntax != nil {
			return
		}
		if len(unit) > MaxValue {
			s.failValue(api.BadValue, "costs: a unit must not have more than %d bytes", MaxValue)
		}
		for i := range r.Costs {
			if r.Costs[i].Unit == unit {
				s.failSyntax("costs." + api.Excerpt(unit) + " is given twice")
				return
			}
		}
		if n >= limiter.MaxCosts {
			s.failValue(api.BadValue, "costs must not name more than %d units", limiter.MaxCosts)
			s.skip()
			continue
		}
		if s.next(); s.syntax == nil {
			r.Costs = append(r.Costs, limiter.UnitCost{Unit: unit, Cost: s.amount("costs", unit, least)})
		}
	}
}

// ParseKey parses a key given as a JSON array of strings, as strictly as the key of a check.
func ParseKey(text string) ([]string, *api.Error) {
	var s Decoder
	var c Request
	s.reset([]byte(text))
	if s.next() != '[' {
		return nil, api.Errorf(api.BadValue, `key must be a JSON array of strings, such as ["acme","/chat"]`)
	}
	c.readKey(&s)
	s.end()
	switch {
	case s.syntax != nil:
		return nil, api.Errorf(api.BadValue, "key must be a JSON array of strings: %s", s.syntax.Detail)
	case s.meaning != nil:
		return nil, s.meaning
	}
	return c.Key, nil
}
