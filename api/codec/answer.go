package codec

import (
	"cmp"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// The statuses of a check's answer.
const (
	statusAllowed = 200
	statusRefused = 429
)

const (
	quotaExceededType = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	quotaExceeded     = `"type":"` + quotaExceededType + `","title":"` + api.QuotaExceeded + `","status":`
)

// deniedError is the error for a check that the deny list or the default refused, not a limit.
var deniedError = api.Error{Code: api.Denied}

// Compose sets r to the answer a to the check q: status, rate limit headers and
// body. denyStatus is the status of a refusal; 0 means the default, 429 or that
// of api.Denied. node is the node's name as a JSON string. forEndUser means
// that a proxy passes the answer on: an allowed check gets no body, and a
// refused one what its rule's refusal says.
func (r *Reply) Compose(a *limiter.Answer, q *Request, denyStatus int, forEndUser bool, node []byte) {
	r.rateHeaders(a)

	switch {
	case !a.Allowed && !a.Counted:
		defaultStatus := statusRefused
		if a.Denied() {
			defaultStatus = deniedError.Status()
		}

		r.Status, r.ContentType = cmp.Or(denyStatus, defaultStatus), TypeProblem
		r.retryAfter(a)

		if refusal := refusalOf(a); refusal != nil && forEndUser {
			r.composeRefusal(a, refusal, denyStatus)
			return
		}
	case forEndUser:
		r.Status = statusAllowed
		return
	default:
		r.StartJSON(statusAllowed)
	}

	r.Body = r.appendAnswer(r.Body, a, q, node)
}

// appendAnswer appends the answer to a single check as a JSON object. A refusal
// is a problem+json object.
func (r *Reply) appendAnswer(b []byte, a *limiter.Answer, q *Request, node []byte) []byte {
	b = append(b, '{')
	if !a.Allowed && !a.Counted {
		r.scratch = a.AppendReason(r.scratch[:0])
		denied := a.Denied()
		if denied {
			b = AppendString(append(b, `"type":"about:blank","title":`...), deniedError.Title())
			b = append(b, `,"status":`...)
		} else {
			b = append(b, quotaExceeded...)
		}

		b = strconv.AppendInt(b, int64(r.Status), 10)
		b = append(b, `,"detail":`...)
		b = AppendString(b, UnsafeString(r.scratch))
		if !denied {
			b = appendViolated(append(b, `,"violated-policies":[`...), a)
			b = append(b, ']')
		}

		b = append(b, ',')
	}

	return r.AppendDecision(b, a, q, node)
}

// AppendDecision appends the fields of decision a about q, and closes the
// object. A refused check has a code, also within a batch. node must be the
// same in every call.
func (r *Reply) AppendDecision(b []byte, a *limiter.Answer, q *Request, node []byte) []byte {
	t := a.TightestLimit()
	switch {
	case a.Denied():
		b = AppendString(append(b, `"code":`...), string(deniedError.Code))
		b = append(b, ',')
	case !a.Allowed && !a.Counted:
		b = AppendString(append(b, `"code":`...), string(t.Cause()))
		b = append(b, ',')
	}

	b = AppendBool(b, `"allowed":`, a.Allowed)
	if t != nil {
		r.lastLimit.describe(t, a.Now)
		b = r.lastLimit.append(b, a, t)
		r.lastLimit.endAnswer()
	} else {
		b = append(b, `,"rule":`...)
		if rule := a.UnlimitedRule(); rule != nil && a.Allowed {
			b = append(AppendString(b, rule.Name), `,"unlimited":true,`...)
		} else {
			b = append(b, `"",`...)
		}

		retry := int64(0)
		if !a.Allowed {
			// No limit has refused it, so waiting does not help.
			retry = -1
		}

		b = AppendInt(b, `"retry_after_ms":`, retry)
		b = append(b, `,"delay_ms":0`...)
	}

	b = append(b, `,"decided_by":"`...)
	b = append(b, a.DecidedBy.String()...)

	if len(r.origin) == 0 || r.originVersion != a.RulesVersion {
		r.originVersion = a.RulesVersion
		r.origin = append(append(r.origin[:0], `","node":`...), node...)
		r.origin = AppendInt(r.origin, `,"rules_version":`, r.originVersion)
	}

	b = append(b, r.origin...)
	if q.Detail {
		b = appendLimits(b, a)
	}
	if !a.Allowed {
		b = r.appendRefusal(b, a)
	}
	if a.IsAtMost {
		b = AppendInt(b, `,"granted":`, a.Granted)
	}
	if q.Reservation != "" {
		b = AppendString(append(b, `,"reservation":`...), q.Reservation)
	}

	if q.Slot.ID != "" {
		b = AppendString(append(b, `,"slot":`...), q.Slot.ID)
		b = AppendInt(b, `,"expires_ms":`, q.Slot.Expires.Milliseconds())
	}

	return append(b, '}')
}

// limitFieldsCache caches the encoded fields of a limit that do not depend on
// its usage. Consecutive answers are mostly about the same limit.
type limitFieldsCache struct {
	limit            *rules.Limit // what c describes; nil: see endAnswer
	isLasting        bool         // the limit says the same in later answers
	rule, name, unit []byte       // copies, because an inline limit does not outlive its request
	shown            rules.AdvertisedLimit
	// The text before the value of used, between the values of remaining and
	// reset_after_ms, and after the value of delay_ms.
	beforeUsed, afterRemaining, afterDelay []byte
	policy                                 []byte // its item of RateLimit-Policy
}

// append appends the fields that describe limit l, in the order that the API documents.
func (c *limitFieldsCache) append(b []byte, a *limiter.Answer, l *limiter.LimitAnswer) []byte {
	b = append(b, c.beforeUsed...)
	b = strconv.AppendInt(b, l.Used, 10)
	b = AppendInt(b, `,"remaining":`, l.Remaining)
	b = append(b, c.afterRemaining...)
	b = strconv.AppendInt(b, Millis(l.ResetAfter), 10)
	b = AppendInt(b, `,"retry_after_ms":`, Millis(l.RetryAfter))
	b = appendMoreAfter(b, l.MoreAfter)
	b = AppendInt(b, `,"delay_ms":`, Millis(a.Delay()))
	return append(b, c.afterDelay...)
}

// appendMoreAfter appends the time after which more is left than now, unless it
// is 0: not known, or never.
func appendMoreAfter(b []byte, more time.Duration) []byte {
	if more <= 0 {
		return b
	}
	return AppendInt(b, `,"more_after_ms":`, Millis(more))
}

// describe makes c describe l's limit at now.
func (c *limitFieldsCache) describe(l *limiter.LimitAnswer, now algorithms.Instant) {
	if c.limit != l.Limit {
		c.set(l.Rule.Name, l.Limit, l.Limit.AdvertisedAt(now))
		c.limit = l.Limit
		c.isLasting = !l.Rule.Inline && l.Limit.Calendar == nil
	}
}

// endAnswer makes describe look at the limit again, if it may differ in the next
// answer although its address is the same: an inline limit may be another one,
// and calendar windows differ in length.
func (c *limitFieldsCache) endAnswer() {
	if !c.isLasting {
		c.limit = nil
	}
}

// set makes c describe a limit, unless it already does.
func (c *limitFieldsCache) set(rule string, l *rules.Limit, shown rules.AdvertisedLimit) {
	if c.shown == shown && string(c.rule) == rule && string(c.name) == l.Name && string(c.unit) == l.Unit &&
		len(c.beforeUsed) > 0 {
		return
	}

	c.shown = shown
	c.rule = append(c.rule[:0], rule...)
	c.name = append(c.name[:0], l.Name...)
	c.unit = append(c.unit[:0], l.Unit...)
	c.beforeUsed = AppendString(append(c.beforeUsed[:0], `,"rule":`...), rule)
	c.beforeUsed = append(AppendInt(c.beforeUsed, `,"limit":`, shown.Capacity), `,"used":`...)
	c.afterRemaining = AppendString(append(c.afterRemaining[:0], `,"unit":`...), l.Unit)
	c.afterRemaining = append(appendWindow(c.afterRemaining, &shown), `,"reset_after_ms":`...)
	c.afterDelay = appendRate(c.afterDelay[:0], &shown)
	c.policy = appendPolicy(c.policy[:0], l, &shown)
}

// appendWindow appends the window of a limit or, for slots, the time after
// which one ends.
func appendWindow(b []byte, s *rules.AdvertisedLimit) []byte {
	if s.Slots {
		return AppendInt(b, `,"ttl_ms":`, Millis(s.Window))
	}
	return AppendInt(b, `,"window_ms":`, Millis(s.Window))
}

// appendRate appends what a limit allows over time. Slots have no rate.
func appendRate(b []byte, s *rules.AdvertisedLimit) []byte {
	if s.Slots {
		return b
	}
	b = AppendInt(b, `,"rate":{"limit":`, s.Amount)
	b = AppendInt(b, `,"per_ms":`, Millis(s.Per))
	return append(b, '}')
}

// appendLimits appends every limit that was evaluated.
func appendLimits(b []byte, a *limiter.Answer) []byte {
	b = append(b, `,"limits":[`...)
	for n := range a.Limits {
		i := a.IndexInOrder(n)
		l := &a.Limits[i]

		if n > 0 {
			b = append(b, ',')
		}

		b = append(b, `{"rule":`...)
		b = AppendString(b, l.Rule.Name)
		shown := l.Limit.AdvertisedAt(a.Now)
		b = appendLimit(append(b, ','), l.Limit, &shown)
		b = AppendInt(b, `,"used":`, l.Used)
		b = AppendInt(b, `,"remaining":`, l.Remaining)
		b = AppendInt(b, `,"reset_after_ms":`, Millis(l.ResetAfter))
		b = AppendInt(b, `,"retry_after_ms":`, Millis(l.RetryAfter))
		b = appendMoreAfter(b, l.MoreAfter)
		b = AppendBool(b, `,"allowed":`, l.Allowed)
		b = AppendBool(b, `,"shadow":`, l.Rule.Shadow)
		b = append(appendRate(b, &shown), '}')
	}

	for _, h := range a.Unlimited() {
		for _, l := range h.Limits {
			if b[len(b)-1] != '[' {
				b = append(b, ',')
			}
			b = AppendString(append(b, `{"rule":`...), h.Rule.Name)
			b = appendUnlimited(append(b, ','), l)
			b = AppendBool(b, `,"allowed":`, true)
			b = append(AppendBool(b, `,"shadow":`, h.Rule.Shadow), '}')
		}
	}

	return append(b, ']')
}

// appendUnlimited appends the fields that identify a limit that says unlimited.
func appendUnlimited(b []byte, l *rules.Limit) []byte {
	b = AppendString(append(b, `"name":`...), l.Name)
	if l.Unit != "" {
		b = AppendString(append(b, `,"unit":`...), l.Unit)
	}
	return append(b, `,"unlimited":true`...)
}

// appendLimit appends the fields that identify a limit.
func appendLimit(b []byte, l *rules.Limit, shown *rules.AdvertisedLimit) []byte {
	b = append(b, `"name":`...)
	b = AppendString(b, l.Name)
	b = append(b, `,"algorithm":"`...)
	b = append(b, l.Kind.String()...)
	b = append(b, `","unit":`...)
	b = AppendString(b, l.Unit)
	b = AppendInt(b, `,"limit":`, shown.Capacity)
	return appendWindow(b, shown)
}

// appendViolated appends the names of the limits that refused the check.
func appendViolated(b []byte, a *limiter.Answer) []byte {
	first := true
	for i := range a.Limits {
		l := &a.Limits[i]
		if !l.Allowed && !l.Rule.Shadow {
			if !first {
				b = append(b, ',')
			}
			b = AppendString(b, l.Limit.Name)
			first = false
		}
	}
	return b
}
