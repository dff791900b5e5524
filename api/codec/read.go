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

// acquireFields are those of a check that takes its cost, and of what it holds.
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
	fieldPath     func(field string) string // returns a field's path for messages; nil if r is the whole body
}

// path returns the path of a field for messages.
func (r *Request) path(field string) string {
	if r.fieldPath == nil {
		return field
	}
	return r.fieldPath(field)
}

// Reset prepares r for the next request.
func (r *Request) Reset() {
	// The strings would keep whole bodies alive.
	clear(r.Key)
	clear(r.Attributes)
	clear(r.Costs)
	clear(r.onExpiry.Costs)
	*r = Request{Query: limiter.Query{
		Key: r.Key[:0], Attributes: r.Attributes[:0], Costs: r.Costs[:0], Subjects: resetSubjects(r.Subjects),
	}, onExpiry: limiter.OnExpiry{Costs: r.onExpiry.Costs[:0]}}
}

// read parses a body of form f, starting at its opening brace.
func (r *Request) read(dec *Decoder, f *Form) {
	dec.enter()
	for n := 0; dec.hasMore(n, '}'); n++ {
		name := dec.readName()
		if dec.syntaxErr != nil {
			return
		}
		r.readField(dec, f, name)
	}
	// After a mistake, this would complain about what was not read.
	if dec.err() == nil {
		f.validate(r, dec)
		r.ByKey = r.given&fieldAttributes == 0
	}
}

// readField reads the value of one field.
func (r *Request) readField(dec *Decoder, f *Form, name string) {
	field := fieldOf(name)
	switch {
	case field&f.fields == 0:
		dec.rejectUnknown(name, f.names)
		return
	case r.given&field != 0:
		dec.failSyntax(name + " is given twice, the second time")
		return
	}
	r.given |= field

	switch field {
	case fieldRule:
		r.Rule = dec.readBounded("", name, 1, MaxValue)
	case fieldKey:
		r.readKey(dec)
	case fieldAttributes:
		r.readAttributes(dec)
	case fieldCost:
		r.Cost = dec.readAmount("", name, f.minCost)
	case fieldCosts:
		r.Costs = readCosts(dec, r.Costs, "costs", f.minCost)
	case fieldPeek:
		if dec.readBool(name) {
			r.Mode = counters.PeekMode
		}
	case fieldWait:
		r.Wait = dec.readBool(name)
	case fieldDetail:
		r.Detail = dec.readBool(name)
	case fieldTTL:
		ms, ok := dec.readInteger(0)
		if least, most := f.minTTL.Milliseconds(), f.maxTTL.Milliseconds(); !ok || ms < least || ms > most {
			dec.failValue(api.BadValue, "ttl_ms must be a whole number from %d to %d", least, most)
			return
		}
		r.TTL = time.Duration(ms) * time.Millisecond
	case fieldRequestID:
		r.RequestID = dec.readBounded("", name, 1, limiter.MaxRequestID)
	case fieldReservation:
		r.Reservation = dec.readBounded("", name, 0, MaxBody)
	case fieldVerdict:
		r.verdict = dec.readBounded("", name, 1, MaxValue)
	case fieldSource:
		r.Source = dec.readBounded("", name, 0, MaxLoadBody) // loads has bounds of its own
	case fieldLoad:
		r.Load = dec.readDecimal(name)
	case fieldNamespace:
		r.namespace = dec.readBounded("", r.path(name), 1, MaxValue)
	case fieldLimits:
		r.readLimits(dec)
	case fieldConsistency:
		r.exact = dec.readExact(r.path(name))
	case fieldShadow:
		r.shadow = dec.readBool(r.path(name))
	case fieldMode:
		r.Mode = r.readMode(dec, r.path(name))
	case fieldSubjects:
		r.readSubjects(dec)
	case fieldOnExpiry:
		r.readOnExpiry(dec)
	case fieldN:
		n, ok := dec.readInteger(0)
		if !ok || n < 1 || n > limiter.MaxSlots {
			dec.failValue(api.BadValue, "n must be a whole number from 1 to %d", int64(limiter.MaxSlots))
			return
		}
		r.Slots = n
	case fieldWho:
		r.Who = dec.readBounded("", name, 1, limiter.MaxWho)
	case fieldSlot:
		r.Slot.ID = dec.readBounded("", name, 1, MaxBody)
	case fieldLimitName:
		r.LimitName = dec.readBounded("", name, 1, MaxValue)
	case fieldBill:
		r.Bill = dec.readBool(name)
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

// RequireKey returns an error if r names a rule without giving a key or
// attributes, unless that rule has no key attributes.
func (r *Request) RequireKey(set *rules.Set) *api.Error {
	if !r.ByKey || r.given&(fieldKey|fieldSubjects) != 0 {
		return nil
	}
	if rule := set.Rule(r.Rule); rule != nil && len(rule.Key) == 0 {
		return nil
	}
	return api.Errorf(api.MissingKey, "key is missing: rule %q needs a key, or attributes", api.Excerpt(r.Rule))
}

func (r *Request) validatePlainCheck(dec *Decoder) {
	r.validateCheck(dec)
	if r.RequestID != "" && r.Mode != counters.CountMode &&
		!slices.ContainsFunc(r.Subjects, func(one limiter.Subject) bool { return one.Mode == counters.CountMode }) {
		dec.failValue(api.BadValue, "request_id is for mode count only: the answers to other checks are not kept")
	}
}

func (r *Request) validateCheck(dec *Decoder) {
	if r.given&(fieldPeek|fieldMode) == fieldPeek|fieldMode {
		dec.failValue(api.BadValue, "peek and mode exclude each other")
	}

	if r.given&(fieldNamespace|fieldLimits|fieldConsistency|fieldShadow|fieldSubjects) != 0 {
		r.validateInline(dec)
		return
	}

	switch has := func(f fields) bool { return r.given&f != 0 }; {
	case r.given == 0:
		dec.failValue(api.MissingKey, "the object is empty: give rule and key, attributes, or key and limits")
	case has(fieldKey) && has(fieldAttributes):
		dec.failValue(api.BadValue, "key and attributes exclude each other")
	case has(fieldKey) && !has(fieldRule):
		dec.failValue(api.MissingKey, "rule is missing: a key belongs to one rule")
	case !has(fieldRule) && !has(fieldAttributes):
		dec.failValue(api.MissingKey, "give rule and key, or attributes")
	}

	r.validateCosts(dec)
}

// validateInline validates a check with inline limits.
func (r *Request) validateInline(dec *Decoder) {
	switch has := func(f fields) bool { return r.given&f != 0 }; {
	case has(fieldRule | fieldAttributes):
		dec.failValue(api.BadValue, "limits and subjects exclude rule and attributes")
	case !has(fieldSubjects):
		r.validateSubject(dec)
	case has(subjectFields | fieldPeek):
		dec.failValue(api.BadValue, "subjects excludes %s and peek: each subject has its own", subjectNames)
	}
}

// validateCosts appends cost to the costs.
func (r *Request) validateCosts(dec *Decoder) {
	if r.given&fieldCost != 0 {
		for i := range r.Costs {
			if r.Costs[i].Unit == rules.Requests {
				dec.failValue(api.BadValue, "cost and costs.requests exclude each other")
			}
		}
		r.Costs = append(r.Costs, limiter.UnitCost{Unit: rules.Requests, Cost: r.Cost})
	}
}

// validateTry validates a try, which is a peek unless the body sets peek or mode.
func (r *Request) validateTry(dec *Decoder) {
	r.validateCheck(dec)
	if r.Wait {
		dec.failValue(api.BadValue, "wait must be false: the answer to a try is not held")
	}
	if r.AtMost {
		dec.failValue(api.BadValue, "mode must be check, peek or count: a try takes nothing")
	}

	if r.given&(fieldPeek|fieldMode) == 0 {
		r.Mode = counters.PeekMode
		for i := range r.Subjects {
			r.Subjects[i].Mode = counters.PeekMode
		}
	}
}

func (r *Request) validateReserve(dec *Decoder) {
	r.validateCheck(dec)
	if r.AtMost || r.Mode != counters.CheckMode ||
		slices.ContainsFunc(r.Subjects, func(one limiter.Subject) bool { return one.Mode != counters.CheckMode }) {
		dec.failValue(api.BadValue, "in a reservation peek must not be true, and mode must be check")
	}
	r.Reserving, r.TTL = true, cmp.Or(r.TTL, limiter.DefaultReservationTime)
}

func (r *Request) validateAcquire(dec *Decoder) {
	r.validateCheck(dec)
	if r.AtMost ||
		slices.ContainsFunc(r.Subjects, func(one limiter.Subject) bool { return one.Mode != counters.CheckMode }) {
		dec.failValue(api.BadValue, "subjects: mode must be check, because slots are either held or not")
	}
	r.SlotTTL = r.TTL
}

func (r *Request) validateSlot(dec *Decoder) {
	r.requireAny(dec, fieldSlot, "slot is missing: the id that /v1/acquire returned")
}

func (r *Request) validateSettle(dec *Decoder) {
	r.requireAny(dec, fieldReservation, "reservation is missing: the id that /v1/reserve returned")
	r.requireAny(dec, fieldCosts, "costs is missing: what was used, by unit; {} cancels all")
}

func (r *Request) validateAdjust(dec *Decoder) {
	r.requireAny(dec, ^fields(0), "the object is empty: give rule, key and cost")
	r.validateCosts(dec)
	if len(r.Costs) == 0 || slices.ContainsFunc(r.Costs, func(c limiter.UnitCost) bool { return c.Cost == 0 }) {
		dec.failValue(api.BadValue,
			"cost, and each of costs, must be a whole number other than 0, from -%d to %d",
			int64(algorithms.MaxAmount), int64(algorithms.MaxAmount))
	}
	r.validateTarget(dec)
	if r.given&fieldNamespace != 0 {
		r.requireAny(dec, fieldLimits, "limits is missing: give the limits to adjust")
	}
}

func (r *Request) validateReset(dec *Decoder) {
	r.validateTarget(dec)
	if r.given&fieldNamespace != 0 && r.LimitName != "" {
		r.requireAny(dec, fieldLimits, "limits is missing: limit_name is one of theirs")
	}
	switch r.HolderID = r.Slot.ID; {
	case r.HolderID == "":
	case r.LimitName != "":
		dec.failValue(api.BadValue, "slot and limit_name exclude each other")
	case r.given&fieldNamespace != 0:
		r.requireAny(dec, fieldLimits, "limits is missing: the slot is of one of theirs")
	}
}

// validateTarget validates the fields that name one subject.
func (r *Request) validateTarget(dec *Decoder) {
	switch has := func(f fields) bool { return r.given&f != 0 }; {
	case !has(fieldRule | fieldNamespace | fieldLimits):
		dec.failValue(api.MissingKey,
			"rule is missing: give rule and key, or key and limits; for all counters of a key, "+
				"namespace and key (calls without one are in inline)")
	case has(fieldNamespace|fieldLimits) && has(fieldRule):
		dec.failValue(api.BadValue, "namespace and limits exclude rule")
	case has(fieldNamespace | fieldLimits):
		r.requireAny(dec, fieldKey, "key is missing")
		r.moveToSubject()
	}
}

func (r *Request) validateFeedback(dec *Decoder) {
	r.requireAny(dec, fieldRule, "rule is missing")
	r.requireAny(dec, fieldVerdict, "verdict is missing")
	if r.verdict != FalsePositive {
		dec.failValue(api.BadValue, "verdict must be %s", FalsePositive)
	}
}

func (r *Request) validateLoad(dec *Decoder) {
	r.requireAny(dec, fieldSource, "source is missing")
	r.requireAny(dec, fieldLoad, "load is missing")
	r.TTL = cmp.Or(r.TTL, loads.DefaultTTL)
}

// requireAny records an error if none of the fields in any was given.
func (r *Request) requireAny(dec *Decoder, any fields, otherwise string) {
	if r.given&any == 0 {
		dec.failValue(api.MissingKey, "%s", otherwise)
	}
}

// readKey reads a value or an array of values.
func (r *Request) readKey(dec *Decoder) {
	switch dec.skipSpace() {
	case '[':
		dec.enter()
		for n := 0; dec.hasMore(n, ']'); n++ {
			if n >= rules.MaxAttributes {
				dec.failValue(api.BadValue, "key must not have more than %d values", rules.MaxAttributes)
				dec.skip()
				continue
			}
			r.readKeyValue(dec, "each value of key")
		}
	case '{', 't', 'f':
		dec.skip()
		dec.failValue(api.BadValue, "%s must be a string, a whole number, or an array of these", r.path("key"))
	default:
		r.readKeyValue(dec, r.path("key"))
	}
}

// readKeyValue reads one value of a key.
func (r *Request) readKeyValue(dec *Decoder, name string) {
	value, present := dec.readValue("", name)
	if !present {
		dec.failValue(api.MissingKey, "%s is missing: it is null", r.path("key"))
	}
	r.Key = append(r.Key, value)
}

func (r *Request) readAttributes(dec *Decoder) {
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

		for i := range r.Attributes {
			if r.Attributes[i].Name == name {
				dec.failSyntax("attributes." + api.Excerpt(name) + " is given twice")
				return
			}
		}

		if n >= rules.MaxAttributes {
			dec.failValue(api.BadValue, "attributes: at most %d are allowed", rules.MaxAttributes)
			dec.skip()
			continue
		}

		value, _ := dec.readValue("attributes", name) // null is "", and so absent
		r.Attributes = append(r.Attributes, rules.Attribute{Name: name, Value: value})
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

		if dec.skipSpace(); dec.syntaxErr == nil {
			list = append(list, limiter.UnitCost{Unit: unit, Cost: dec.readAmount(path, unit, minimum)})
		}
	}

	return list
}

// readOnExpiry reads what becomes of a reservation that is not settled in time:
// charge, refund, or an object with costs.
func (r *Request) readOnExpiry(dec *Decoder) {
	const must = `on_expiry must be "charge", "refund" or {"costs": …}`
	switch dec.skipSpace() {
	case '"':
		switch dec.readBounded("", "on_expiry", 0, MaxValue) {
		case "charge":
		case "refund":
			r.OnExpiry = &r.onExpiry
		default:
			dec.failValue(api.BadValue, must)
		}
	case '{':
		r.readExpiryCosts(dec)
	default:
		dec.skip()
		dec.failValue(api.BadValue, must)
	}
}

// readExpiryCosts reads the object that on_expiry may be.
func (r *Request) readExpiryCosts(dec *Decoder) {
	r.OnExpiry = &r.onExpiry
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
			r.onExpiry.Costs = readCosts(dec, r.onExpiry.Costs, "on_expiry.costs", 0)
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
