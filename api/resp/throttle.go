package resp

import (
	"fmt"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// CL.THROTTLE is the command of redis-cell; Dragonfly has it as well. Its limit
// comes with each call: a token bucket.

const cellUsage failure = "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"

func throttleSpecs() []spec {
	return []spec{
		{
			name: "cl.throttle", arity: -1, need: api.ScopeCheck, asks: (*session).cellThrottle,
			firstKey: 1, lastKey: 1, keyStep: 1, usage: cellUsage,
			summary: "Takes from a token bucket, as redis-cell does.",
		},
		{
			name: "rl.throttle", arity: -5, need: api.ScopeCheck, asks: (*session).proposedThrottle,
			firstKey: 1, lastKey: 1, keyStep: 1,
			summary: "Takes from a token bucket. It follows a proposal for Valkey that is still open, and may change with it.",
		},
		{
			name: "throttle", arity: -5, need: api.ScopeCheck, asks: (*session).crabThrottle,
			firstKey: 1, lastKey: 1, keyStep: 1,
			summary: "Takes from a token bucket, as throttlecrab does.",
		},
	}
}

// bucket is the token bucket that a call gives.
type bucket struct {
	maxBurst, count, period, quantity int64
}

// The words behind the key, in their order.
var bucketWords = [...]string{"max_burst", "count_per_period", "period", "quantity"}

// readBucket reads the words after the key. notInteger returns the failure for
// a word that is not an integer.
func readBucket(words [][]byte, notInteger func(name string, word []byte) failure) (b bucket, f failure) {
	b.quantity = 1
	for i, word := range words {
		n, ok := parseLoosely(word)
		if !ok {
			return b, notInteger(bucketWords[i], word)
		}

		switch i {
		case 0:
			b.maxBurst = n
		case 1:
			b.count = n
		case 2:
			b.period = n
		case 3:
			b.quantity = n
		}
	}

	return b, ""
}

// maxPeriod is the longest period, in seconds.
const maxPeriod = int64(algorithms.MaxWindow / time.Second)

// validate returns a failure if a number is out of bounds. leastBurst is the least max_burst.
func (b *bucket) validate(leastBurst int64) failure {
	for i, number := range [...]struct{ value, least, most int64 }{
		{b.maxBurst, leastBurst, algorithms.MaxAmount - 1}, {b.count, 1, algorithms.MaxAmount},
		{b.period, 1, maxPeriod}, {b.quantity, 0, algorithms.MaxAmount},
	} {
		if number.value < number.least || number.value > number.most {
			return badValue("%s must be a whole number from %d to %d", bucketWords[i], number.least, number.most)
		}
	}
	return ""
}

// ask makes q a check of the bucket, which holds capacity units.
func (b *bucket) ask(c *session, q *check, namespace string, key []byte, capacity int64) failure {
	limit := document.InlineLimit{Limit: b.count, PerMS: 1000 * b.period, Algorithm: "token-bucket", Burst: capacity}
	// A burst of 0 stands for that of the limit. So a bucket that holds nothing
	// needs a limit of 0.
	if capacity == 0 {
		limit = document.InlineLimit{PerMS: limit.PerMS, Algorithm: limit.Algorithm}
	}
	q.setLimit(namespace, key, limit, b.quantity)
	return c.confine(&q.Query)
}

// cellThrottle prepares CL.THROTTLE key max_burst count_per_period period [quantity].
func (c *session) cellThrottle(words [][]byte, q *check) failure {
	if len(words) < 4 || len(words) > 5 {
		return cellUsage
	}

	b, f := readBucket(words[1:], func(_ string, word []byte) failure {
		return failure(fmt.Sprintf("Cell error: Store error: Couldn't parse as integer: %s", printable(word)))
	})
	switch {
	case f != "":
		return f
	case b.count == 0 || b.period == 0:
		return "Cell error: Store error: Zero rates are not supported"
	}

	if f := b.validate(-1); f != "" {
		return f
	}

	q.reply = replyCell
	return b.ask(c, q, rules.CellNamespace, words[0], b.maxBurst+1)
}

// proposedThrottle prepares RL.THROTTLE, which is CL.THROTTLE with the errors of Redis.
func (c *session) proposedThrottle(words [][]byte, q *check) failure {
	if len(words) > 5 {
		return wrongArity("rl.throttle")
	}
	b, f := readBucket(words[1:], func(string, []byte) failure { return "ERR value is not an integer or out of range" })
	if f == "" {
		f = b.validate(-1)
	}
	if f != "" {
		return f
	}
	q.reply = replyCell
	return b.ask(c, q, rules.CellNamespace, words[0], b.maxBurst+1)
}

// crabThrottle prepares THROTTLE key max_burst count_per_period period
// [quantity], whose bucket holds max_burst.
func (c *session) crabThrottle(words [][]byte, q *check) failure {
	if len(words) > 5 {
		return wrongArity("throttle")
	}
	b, f := readBucket(words[1:], func(name string, _ []byte) failure { return failure("ERR invalid " + name) })
	if f == "" {
		f = b.validate(1)
	}
	if f != "" {
		return f
	}
	q.reply = replyCrab
	return b.ask(c, q, rules.ThrottleNamespace, words[0], b.maxBurst)
}

// verdict is a decision on a bucket in whole seconds.
type verdict struct {
	allowed                bool
	limit, remaining       int64
	retryAfter, freshAfter int64 // retryAfter is −1 if the cost never fits
}

// verdictOn returns the decision on q.
func verdictOn(q *check) (v verdict) {
	v.allowed = q.answer.Allowed
	v.retryAfter = -1
	limit := q.answer.TightestLimit()
	if limit == nil { // no limit has decided
		return v
	}
	v.limit = limit.Limit.UndividedCapacity()
	v.remaining = limit.Remaining
	v.freshAfter = seconds(limit.ResetAfter)
	if !v.allowed && limit.RetryAfter != algorithms.Never {
		v.retryAfter = max(1, seconds(limit.RetryAfter))
	}
	return v
}

// seconds returns d in seconds as redis-cell does: a rest of less than a
// millisecond is dropped, any other is rounded up.
func seconds(d time.Duration) int64 {
	whole := int64(d / time.Second)
	if d%time.Second >= time.Millisecond {
		whole++
	}
	return whole
}

// roundAsCell rounds what remains as redis-cell does. redis-cell compares whole
// microseconds: if a unit takes no whole number of them, it may report one unit
// too many.
func (v *verdict) roundAsCell(q *check) {
	limit := q.answer.TightestLimit()
	if limit == nil || q.limit[0].Limit < 1 {
		return
	}

	unit := time.Duration(q.limit[0].PerMS) * time.Millisecond / time.Duration(q.limit[0].Limit)
	const longest = 1 << 53 // up to it, nothing overflows
	if unit < time.Millisecond || v.limit > longest/int64(unit/time.Microsecond) {
		return // redis-cell can't express such a limit, or overflows on it
	}

	used := int64((limit.ResetAfter + unit - 1) / unit)
	if used != limit.Used {
		return // it drains at the rate of another call
	}

	left := time.Duration(v.limit)*unit - limit.ResetAfter
	v.remaining = min(v.limit, max(0, int64(left/time.Microsecond/(unit/time.Microsecond))))
}

// replyCell writes redis-cell's five numbers.
func replyCell(_ *Server, w *writer, q *check) {
	v := verdictOn(q)
	v.roundAsCell(q)
	limited, retry := int64(0), int64(-1)
	if !v.allowed {
		limited, retry = 1, v.retryAfter
	}
	w.array(5)
	w.integer(limited)
	w.integer(v.limit)
	w.integer(v.remaining)
	w.integer(retry)
	w.integer(v.freshAfter)
}

// replyCrab writes throttlecrab's five numbers.
func replyCrab(_ *Server, w *writer, q *check) {
	v := verdictOn(q)
	allowed, retry := int64(1), int64(0)
	if !v.allowed {
		allowed, retry = 0, v.retryAfter
	}
	w.array(5)
	w.integer(allowed)
	w.integer(v.limit)
	w.integer(v.remaining)
	w.integer(v.freshAfter)
	w.integer(retry)
}
