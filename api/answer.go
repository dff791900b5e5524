package api

import (
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

const quotaExceeded = `"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
	`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":`

// Tightest returns the limit that a describes, or nil if only shadow limits were evaluated.
func Tightest(a *limiter.Answer) *limiter.LimitAnswer {
	if a.Tightest < 0 || a.DecidedBy >= limiter.ByList {
		return nil
	}
	return &a.Limits[a.Tightest]
}

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
		x.spare = appendReason(x.spare[:0], a, Tightest(a))
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
	t := Tightest(a)
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
	b = appendInt(b, `,"limit":`, Whole(t.Limit))
	b = appendInt(b, `,"remaining":`, t.Remaining)
	b = append(b, `,"unit":`...)
	b = appendString(b, t.Limit.Unit)
	b = appendInt(b, `,"window_ms":`, millis(t.Limit.WindowAt(a.Now)))
	b = appendInt(b, `,"reset_after_ms":`, millis(t.ResetAfter))
	b = appendInt(b, `,"retry_after_ms":`, millis(t.RetryAfter))
	return appendInt(b, `,"delay_ms":`, millis(delay(a)))
}

// delay is how long the caller must wait for an allowed check's turn: the longest delay of its limits.
func delay(a *limiter.Answer) time.Duration { return a.Delay() }

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
		x.due, x.after = now.Add(hold), delay(&x.answer)-hold
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

// Whole returns a limit's capacity as answers show it: that of all regions together, if regions divide it.
func Whole(l *rules.Limit) int64 {
	if l.Whole > 0 {
		return l.Whole
	}
	return l.Capacity()
}

// appendLimit appends the fields that identify a limit.
func appendLimit(b []byte, l *rules.Limit, window time.Duration) []byte {
	b = append(b, `"name":`...)
	b = appendString(b, l.Name)
	b = append(b, `,"algorithm":"`...)
	b = append(b, l.Kind.String()...)
	b = append(b, `","unit":`...)
	b = appendString(b, l.Unit)
	b = appendInt(b, `,"limit":`, Whole(l))
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

// Reason explains to a person, in one sentence, why a check was refused.
func Reason(a *limiter.Answer) string { return string(appendReason(nil, a, Tightest(a))) }

// appendReason appends the sentence that Reason returns.
func appendReason(b []byte, a *limiter.Answer, t *limiter.LimitAnswer) []byte {
	switch {
	case a.DecidedBy == limiter.ByList:
		return append(b, "The deny list refuses this."...)
	case t == nil:
		return append(b, "No rule applies, and the default is to deny."...)
	case t.Blocked:
		return appendBlocked(b, t)
	case t.Full:
		b = append(b, "The node has no room for a new counter of limit "...)
	default:
		b = append(b, "Limit "...)
	}
	b = strconv.AppendQuote(b, t.Limit.Name)
	b = append(b, " of rule "...)
	b = strconv.AppendQuote(b, t.Rule.Name)
	b = appendInt(b, " (", t.Limit.Amount)
	b = append(b, ' ')
	b = append(b, t.Limit.Unit...)
	b = append(b, " per "...)
	b = append(b, t.Limit.Window...)
	if t.Limit.Whole > 0 { // this region's share may be far less than the limit that the answer shows
		b = append(b, " in this region"...)
	}
	switch {
	case t.RetryAfter == algorithms.Never:
		return append(b, ") can never allow it: the cost is above its capacity."...)
	case t.Full:
		b = append(b, "); retry in "...)
	default:
		b = append(b, ") is used up; retry in "...)
	}
	return appendSeconds(b, t.RetryAfter)
}

// appendBlocked appends the sentence for a subject that is blocked.
func appendBlocked(b []byte, t *limiter.LimitAnswer) []byte {
	b = strconv.AppendQuote(append(b, "Rule "...), t.Rule.Name)
	b = append(b, " blocks this for "...)
	length := strings.TrimSuffix(t.Rule.Block.String(), "m0s") // 30m0s and 1h0m0s become 30m and 1h
	if whole := strings.TrimSuffix(length, "h0"); whole != length {
		length = whole + "h"
	} else if length != t.Rule.Block.String() {
		length += "m"
	}
	b = append(b, length...)
	b = append(b, " after a refusal; "...)
	if t.RetryAfter == algorithms.Never {
		return append(b, "this can never be allowed: the cost is above the capacity."...)
	}
	return appendSeconds(append(b, "retry in "...), t.RetryAfter)
}

// appendSeconds appends a duration and ends the sentence.
func appendSeconds(b []byte, d time.Duration) []byte {
	ms := millis(d)
	b = strconv.AppendInt(b, ms/1000, 10)
	if part := ms % 1000; part > 0 {
		b = append(b, '.', '0'+byte(part/100), '0'+byte(part/10%10), '0'+byte(part%10))
	}
	return append(b, " s."...)
}
