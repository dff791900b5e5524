package client

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxValue    = 1024      // bytes of a key or attribute value
	maxAmount   = 1<<53 - 1 // the largest cost
	maxBody     = 64 << 10  // bytes of a check
	maxID       = 64        // bytes of a request id
	maxLimits   = 8         // inline limits of a subject
	maxSubjects = 16        // Subjects of a check
)

// Mode says what happens to the cost of a check.
type Mode string

// The modes. The zero Mode is CheckMode.
const (
	// CheckMode takes the cost if it fits, and otherwise nothing.
	CheckMode Mode = "check"
	// PeekMode takes nothing, as Client.Peek does.
	PeekMode Mode = "peek"
	// CountMode takes the cost whether or not it fits, and refuses nothing. The
	// Decision is the same as for a check, except that Counted is set if a limit is
	// exceeded.
	CountMode Mode = "count"
	// AtMostMode takes as much of the cost as there is: that amount is
	// Decision.Granted. If that is nothing, the check is refused. It is for checks
	// of one subject and one limit.
	AtMostMode Mode = "at_most"
)

// Limit is an inline limit: one that comes with the call. Its fields combine,
// and default, like those of a limit in the rules file. The section inline of
// the rules file can restrict inline limits.
type Limit struct {
	// Limit is the capacity in Unit, 0 to 2⁵³−1. 0 refuses every cost but 0.
	Limit int64
	// Per is the window: a duration of 10 ms to 366 days, such as "10s", "7d" or
	// the text of a time.Duration. For fixed windows it can be a calendar unit:
	// "minute", "hour", "day", "week", "month" or "year".
	Per string
	// Algorithm is "sliding-window", "sliding-window-log", "fixed-window",
	// "token-bucket", "leaky-bucket" or, for how many are held at once,
	// "concurrency". Empty: the default of the rules file, else "sliding-window".
	Algorithm string
	// Burst is the capacity of a bucket, up to 2⁵³−1. 0: Limit.
	Burst int64
	// Unit is what is counted, such as "tokens". Empty: "requests".
	Unit string
	// Name names the limit in answers. Empty: the name of the rule, "inline".
	Name string
	// TZ is the time zone of a calendar unit, such as "Europe/Paris". Empty: the
	// one in the rules file, else UTC.
	TZ string
	// FromFirst makes a fixed window begin with its first hit instead of following
	// the clock. The limit is then always exact.
	FromFirst bool
	// TTL is, with the algorithm concurrency, in place of Per: how long a slot is
	// held unless it is renewed, such as "30s"; 10 ms to 24 hours.
	TTL string
}

// Subject is a subject with inline limits, for one decision about several. See
// Request for the fields.
type Subject struct {
	Namespace string
	Key       []string
	Limits    []Limit
	Exact     bool
	Shadow    bool
	Mode      Mode
	Cost      int64
	Costs     map[string]int64
}

// Request is a check: may this happen now, at this cost?
//
// Set Rule and Key to check one subject of one rule, or Attributes to check
// every rule that matches. With Rule and Attributes, only that rule applies.
// Set Key and Limits, or Subjects, to bring the limits with the call; the
// limits, lists and default of the rules file then don't apply.
//
// Values chosen by untrusted users need no special care. If a value in Key or
// Attributes exceeds 1,024 bytes, only its first and last 512 are sent. Bytes
// that are not UTF-8 are sent as U+FFFD, and a cost over 2⁵³−1 is sent as
// 2⁵³−1. Two subjects may thereby become one and share a limit. A request that
// still exceeds the node's 64 KiB, or has a negative cost, is refused whatever
// OnError says.
type Request struct {
	// Rule is a rule's name.
	Rule string
	// Key has a value for each key attribute of the rule, in the rule's order. It
	// is empty for a rule without key attributes. A value that is empty is missing:
	// the node answers with the Code "missing-key". With Limits, the key may have
	// any 1 to 32 values, of which "" is one.
	Key []string
	// Attributes describe the request, such as ip, tenant, api_key, endpoint. At
	// most 32. One whose value is empty is absent, so that rules with it in their
	// key don't apply.
	Attributes map[string]string

	// Limits are the inline limits: 1 to 8, all of which must allow the call.
	// Namespace, Key, and a limit's unit, algorithm and window identify its
	// counter. Calls that give different capacities share the counter, and each is
	// decided by its own.
	Limits []Limit
	// Namespace keeps subjects with equal keys apart, such as those of two
	// services. Empty: "inline". Limits in a namespace that the rules file names
	// have metrics of their own.
	Namespace string
	// Exact, with Limits, has the subject's owner decide each call, as if the
	// algorithm ran in one place. Otherwise nodes lease quota, which is faster.
	Exact bool
	// Shadow, with Limits, counts and reports, but never refuses.
	Shadow bool
	// Subjects are 1 to 16 subjects with inline limits, for one decision: the costs
	// are taken from all of them or, if one of them refuses, from none. Set them
	// instead of Rule, Key, Attributes, Limits, Namespace, Exact, Shadow, Mode,
	// Cost and Costs; each subject has its own.
	Subjects []Subject
	// Mode says what happens to the cost. Reservations need CheckMode.
	Mode Mode

	// Cost is the cost in requests. 0: the rule's cost table, or 1. To cost
	// nothing, set Costs["requests"] to 0.
	Cost int64
	// Costs are the costs per unit, such as tokens; at most 16 units. A unit that
	// is not named costs 0, except requests, which cost 1. Set either Cost or
	// Costs["requests"], not both.
	Costs map[string]int64

	// Wait makes an allowed check return only after Decision.Delay, and Acquire
	// only with a slot. The client itself waits, until the context ends; this may
	// take longer than Options.Timeout. What a check has taken stays taken if the
	// context ends first.
	Wait bool
	// Detail fills in Decision.Limits.
	Detail bool
	// Headers fills in the values that Decision.SetHeaders sets.
	Headers bool

	// Slots is, in Acquire, how many slots are taken of each limit that counts
	// them. 0: the cost in its unit, which is 1 for requests.
	Slots int64
	// Who says, in Acquire, who holds the slots, for operators: at most 32 bytes.
	// Empty: the token's name, or the caller's address.
	Who string

	// OnExpiry says, in Reserve, what becomes of a reservation that nobody settles
	// in time. The zero OnExpiry leaves it charged.
	OnExpiry OnExpiry

	// LimitName restricts AdjustCosts or Reset to the subject's limit with that
	// name, as in LimitDecision.Name; Reset then lifts no block. Empty: all limits.
	// An *Error with the Code "unknown-limit" means that the subject has no such
	// limit.
	LimitName string
	// Bill makes AdjustCosts also correct the bill of a rule with usage: monthly,
	// by what it applies.
	Bill bool

	// RequestID is for Reserve, AdjustCosts, Reset, and checks in CountMode; other
	// checks ignore it. Within a minute, calls for one subject with the same id, of
	// at most 64 bytes, take effect once and get the same answer, whichever client
	// makes them, unless the subject's owner can't be reached. If it is empty, a
	// retried reservation or count may count twice. An *Error with the Code
	// "request-id-reused" means that an earlier call with this id asked for
	// something else.
	RequestID string
}

// OnExpiry says what becomes of a reservation that nobody settles in time.
type OnExpiry struct {
	// Refund gives back what was reserved but Costs, which are by unit and stay
	// charged, each at most what was reserved. If there are Costs, a unit that
	// they don't name stays as reserved.
	Refund bool
	Costs  map[string]int64
}

// append appends e as a field.
func (e *OnExpiry) append(b []byte) ([]byte, error) {
	switch {
	case !e.Refund && len(e.Costs) > 0:
		return nil, fmt.Errorf("%w: OnExpiry has Costs, but Refund is false", ErrRequest)
	case !e.Refund:
		return b, nil
	case len(e.Costs) == 0:
		return append(b, `"on_expiry":"refund",`...), nil
	}
	b, err := appendCosts(append(b, `"on_expiry":{"costs":`...), e.Costs)
	return append(b, `},`...), err
}

// Validate returns an error that wraps ErrRequest if r is so wrong that no node could decide it.
func (r *Request) Validate() error {
	switch {
	case r.Subjects != nil:
		return r.validateSubjects()
	case r.isInline():
		if r.Rule != "" || r.Attributes != nil {
			return fmt.Errorf("%w: Limits, Namespace, Exact and Shadow exclude Rule and Attributes", ErrRequest)
		}
		subject := r.subject()
		return subject.validate(-1)
	case r.Rule == "" && r.Attributes == nil:
		return fmt.Errorf("%w: Rule, Attributes or Limits must be given", ErrRequest)
	case r.Key != nil && r.Attributes != nil:
		return fmt.Errorf("%w: Key and Attributes exclude each other", ErrRequest)
	}

	return validateCost(-1, r.Mode, r.Cost)
}

// isInline reports whether r is about a single subject with inline limits.
func (r *Request) isInline() bool { return r.Limits != nil || r.Namespace != "" || r.Exact || r.Shadow }

// subject returns the subject of an inline r.
func (r *Request) subject() Subject {
	return Subject{Namespace: r.Namespace, Key: r.Key, Limits: r.Limits, Exact: r.Exact,
		Shadow: r.Shadow, Mode: r.Mode, Cost: r.Cost, Costs: r.Costs}
}

func (r *Request) validateSubjects() error {
	switch {
	case r.Rule != "" || r.Attributes != nil || r.isInline() || r.Key != nil || r.Mode != "" ||
		r.Cost != 0 || r.Costs != nil:
		return fmt.Errorf("%w: Subjects exclude Rule, Key, Attributes, Limits, Namespace, Exact, Shadow, Mode, Cost and Costs", ErrRequest)
	case len(r.Subjects) == 0 || len(r.Subjects) > maxSubjects:
		return fmt.Errorf("%w: Subjects has %d subjects; it must have 1 to %d", ErrRequest,
			len(r.Subjects), maxSubjects)
	}
	for i := range r.Subjects {
		if err := r.Subjects[i].validate(i); err != nil {
			return err
		}
	}
	return nil
}

// validate returns an error if s is invalid. at is its index in
// Request.Subjects, or −1 if it is the request's own.
func (s *Subject) validate(at int) error {
	switch {
	case len(s.Limits) < 1 || len(s.Limits) > maxLimits:
		return fmt.Errorf("%w: %sLimits has %d limits; it must have 1 to %d", ErrRequest,
			pathOf(at), len(s.Limits), maxLimits)
	case s.Key == nil:
		return fmt.Errorf("%w: %sKey is missing", ErrRequest, pathOf(at))
	}
	for i := range s.Limits {
		if wrong := s.Limits[i].mistake(); wrong != "" {
			return fmt.Errorf("%w: %sLimits[%d]: %s", ErrRequest, pathOf(at), i, wrong)
		}
	}
	return validateCost(at, s.Mode, s.Cost)
}

// mistake describes what is wrong with l, as far as that does not depend on the
// node; "" if nothing is.
func (l *Limit) mistake() string {
	switch {
	case l.Limit < 0 || l.Limit > maxAmount:
		return fmt.Sprintf("Limit is %d; it must be 0 to %d", l.Limit, int64(maxAmount))
	case l.Burst < 0 || l.Burst > maxAmount:
		return fmt.Sprintf("Burst is %d; it must be 0 to %d", l.Burst, int64(maxAmount))
	case l.isSlots() && (l.TTL == "" || l.Per != ""):
		return "with the algorithm concurrency, it must have TTL, such as 30s, and no Per"
	case !l.isSlots() && l.TTL != "":
		return "TTL is for the algorithm concurrency; it must have Per"
	case !l.isSlots() && l.Per == "":
		return "Per is missing: the window, such as 10s, 1m or day"
	}

	for _, text := range [...]string{l.Per, l.TTL, l.Algorithm, l.Unit, l.Name, l.TZ} {
		if len(text) > maxValue || !utf8.ValidString(text) {
			return fmt.Sprintf("%.80q is not UTF-8 of at most %d bytes", text, maxValue)
		}
	}

	return ""
}

// isSlots reports whether l limits how many are held at once.
func (l *Limit) isSlots() bool { return l.Algorithm == "concurrency" }

func validateCost(at int, mode Mode, cost int64) error {
	switch {
	case mode != "" && mode != CheckMode && mode != PeekMode && mode != CountMode && mode != AtMostMode:
		return fmt.Errorf("%w: %sMode is %.80q; it must be check, peek, count or at_most", ErrRequest, pathOf(at), mode)
	case cost < 0:
		return fmt.Errorf("%w: %sCost is %d; it must not be negative", ErrRequest, pathOf(at), cost)
	}
	return nil
}

// pathOf returns the prefix for the fields of a subject in messages.
func pathOf(at int) string {
	if at < 0 {
		return ""
	}
	return fmt.Sprintf("Subjects[%d].", at)
}

// TakesAtMost reports whether r, or one of its subjects, is in AtMostMode.
func (r *Request) TakesAtMost() bool {
	return r.Mode == AtMostMode || slices.ContainsFunc(r.Subjects, func(s Subject) bool { return s.Mode == AtMostMode })
}

// GrantedUnasked returns what r takes if all of it is allowed without a
// decision of a node; 0 unless it is in AtMostMode.
func (r *Request) GrantedUnasked() int64 {
	cost := r.Cost
	costs := r.Costs
	if len(r.Subjects) > 0 {
		cost, costs = r.Subjects[0].Cost, r.Subjects[0].Costs
	}

	switch {
	case !r.TakesAtMost():
		return 0
	case len(costs) == 0:
		return max(1, cost)
	}

	for _, n := range costs {
		cost = max(cost, n)
	}

	return cost
}

// countModes reports whether some, and whether all, subjects of r are in CountMode.
func (r *Request) countModes() (anyCount, allCount bool) {
	anyCount, allCount = r.Mode == CountMode, r.Mode == CountMode || r.Subjects != nil
	for i := range r.Subjects {
		isCount := r.Subjects[i].Mode == CountMode
		anyCount, allCount = anyCount || isCount, allCount && isCount
	}
	return anyCount, allCount
}

// makePeek makes r take nothing.
func (r *Request) makePeek() {
	if r.Subjects == nil {
		r.Mode = PeekMode
		return
	}
	// The caller's own slice must not change.
	r.Subjects = slices.Clone(r.Subjects)
	for i := range r.Subjects {
		r.Subjects[i].Mode = PeekMode
	}
}

// append appends r as a JSON object; ttl is 0 for a check.
func (r *Request) append(b []byte, ttl time.Duration) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}

	b, err := r.appendSubjects(append(b, '{'))
	if err != nil {
		return nil, err
	}

	if r.Detail {
		b = append(b, `"detail":true,`...)
	}

	anyCount, _ := r.countModes()
	if r.RequestID != "" && (ttl > 0 || anyCount) {
		b, err = appendRequestID(b, r.RequestID)
		if err != nil {
			return nil, err
		}
		b = append(b, ',')
	}

	if ttl > 0 {
		b, err = r.OnExpiry.append(b)
		if err != nil {
			return nil, err
		}
		b = append(b, `"ttl_ms":`...)
		b = append(strconv.AppendInt(b, ceil(ttl, time.Millisecond), 10), ',')
	}

	return checkSize(closeBracket(b, '}'))
}

// checkSize returns the body b, or an error if it is too large for a node.
func checkSize(b []byte) ([]byte, error) {
	if len(b) > maxBody {
		return nil, fmt.Errorf("%w: the body has %d bytes; it must not have more than %d", errTooLarge, len(b), maxBody)
	}
	return b, nil
}

// appendSubjects appends the fields that name the subjects, with their costs.
func (r *Request) appendSubjects(b []byte) (_ []byte, err error) {
	switch {
	case r.Subjects != nil:
		b = append(b, `"subjects":[`...)
		for i := range r.Subjects {
			b, err = r.Subjects[i].append(append(b, '{'))
			if err != nil {
				return nil, err
			}
			b = append(closeBracket(b, '}'), ',')
		}
		return append(closeBracket(b, ']'), ','), nil
	case r.isInline():
		subject := r.subject()
		return subject.append(b)
	}

	if r.Rule != "" {
		b = appendString(append(b, `"rule":`...), r.Rule)
		b = append(b, ',')
	}

	if r.Key != nil {
		b = appendKey(append(b, `"key":`...), r.Key)
		b = append(b, ',')
	}

	if r.Attributes != nil {
		b = append(b, `"attributes":{`...)
		for name, value := range r.Attributes {
			if value == "" {
				continue // absent
			}
			b = appendString(b, name)
			b = appendString(append(b, ':'), Fit(value))
			b = append(b, ',')
		}

		b = append(closeBracket(b, '}'), ',')
	}

	mode := r.Mode
	if mode == PeekMode {
		b, mode = append(b, `"peek":true,`...), "" // nodes of older releases know peek, but not mode
	}

	return appendCost(b, mode, r.Cost, r.Costs)
}

// append appends the fields of s.
func (s *Subject) append(b []byte) ([]byte, error) {
	if s.Namespace != "" {
		b = append(appendString(append(b, `"namespace":`...), Fit(s.Namespace)), ',')
	}
	b = appendKey(append(b, `"key":`...), s.Key)
	b = append(appendLimits(append(b, ','), s.Limits), ',')
	if s.Exact {
		b = append(b, `"consistency":"exact",`...)
	}
	if s.Shadow {
		b = append(b, `"shadow":true,`...)
	}
	return appendCost(b, s.Mode, s.Cost, s.Costs)
}

// appendTarget returns the body of a call, other than a check, about the only
// subject of r. It adds fields to the body.
func (r *Request) appendTarget(fields []byte) ([]byte, error) {
	inline := r.Limits != nil || r.Namespace != ""
	switch {
	case r.Subjects != nil || r.Attributes != nil:
		return nil,
			fmt.Errorf("%w: this call is about one subject: Subjects and Attributes must not be given",
				ErrRequest)
	case (r.Rule != "") == inline:
		return nil, fmt.Errorf("%w: either Rule, or Namespace or Limits, must be given", ErrRequest)
	case inline && r.Key == nil:
		return nil, fmt.Errorf("%w: Key is missing", ErrRequest)
	case r.Limits != nil:
		subject := Subject{Key: r.Key, Limits: r.Limits}
		if err := subject.validate(-1); err != nil {
			return nil, err
		}
	}

	b := []byte{'{'}
	if r.Rule != "" {
		b = append(appendString(append(b, `"rule":`...), r.Rule), ',')
	}
	if r.Namespace != "" {
		b = append(appendString(append(b, `"namespace":`...), Fit(r.Namespace)), ',')
	}
	if r.Key != nil {
		b = append(appendKey(append(b, `"key":`...), r.Key), ',')
	}
	if len(r.Limits) > 0 {
		b = append(appendLimits(b, r.Limits), ',')
	}

	return checkSize(closeBracket(append(b, fields...), '}'))
}

// appendLimitName appends the name of the limit that a change concerns, as a field, if it has one.
func (r *Request) appendLimitName(b []byte) ([]byte, error) {
	if r.LimitName == "" {
		return b, nil
	}
	if len(r.LimitName) > maxValue || !utf8.ValidString(r.LimitName) {
		return nil, fmt.Errorf("%w: LimitName is %.80q; it must be UTF-8 of at most %d bytes",
			ErrRequest, r.LimitName, maxValue)
	}
	return append(appendString(append(b, `"limit_name":`...), r.LimitName), ','), nil
}

// appendCost appends the costs and the mode.
func appendCost(b []byte, mode Mode, cost int64, costs map[string]int64) (_ []byte, err error) {
	if cost > 0 {
		b = append(b, `"cost":`...)
		b = append(strconv.AppendInt(b, min(cost, maxAmount), 10), ',')
	}

	if costs != nil {
		b, err = appendCosts(append(b, `"costs":`...), costs)
		if err != nil {
			return nil, err
		}
		b = append(b, ',')
	}

	if mode != "" && mode != CheckMode {
		b = append(appendString(append(b, `"mode":`...), string(mode)), ',')
	}

	return b, nil
}

// appendLimits appends the field limits. The node validates them.
func appendLimits(b []byte, limits []Limit) []byte {
	b = append(b, `"limits":[`...)
	for i := range limits {
		l := &limits[i]
		b = strconv.AppendInt(append(b, `{"limit":`...), l.Limit, 10)
		if l.Burst != 0 {
			b = strconv.AppendInt(append(b, `,"burst":`...), l.Burst, 10)
		}

		from := ""
		if l.FromFirst {
			from = "first"
		}

		for _, field := range [...]struct{ name, value string }{
			{`,"per":`, l.Per}, {`,"ttl":`, l.TTL}, {`,"algorithm":`, l.Algorithm},
			{`,"unit":`, l.Unit}, {`,"name":`, l.Name}, {`,"tz":`, l.TZ}, {`,"from":`, from},
		} {
			if field.value != "" {
				b = appendString(append(b, field.name...), field.value)
			}
		}

		b = append(b, `},`...)
	}

	return closeBracket(b, ']')
}

// appendRequestID appends the field request_id.
func appendRequestID(b []byte, id string) ([]byte, error) {
	if len(id) > maxID {
		return nil, fmt.Errorf("%w: the request id has %d bytes; it must not have more than %d",
			ErrRequest, len(id), maxID)
	}
	return appendString(append(b, `"request_id":`...), id), nil
}

// errTooLarge wraps ErrRequest, so that a check that is too large is refused whatever OnError says.
var errTooLarge = fmt.Errorf("%w: too large", ErrRequest)

// appendCosts appends the costs per unit. They are sorted, so that a node
// always reports the same one as wrong.
func appendCosts(b []byte, costs map[string]int64) ([]byte, error) {
	b = append(b, '{')
	for _, unit := range slices.Sorted(maps.Keys(costs)) {
		cost := costs[unit]
		if cost < 0 {
			return nil, fmt.Errorf("%w: Costs[%q] is %d; it must not be negative", ErrRequest, unit, cost)
		}
		b = appendString(b, unit)
		b = append(b, ':')
		b = append(strconv.AppendInt(b, min(cost, maxAmount), 10), ',')
	}
	return closeBracket(b, '}'), nil
}

// appendKey appends a key as nodes expect it: a string if there is one value, else an array.
func appendKey(b []byte, key []string) []byte {
	if len(key) == 1 {
		return appendString(b, Fit(key[0]))
	}
	b = append(b, '[')
	for _, v := range key {
		b = append(appendString(b, Fit(v)), ',')
	}
	return closeBracket(b, ']')
}

// closeBracket closes an object or an array, and removes the comma after its last item.
func closeBracket(b []byte, bracket byte) []byte {
	if b[len(b)-1] == ',' {
		b = b[:len(b)-1]
	}
	return append(b, bracket)
}

// Fit returns a key or attribute value in a form that a node accepts, as
// described at Request. It keeps both the beginning and the end, because rules
// can match either.
func Fit(v string) string {
	if !utf8.ValidString(v) {
		v = strings.ToValidUTF8(v, "\uFFFD")
	}

	if len(v) <= maxValue {
		return v
	}

	head, tail := maxValue/2, len(v)-maxValue/2
	for !utf8.RuneStart(v[head]) {
		head--
	}

	for tail < len(v) && !utf8.RuneStart(v[tail]) {
		tail++
	}

	return v[:head] + v[tail:]
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD. Unlike encoding/json, it does not turn each <, > and & into six
// bytes: a hostile path may consist of those.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}

	return append(b, '"')
}

// ceil returns d in units, rounded up.
func ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 && n < math.MaxInt64 {
		n++
	}
	return n
}
