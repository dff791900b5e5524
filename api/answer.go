package api

import (
	"strconv"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

const quotaExceeded = `"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
	`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":`

// conclude writes the answer to x's decision: its status, the rate limit headers and a body. With bare, an allowed
// check gets no body.
func (x *exchange) conclude(refused int, bare bool, node []byte) {
	x.decided = true
	x.rateHeaders()
	switch {
	case !x.answer.Allowed:
		x.status, x.contentType = refused, typeProblem
		x.retryAfter()
	case bare:
		x.status = statusAllowed
		return
	default:
		x.json(statusAllowed)
	}
	x.response.body = x.appendAnswer(x.response.body, node)
}

// appendAnswer appends the answer to a single check as a JSON object: a refusal is a problem.
func (x *exchange) appendAnswer(b []byte, node []byte) []byte {
	a := &x.answer
	b = append(b, '{')
	if !a.Allowed {
		x.spare = a.AppendReason(x.spare[:0])
		b = append(b, quotaExceeded...)
		b = strconv.AppendInt(b, int64(x.status), 10)
		b = append(b, `,"detail":`...)
		b = appendString(b, view(x.spare))
		b = appendViolated(append(b, `,"violated-policies":[`...), a)
		b = append(b, "],"...)
	}
	return appendDecision(b, a, &x.check, node)
}

// appendDecision appends the decision a about q, and closes its object.
func appendDecision(b []byte, a *limiter.Answer, q *checkRequest, node []byte) []byte {
	t := a.TightestLimit()
	b = appendBool(b, `"allowed":`, a.Allowed)
	b = append(b, `,"rule":`...)
	if t != nil {
		b = appendString(b, t.Rule.Name)
		b = appendTightest(b, a, t)
	} else {
		b = append(b, `"",`...)
		retry := int64(0)
		if !a.Allowed {
			retry = -1
		}
		b = appendInt(b, `"retry_after_ms":`, retry)
		b = append(b, `,"delay_ms":0`...)
	}
	b = append(b, `,"decided_by":"`...)
	b = append(b, a.DecidedBy.String()...)
	b = append(b, `","node":`...)
	b = append(b, node...)
	b = appendInt(b, `,"rules_version":`, a.RulesVersion)
	if q.detail {
		b = appendLimits(b, a)
	}
	if q.reservation != "" {
		b = appendString(append(b, `,"reservation":`...), q.reservation)
	}
	return append(b, '}')
}

// appendTightest appends the fields that describe one limit, in the API's documented order.
func appendTightest(b []byte, a *limiter.Answer, t *limiter.LimitAnswer) []byte {
	b = appendInt(b, `,"limit":`, t.Limit.UndividedCapacity())
	b = appendInt(b, `,"remaining":`, t.Remaining)
	b = append(b, `,"unit":`...)
	b = appendString(b, t.Limit.Unit)
	b = appendInt(b, `,"window_ms":`, millis(t.Limit.WindowAt(a.Now)))
	b = appendInt(b, `,"reset_after_ms":`, millis(t.ResetAfter))
	b = appendInt(b, `,"retry_after_ms":`, millis(t.RetryAfter))
	return appendInt(b, `,"delay_ms":`, millis(a.Delay()))
}

// wait holds back the answer of a check that was decided just before now, for its delay, as far as the rules that delay
// it ask to hold answers back.
func (x *exchange) wait(now time.Time) {
	hold := time.Duration(0)
	for i := range x.answer.Limits {
		if l := &x.answer.Limits[i]; !l.Rule.Shadow {
			hold = max(hold, min(l.Delay, l.Rule.MaxDelay))
		}
	}
	if hold > 0 {
		x.due, x.after = now.Add(hold), x.answer.Delay()-hold
	}
}

// appendLimits appends every limit that was evaluated.
func appendLimits(b []byte, a *limiter.Answer) []byte {
	b = append(b, `,"limits":[`...)
	for i := range a.Limits {
		l := &a.Limits[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"rule":`...)
		b = appendString(b, l.Rule.Name)
		b = appendLimit(append(b, ','), l.Limit, l.Limit.WindowAt(a.Now))
		b = appendInt(b, `,"remaining":`, l.Remaining)
		b = appendInt(b, `,"reset_after_ms":`, millis(l.ResetAfter))
		b = appendInt(b, `,"retry_after_ms":`, millis(l.RetryAfter))
		b = appendBool(b, `,"allowed":`, l.Allowed)
		b = appendBool(b, `,"shadow":`, l.Rule.Shadow)
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendLimit appends the fields that identify a limit.
func appendLimit(b []byte, l *rules.Limit, window time.Duration) []byte {
	b = append(b, `"name":`...)
	b = appendString(b, l.Name)
	b = append(b, `,"algorithm":"`...)
	b = append(b, l.Kind.String()...)
	b = append(b, `","unit":`...)
	b = appendString(b, l.Unit)
	b = appendInt(b, `,"limit":`, l.UndividedCapacity())
	return appendInt(b, `,"window_ms":`, millis(window))
}

// appendViolated appends the names of the limits that refused.
func appendViolated(b []byte, a *limiter.Answer) []byte {
	first := true
	for i := range a.Limits {
		if l := &a.Limits[i]; !l.Allowed && !l.Rule.Shadow {
			if !first {
				b = append(b, ',')
			}
			b, first = appendString(b, l.Limit.Name), false
		}
	}
	return b
}
