package codec

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/limiter/loads"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// Bounds of a check.
const (
	MaxBody     = 64 << 10               // bytes of a body, except a batch's
	MaxLoadBody = 4 << 10                // bytes of a report of a load
	MaxValue    = document.MaxValueBytes // bytes of a key's or an attribute's value, of a name or a unit
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
	fieldOnExpiry
	fieldLimitName
	fieldBill
	fieldN
	fieldWho
	fieldSlot
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
	case "on_expiry":
		return fieldOnExpiry
	case "limit_name":
		return fieldLimitName
	case "bill":
		return fieldBill
	case "n":
		return fieldN
	case "who":
		return fieldWho
	case "slot":
		return fieldSlot
	}

	return 0
}

// Form describes which fields a body may contain, and their bounds.
type Form struct {
	fields  fields
	names   string // the names of the fields, for messages
	minCost int64
	minTTL  time.Duration // the bounds of ttl_ms
	maxTTL  time.Duration
	// validate checks the fields against each other and sets the fields of the
	// Request that derive from them.
	validate func(*Request, *Decoder)
}

const checkFields = fieldRule | fieldKey | fieldAttributes | fieldCost | fieldCosts | fieldPeek | fieldWait | fieldDetail |
	fieldNamespace | fieldLimits | fieldConsistency | fieldShadow | fieldMode | fieldSubjects

// acquireFields are the fields of a check that takes its cost, and of the slots
// that it acquires.
const acquireFields = checkFields&^(fieldPeek|fieldWait|fieldMode) | fieldN | fieldWho | fieldTTL | fieldRequestID

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
		fields: checkFields | fieldTTL | fieldOnExpiry | fieldRequestID, minTTL: time.Millisecond,
		maxTTL: limiter.MaxReservationTime,
		names: "rule, key, attributes, cost, costs, wait, detail, ttl_ms, on_expiry, request_id, " +
			inlineNames, validate: (*Request).validateReserve,
	}
	AcquireForm = &Form{
		fields: acquireFields, minTTL: algorithms.MinWindow, maxTTL: limiter.MaxSlotTTL,
		names: "rule, key, attributes, n, cost, costs, ttl_ms, who, detail, request_id, " +
			inlineNames, validate: (*Request).validateAcquire,
	}
	RenewForm = &Form{
		fields: fieldSlot | fieldTTL, minTTL: algorithms.MinWindow, maxTTL: limiter.MaxSlotTTL, names: "slot, ttl_ms",
		validate: (*Request).validateSlot,
	}
	ReleaseForm = &Form{fields: fieldSlot, names: "slot", validate: (*Request).validateSlot}
	SettleForm  = &Form{
		fields: fieldReservation | fieldCosts, names: "reservation, costs", validate: (*Request).validateSettle,
	}
	AdjustForm = &Form{
		fields:  targetFields | fieldCost | fieldCosts | fieldLimitName | fieldBill | fieldRequestID,
		minCost: -algorithms.MaxAmount,
		names:   targetNames + ", cost, costs, limit_name, bill, request_id", validate: (*Request).validateAdjust,
	}
	UsageForm = &Form{fields: targetFields, names: targetNames, validate: (*Request).validateTarget}
	ResetForm = &Form{
		fields:   targetFields | fieldLimitName | fieldSlot | fieldRequestID,
		names:    targetNames + ", limit_name, slot, request_id",
		validate: (*Request).validateReset,
	}
	TryForm = &Form{fields: checkFields, names: tryNames, validate: (*Request).validateTry}

	FeedbackForm = &Form{
		fields: fieldRule | fieldKey | fieldVerdict, names: "rule, key, verdict", validate: (*Request).validateFeedback,
	}
	LoadForm = &Form{
		fields: fieldSource | fieldLoad | fieldTTL, names: "source, load, ttl_ms",
		minTTL: loads.MinTTL, maxTTL: loads.MaxTTL,
		validate: (*Request).validateLoad,
	}
)

// Request is a decoded body: a check or one of the other forms. Its strings are
// valid as long as the Decoder's. It is reused, including the slices of its
// Query.
type Request struct {
	limiter.Query
	given  fields
	Wait   bool
	Detail bool

	Reserving   bool             // the request is a reservation
	onExpiry    limiter.OnExpiry // what Query.OnExpiry points to, if anything
	TTL         time.Duration    // of a reservation or a load
	Reservation string           // the id of the reservation to settle, or of the one that was just made
	Slot        limiter.Slot     // that was just acquired, or is to be renewed or released
	verdict     string
	Source      string
	Load        float64
	Cost        int64

	// Fields of an inline subject, until moveToSubject moves them.
	namespace     string
	exact, shadow bool
	fieldPath     func(field string) string // returns a field's path for messages; nil if q is the whole body
}

// path returns the path of a field for messages.
func (q *Request) path(field string) string {
	if q.fieldPath == nil {
		return field
	}
	return q.fieldPath(field)
}

// Reset prepares q for the next request.
func (q *Request) Reset() {
	// The strings would keep whole bodies alive.
	clear(q.Key)
	clear(q.Attributes)
	clear(q.Costs)
	clear(q.onExpiry.Costs)
	key := q.Key[:0]
	attributes := q.Attributes[:0]
	costs := q.Costs[:0]
	onExpiry := q.onExpiry.Costs[:0]
	subjects := resetSubjects(q.Subjects)

	*q = Request{}
	q.Key = key
	q.Attributes = attributes
	q.Costs = costs
	q.onExpiry.Costs = onExpiry
	q.Subjects = subjects
}

// read parses a body of form f, starting at its opening brace.
func (q *Request) read(dec *Decoder, f *Form) {
	dec.enter()
	for n := 0; dec.hasMore(n, '}'); n++ {
		name := dec.readName()
		if dec.syntaxErr != nil {
			return
		}
		q.readField(dec, f, name)
	}
	// After a mistake, validate would complain about fields that were not read.
	if dec.err() == nil {
		f.validate(q, dec)
		q.ByKey = q.given&fieldAttributes == 0
	}
}

// readField reads the value of one field.
func (q *Request) readField(dec *Decoder, f *Form, name string) {
	field := fieldOf(name)
	switch {
	case field&f.fields == 0:
		dec.rejectUnknown(name, f.names)
		return
	case q.given&field != 0:
		dec.failSyntax(name + " is given twice, the second time")
		return
	}
	q.given |= field

	switch field {
	case fieldRule:
		q.Rule = dec.readBounded("", name, 1, MaxValue)
	case fieldKey:
		q.readKey(dec)
	case fieldAttributes:
		q.readAttributes(dec)
	case fieldCost:
		q.Cost = dec.readAmount("", name, f.minCost)
	case fieldCosts:
		q.Costs = readCosts(dec, q.Costs, "costs", f.minCost)
	case fieldPeek:
		if dec.readBool(name) {
			q.Mode = counters.PeekMode
		}
	case fieldWait:
		q.Wait = dec.readBool(name)
	case fieldDetail:
		q.Detail = dec.readBool(name)
	case fieldTTL:
		ms, ok := dec.readInteger(0)
		least, most := f.minTTL.Milliseconds(), f.maxTTL.Milliseconds()
		if !ok || ms < least || ms > most {
			dec.failValue(api.BadValue, "ttl_ms must be a whole number from %d to %d", least, most)
			return
		}
		q.TTL = time.Duration(ms) * time.Millisecond
	case fieldRequestID:
		q.RequestID = dec.readBounded("", name, 1, limiter.MaxRequestID)
	case fieldReservation:
		q.Reservation = dec.readBounded("", name, 0, MaxBody)
	case fieldVerdict:
		q.verdict = dec.readBounded("", name, 1, MaxValue)
	case fieldSource:
		q.Source = dec.readBounded("", name, 0, MaxLoadBody) // loads has bounds of its own
	case fieldLoad:
		q.Load = dec.readDecimal(name)
	case fieldNamespace:
		q.namespace = dec.readBounded("", q.path(name), 1, MaxValue)
	case fieldLimits:
		q.readLimits(dec)
	case fieldConsistency:
		q.exact = dec.readExact(q.path(name))
	case fieldShadow:
		q.shadow = dec.readBool(q.path(name))
	case fieldMode:
		q.Mode = q.readMode(dec, q.path(name))
	case fieldSubjects:
		q.readSubjects(dec)
	case fieldOnExpiry:
		q.readOnExpiry(dec)
	case fieldN:
		n, ok := dec.readInteger(0)
		if !ok || n < 1 || n > limiter.MaxSlots {
			dec.failValue(api.BadValue, "n must be a whole number from 1 to %d", int64(limiter.MaxSlots))
			return
		}
		q.Slots = n
	case fieldWho:
		q.Who = dec.readBounded("", name, 1, limiter.MaxWho)
	case fieldSlot:
		q.Slot.ID = dec.readBounded("", name, 1, MaxBody)
	case fieldLimitName:
		q.LimitName = dec.readBounded("", name, 1, MaxValue)
	case fieldBill:
		q.Bill = dec.readBool(name)
	}
}

// Subject returns copies of the rule and the key, which the caller may retain.
func (q *Request) Subject() (rule string, key []string) {
	key = make([]string, len(q.Key))
	for i, v := range q.Key {
		key[i] = strings.Clone(v)
	}
	return strings.Clone(q.Rule), key
}

// AppendGivenCosts appends the fields cost and costs as the caller gave them, if any.
func (q *Request) AppendGivenCosts(b []byte) []byte {
	if q.given&fieldCost != 0 {
		b = AppendInt(b, `,"cost":`, q.Cost)
	}

	if q.given&fieldCosts != 0 {
		costs := q.Costs
		if len(q.Subjects) > 0 {
			costs = q.Subjects[0].Costs
		}
		if q.given&fieldCost != 0 {
			costs = costs[:len(costs)-1] // validateCosts has appended cost
		}
		b = AppendCosts(append(b, `,"costs":`...), costs)
	}

	return b
}

// RequireKey returns an error if q names a rule without giving a key or
// attributes, unless that rule has no key attributes.
func (q *Request) RequireKey(set *rules.Set) *api.Error {
	if !q.ByKey || q.given&(fieldKey|fieldSubjects) != 0 {
		return nil
	}
	if rule := set.Rule(q.Rule); rule != nil && len(rule.Key) == 0 {
		return nil
	}
	// rlnode's commands give a hint if a detail begins with these words.
	return api.Errorf(api.MissingKey, "key is missing: rule %q needs a key, or attributes", api.Excerpt(q.Rule))
}

func (q *Request) validatePlainCheck(dec *Decoder) {
	q.validateCheck(dec)
	if q.RequestID != "" && q.Mode != counters.CountMode &&
		!slices.ContainsFunc(q.Subjects, func(s limiter.Subject) bool { return s.Mode == counters.CountMode }) {
		dec.failValue(api.BadValue, "request_id is for mode count only: the answers to other checks are not kept")
	}
}

func (q *Request) validateCheck(dec *Decoder) {
	if q.given&(fieldPeek|fieldMode) == fieldPeek|fieldMode {
		dec.failValue(api.BadValue, "peek and mode exclude each other")
	}

	if q.given&(fieldNamespace|fieldLimits|fieldConsistency|fieldShadow|fieldSubjects) != 0 {
		q.validateInline(dec)
		return
	}

	switch has := func(f fields) bool { return q.given&f != 0 }; {
	case q.given == 0:
		dec.failValue(api.MissingKey, "the object is empty: give rule and key, attributes, or key and limits")
	case has(fieldKey) && has(fieldAttributes):
		dec.failValue(api.BadValue, "key and attributes exclude each other")
	case has(fieldKey) && !has(fieldRule):
		dec.failValue(api.MissingKey, "rule is missing: a key belongs to one rule")
	case !has(fieldRule) && !has(fieldAttributes):
		dec.failValue(api.MissingKey, "give rule and key, or attributes")
	}

	q.validateCosts(dec)
}

// validateInline validates a check with inline limits.
func (q *Request) validateInline(dec *Decoder) {
	switch has := func(f fields) bool { return q.given&f != 0 }; {
	case has(fieldRule | fieldAttributes):
		dec.failValue(api.BadValue, "limits and subjects exclude rule and attributes")
	case !has(fieldSubjects):
		q.validateSubject(dec)
	case has(subjectFields | fieldPeek):
		dec.failValue(api.BadValue, "subjects excludes %s and peek: each subject has its own", subjectNames)
	}
}

// validateCosts appends cost to the costs.
func (q *Request) validateCosts(dec *Decoder) {
	if q.given&fieldCost != 0 {
		for i := range q.Costs {
			if q.Costs[i].Unit == document.Requests {
				dec.failValue(api.BadValue, "cost and costs.requests exclude each other")
			}
		}
		q.Costs = append(q.Costs, limiter.UnitCost{Unit: document.Requests, Cost: q.Cost})
	}
}

// validateTry validates a try, which is a peek unless the body sets peek or mode.
func (q *Request) validateTry(dec *Decoder) {
	q.validateCheck(dec)
	if q.Wait {
		dec.failValue(api.BadValue, "wait must be false: the answer to a try is not held")
	}
	if q.AtMost {
		dec.failValue(api.BadValue, "mode must be check, peek or count: a try takes nothing")
	}

	if q.given&(fieldPeek|fieldMode) == 0 {
		q.Mode = counters.PeekMode
		for i := range q.Subjects {
			q.Subjects[i].Mode = counters.PeekMode
		}
	}
}

func (q *Request) validateReserve(dec *Decoder) {
	q.validateCheck(dec)
	if q.AtMost || q.Mode != counters.CheckMode ||
		slices.ContainsFunc(q.Subjects, func(s limiter.Subject) bool { return s.Mode != counters.CheckMode }) {
		dec.failValue(api.BadValue, "in a reservation peek must not be true, and mode must be check")
	}
	q.Reserving = true
	q.TTL = cmp.Or(q.TTL, limiter.DefaultReservationTime)
}

func (q *Request) validateAcquire(dec *Decoder) {
	q.validateCheck(dec)
	if q.AtMost ||
		slices.ContainsFunc(q.Subjects, func(s limiter.Subject) bool { return s.Mode != counters.CheckMode }) {
		dec.failValue(api.BadValue, "subjects: mode must be check, because slots are either held or not")
	}
	q.SlotTTL = q.TTL
}

func (q *Request) validateSlot(dec *Decoder) {
	q.requireAny(dec, fieldSlot, "slot is missing: the id that /v1/acquire returned")
}

func (q *Request) validateSettle(dec *Decoder) {
	q.requireAny(dec, fieldReservation, "reservation is missing: the id that /v1/reserve returned")
	q.requireAny(dec, fieldCosts, "costs is missing: what was used, by unit; {} cancels all")
}

func (q *Request) validateAdjust(dec *Decoder) {
	q.requireAny(dec, ^fields(0), "the object is empty: give rule, key and cost")
	q.validateCosts(dec)
	if len(q.Costs) == 0 || slices.ContainsFunc(q.Costs, func(c limiter.UnitCost) bool { return c.Cost == 0 }) {
		dec.failValue(api.BadValue,
			"cost, and each of costs, must be a whole number other than 0, from -%d to %d",
			int64(algorithms.MaxAmount), int64(algorithms.MaxAmount))
	}
	q.validateTarget(dec)
	if q.given&fieldNamespace != 0 {
		q.requireAny(dec, fieldLimits, "limits is missing: give the limits to adjust")
	}
}

func (q *Request) validateReset(dec *Decoder) {
	q.validateTarget(dec)
	if q.given&fieldNamespace != 0 && q.LimitName != "" {
		q.requireAny(dec, fieldLimits, "limits is missing: limit_name is one of theirs")
	}

	q.HolderID = q.Slot.ID
	switch {
	case q.HolderID == "":
	case q.LimitName != "":
		dec.failValue(api.BadValue, "slot and limit_name exclude each other")
	case q.given&fieldNamespace != 0:
		q.requireAny(dec, fieldLimits, "limits is missing: the slot is of one of theirs")
	}
}

// validateTarget validates the fields that name one subject.
func (q *Request) validateTarget(dec *Decoder) {
	switch has := func(f fields) bool { return q.given&f != 0 }; {
	case !has(fieldRule | fieldNamespace | fieldLimits):
		dec.failValue(api.MissingKey,
			"rule is missing: give rule and key, or key and limits; for all counters of a key, "+
				"namespace and key (calls without one are in inline)")
	case has(fieldNamespace|fieldLimits) && has(fieldRule):
		dec.failValue(api.BadValue, "namespace and limits exclude rule")
	case has(fieldNamespace | fieldLimits):
		q.requireAny(dec, fieldKey, "key is missing")
		q.moveToSubject()
	}
}

func (q *Request) validateFeedback(dec *Decoder) {
	q.requireAny(dec, fieldRule, "rule is missing")
	q.requireAny(dec, fieldVerdict, "verdict is missing")
	if q.verdict != FalsePositive {
		dec.failValue(api.BadValue, "verdict must be %s", FalsePositive)
	}
}

func (q *Request) validateLoad(dec *Decoder) {
	q.requireAny(dec, fieldSource, "source is missing")
	q.requireAny(dec, fieldLoad, "load is missing")
	q.TTL = cmp.Or(q.TTL, loads.DefaultTTL)
}

// requireAny records the error otherwise if none of the wanted fields was
// given.
func (q *Request) requireAny(dec *Decoder, wanted fields, otherwise string) {
	if q.given&wanted == 0 {
		dec.failValue(api.MissingKey, "%s", otherwise)
	}
}

// readKey reads a value or an array of values.
func (q *Request) readKey(dec *Decoder) {
	switch dec.skipSpace() {
	case '[':
		dec.enter()
		for n := 0; dec.hasMore(n, ']'); n++ {
			if n >= document.MaxAttributes {
				dec.failValue(api.BadValue, "key must not have more than %d values", document.MaxAttributes)
				dec.skip()
				continue
			}
			q.readKeyValue(dec, "each value of key")
		}
	case '{', 't', 'f':
		dec.skip()
		dec.failValue(api.BadValue, "%s must be a string, a whole number, or an array of these", q.path("key"))
	default:
		q.readKeyValue(dec, q.path("key"))
	}
}

// readKeyValue reads one value of a key.
func (q *Request) readKeyValue(dec *Decoder, name string) {
	value, present := dec.readValue("", name)
	if !present {
		dec.failValue(api.MissingKey, "%s is missing: it is null", q.path("key"))
	}
	q.Key = append(q.Key, value)
}

func (q *Request) readAttributes(dec *Decoder) {
	if dec.skipSpace() != '{' {
		dec.skip()
		dec.failValue(api.BadValue, "attributes must be an object of values by name")
		return
	}

	dec.enter()

	for n := 0; dec.hasMore(n, '}'); n++ {
		name := dec.readName()
		if dec.syntaxErr != nil {
			return
		}

		if len(name) > MaxValue {
			dec.failValue(api.BadValue, "attributes: a name must not have more than %d bytes", MaxValue)
		}

		for i := range q.Attributes {
			if q.Attributes[i].Name == name {
				dec.failSyntax("attributes." + api.Excerpt(name) + " is given twice")
				return
			}
		}

		if n >= document.MaxAttributes {
			dec.failValue(api.BadValue, "attributes: at most %d are allowed", document.MaxAttributes)
			dec.skip()
			continue
		}

		value, _ := dec.readValue("attributes", name) // null is "", and so absent
		q.Attributes = append(q.Attributes, rules.Attribute{Name: name, Value: value})
	}
}

// readCosts appends the costs of an object of amounts by unit to list. Each
// must be at least minimum. path names the object in messages.
func readCosts(dec *Decoder, list []limiter.UnitCost, path string, minimum int64) []limiter.UnitCost {
	if dec.skipSpace() != '{' {
		dec.skip()
		dec.failValue(api.BadValue, "%s must be an object of amounts by unit", path)
		return list
	}

	dec.enter()

	for n := 0; dec.hasMore(n, '}'); n++ {
		unit := dec.readName()
		if dec.syntaxErr != nil {
			return list
		}

		if len(unit) > MaxValue {
			dec.failValue(api.BadValue, "%s: a unit must not have more than %d bytes", path, MaxValue)
		}

		for i := range list {
			if list[i].Unit == unit {
				dec.failSyntax(path + "." + api.Excerpt(unit) + " is given twice")
				return list
			}
		}

		if n >= limiter.MaxCosts {
			dec.failValue(api.BadValue, "%s must not name more than %d units", path, limiter.MaxCosts)
			dec.skip()
			continue
		}

		dec.skipSpace()
		if dec.syntaxErr == nil {
			list = append(list, limiter.UnitCost{Unit: unit, Cost: dec.readAmount(path, unit, minimum)})
		}
	}

	return list
}

// readOnExpiry reads what becomes of a reservation that is not settled in time:
// charge, refund, or an object with costs.
func (q *Request) readOnExpiry(dec *Decoder) {
	const expected = `on_expiry must be "charge", "refund" or {"costs": …}`
	switch dec.skipSpace() {
	case '"':
		switch dec.readBounded("", "on_expiry", 0, MaxValue) {
		case "charge":
		case "refund":
			q.OnExpiry = &q.onExpiry
		default:
			dec.failValue(api.BadValue, expected)
		}
	case '{':
		q.readExpiryCosts(dec)
	default:
		dec.skip()
		dec.failValue(api.BadValue, expected)
	}
}

// readExpiryCosts reads the object that on_expiry may be.
func (q *Request) readExpiryCosts(dec *Decoder) {
	q.OnExpiry = &q.onExpiry
	dec.enter()

	given := false
	for n := 0; dec.hasMore(n, '}'); n++ {
		name := dec.readName()
		switch {
		case dec.syntaxErr != nil:
			return
		case name != "costs":
			dec.rejectUnknown("on_expiry."+name, "on_expiry.costs")
		case given:
			dec.failSyntax("on_expiry.costs is given twice, the second time")
			return
		default:
			given = true
			q.onExpiry.Costs = readCosts(dec, q.onExpiry.Costs, "on_expiry.costs", 0)
		}
	}

	if !given && dec.syntaxErr == nil {
		dec.failValue(api.MissingKey, "on_expiry.costs is missing: what stays charged, by unit; {} gives all back")
	}
}

// ParseKey parses a key given as a JSON array, as strictly as the key of a check.
func ParseKey(text string) ([]string, *api.Error) {
	var dec Decoder
	var q Request
	dec.reset([]byte(text))

	if dec.skipSpace() != '[' {
		return nil, api.Errorf(api.BadValue, `key must be a JSON array of strings, such as ["acme","/chat"]`)
	}

	q.readKey(&dec)
	dec.requireEnd()

	switch {
	case dec.syntaxErr != nil:
		return nil, api.Errorf(api.BadValue, "key must be a JSON array of strings: %s", dec.syntaxErr.Detail)
	case dec.valueErr != nil:
		return nil, dec.valueErr
	}

	return q.Key, nil
}
