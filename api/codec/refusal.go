package codec

import (
	"cmp"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// maxOwnStatus is the highest status of a rule's refusal that a proxy gets.
// Higher ones are for middlewares.
const maxOwnStatus = 499

// refusalOf returns what the rule that refused a says to the end user; nil if nothing.
func refusalOf(a *limiter.Answer) *rules.Refusal {
	if t := a.TightestLimit(); t != nil && !a.Allowed && !a.Counted && !a.Denied() {
		return t.Rule.Refusal
	}
	return nil
}

// placeholderValues returns what the placeholders of a's refusal stand for.
func placeholderValues(a *limiter.Answer) rules.Values {
	t := a.TightestLimit()
	v := rules.Values{Limit: t.Limit.UndividedCapacity(), Window: t.Limit.Per, RetryAfter: -1, Rule: t.Rule.Name}
	if t.RetryAfter >= 0 {
		v.RetryAfter = max(1, seconds(t.RetryAfter))
	}
	return v
}

// Refusal returns what the rule that refused a says to the end user, as a JSON
// object; nil if nothing.
func Refusal(a *limiter.Answer) []byte {
	refusal := refusalOf(a)
	if refusal == nil {
		return nil
	}
	v := placeholderValues(a)
	return refusal.Member.Append(nil, &v)
}

// appendRefusal appends the member with the rule's refusal, if it has one. In a
// batch, the member is the refusal's place in the batch's table, so that many
// refusals of one rule do not repeat a long body.
func (r *Reply) appendRefusal(b []byte, a *limiter.Answer) []byte {
	refusal := refusalOf(a)
	if refusal == nil {
		return b
	}
	v := placeholderValues(a)
	b = append(b, `,"refusal":`...)
	if !r.inBatch {
		return refusal.Member.Append(b, &v)
	}

	r.scratch = refusal.Member.Append(r.scratch[:0], &v)
	place, known := r.refusals[string(r.scratch)]
	if !known {
		if r.refusals == nil {
			r.refusals = map[string]int64{}
		}
		place = int64(len(r.refusals))
		r.refusals[string(r.scratch)] = place
		if place > 0 {
			r.refusalTable = append(r.refusalTable, ',')
		}
		r.refusalTable = append(r.refusalTable, r.scratch...)
	}
	return AppendInt(b, "", place)
}

// StartBatch makes the decisions that follow refer to a table of refusals, which EndBatch appends.
func (r *Reply) StartBatch() { r.inBatch = true }

// EndBatch appends the table of refusals as a member, if a decision refers to it.
func (r *Reply) EndBatch(b []byte) []byte {
	if len(r.refusalTable) == 0 {
		return b
	}
	b = append(append(b, `,"refusals":[`...), r.refusalTable...)
	return append(b, ']')
}

// RefusalTableSize returns how many bytes EndBatch is going to append.
func (r *Reply) RefusalTableSize() int { return len(r.refusalTable) }

// composeRefusal sets r to the answer that a proxy passes on to the end user,
// after a rule with a refusal has refused the check.
func (r *Reply) composeRefusal(a *limiter.Answer, refusal *rules.Refusal, denyStatus int) {
	status := refusal.Status
	if status > maxOwnStatus {
		status = 0
	}
	r.Status = cmp.Or(denyStatus, status, statusRefused)

	v := placeholderValues(a)
	for i, h := range refusal.Headers {
		from := len(r.values)
		r.values = refusal.HeaderValue(r.values, i, &v)
		r.addHeader(h.Name, r.values[from:len(r.values):len(r.values)])
	}

	if !refusal.Body.IsEmpty() {
		r.ContentType = refusal.BodyType
		r.Body = refusal.Body.Append(r.Body, &v)
		return
	}

	r.ContentType = TypeProblem
	member := func(b []byte, name string, text rules.Template, otherwise string) []byte {
		b = append(b, name...)
		if !text.IsEmpty() {
			return text.Append(b, &v)
		}
		return AppendString(b, otherwise)
	}

	b := member(r.Body, `{"type":`, refusal.Type, quotaExceededType)
	b = member(b, `,"title":`, refusal.Title, api.QuotaExceeded)
	b = AppendInt(b, `,"status":`, int64(r.Status))
	r.scratch = a.AppendReason(r.scratch[:0])
	b = member(b, `,"detail":`, refusal.Detail, UnsafeString(r.scratch))
	b = member(b, `,"code":`, refusal.Code, string(a.TightestLimit().Cause()))
	r.Body = append(b, '}')
}
