package codec

import (
	"bytes"
	"math"
	"strconv"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// maxHeaderItems bounds the limits named in RateLimit and RateLimit-Policy, so
// that the headers are small enough for every client. The tightest limits come
// first.
const maxHeaderItems = 64

// maxFieldInteger is the largest integer of a structured field (RFC 9651).
const maxFieldInteger = 999_999_999_999_999

// rateHeaders adds the headers that report what is left, in the styles that the rules enable.
func (r *Reply) rateHeaders(a *limiter.Answer) {
	t := a.TightestLimit()
	if t == nil {
		return
	}

	if a.Set.Headers.IETF {
		r.rankLimits(a)
		r.ietfHeaders(a)
	}

	if a.Set.Headers.XRateLimit {
		r.addHeader("X-RateLimit-Limit", r.intValue(t.Limit.UndividedCapacity()))
		r.addHeader("X-RateLimit-Remaining", r.intValue(t.Remaining))

		if t.RetryAfter == algorithms.Never {
			return // a caller that learned the time of the reset would ask the same again then
		}

		reset := seconds(t.ResetAfter)
		if !a.Set.Headers.ResetDelta {
			// Round up the point in time, not the duration until then.
			at := a.Now.Wall + int64(t.ResetAfter)
			if at < 0 {
				at = math.MaxInt64 // a debt of centuries
			}
			reset = at / 1e9
			if at%1e9 > 0 {
				reset++
			}
		}

		r.addHeader("X-RateLimit-Reset", r.intValue(reset))
	}
}

var headerStyles = [...]string{"ietf", "x-ratelimit", "reset-delta"}

// StyleHeader adds the header that names the styles of rate limit headers that
// a single check would get. Clients use it to build those headers from the
// results of a batch.
func (r *Reply) StyleHeader(h document.Headers) {
	from := len(r.values)
	for i, enabled := range [...]bool{h.IETF, h.XRateLimit, h.ResetDelta} {
		if enabled {
			r.values = append(append(r.values, headerStyles[i]...), ' ')
		}
	}
	r.addHeader("Rlnode-Headers", bytes.TrimSpace(r.values[from:]))
}

// AddRateHeaders adds the rate limit headers for a, including Retry-After, to
// an answer that the caller otherwise composes itself.
func (r *Reply) AddRateHeaders(a *limiter.Answer) {
	r.rateHeaders(a)
	if !a.Allowed && !a.Counted {
		r.retryAfter(a)
	}
}

// retryAfter adds Retry-After, unless waiting would not help.
func (r *Reply) retryAfter(a *limiter.Answer) {
	if t := a.TightestLimit(); t != nil && t.RetryAfter >= 0 {
		r.addHeader("Retry-After", r.intValue(max(1, seconds(t.RetryAfter))))
	}
}

func (r *Reply) intValue(v int64) []byte {
	from := len(r.values)
	r.values = strconv.AppendInt(r.values, v, 10)
	return r.values[from:]
}

// ietfHeaders adds the fields of draft-ietf-httpapi-ratelimit-headers-11. It
// leaves out the parameter t, the time until more is available, where that
// would be later than Retry-After, and everywhere if the check can never be
// allowed.
func (r *Reply) ietfHeaders(a *limiter.Answer) {
	from := len(r.values)
	for n, i := range r.order {
		if n > 0 {
			r.values = append(r.values, ", "...)
		}

		l := &a.Limits[i]
		if int(i) == a.TightestIndex {
			r.lastLimit.describe(l, a.Now)
			r.values = append(r.values, r.lastLimit.policy...)
			continue
		}

		shown := l.Limit.AdvertisedAt(a.Now)
		r.values = appendPolicy(r.values, l.Limit, &shown)
	}
	policy := r.values[from:len(r.values):len(r.values)]

	from = len(r.values)
	latest := int64(math.MaxInt64) // a bound on the parameter t
	retry := a.Limits[a.TightestIndex].RetryAfter
	switch {
	case retry == algorithms.Never:
		latest = 0
	case retry > 0:
		latest = seconds(retry)
	}

	for n, i := range r.order {
		l := &a.Limits[i]
		if n > 0 {
			r.values = append(r.values, ", "...)
		}
		r.values = appendQuoted(r.values, l.Limit.Name)
		r.values = AppendInt(r.values, ";r=", min(l.Remaining, maxFieldInteger))
		t := seconds(l.MoreAfter)
		if t > 0 && t <= latest {
			r.values = AppendInt(r.values, ";t=", t)
		}
	}

	r.addHeader("RateLimit-Policy", policy)
	r.addHeader("RateLimit", r.values[from:])
}

// appendPolicy appends an item of RateLimit-Policy.
func appendPolicy(b []byte, l *rules.Limit, shown *rules.AdvertisedLimit) []byte {
	b = appendQuoted(b, l.Name)
	q, w := shown.Quota()
	b = AppendInt(b, ";q=", min(q, maxFieldInteger))
	if shown.Slots {
		return append(b, `;qu="concurrent-requests"`...)
	}

	if l.UnitID != 0 { // requests are the default
		b = appendQuoted(append(b, ";qu="...), l.Unit)
	}
	return AppendInt(b, ";w=", w)
}

// rankLimits sets r.order to the limits that are not in shadow, tightest first,
// ties in document order.
func (r *Reply) rankLimits(a *limiter.Answer) {
	r.order = r.order[:0]
	limits := a.Limits
	for i := range limits {
		if limits[i].Rule.Shadow {
			continue
		}

		// The list is always sorted, so a tighter limit pushes out the last one.
		if len(r.order) < maxHeaderItems {
			r.order = append(r.order, int32(i))
		} else if limits[i].Tighter(&limits[r.order[maxHeaderItems-1]]) {
			r.order[maxHeaderItems-1] = int32(i)
		}

		for n := len(r.order) - 1; n > 0 && limits[r.order[n]].Tighter(&limits[r.order[n-1]]); n-- {
			r.order[n], r.order[n-1] = r.order[n-1], r.order[n]
		}
	}
}

// appendQuoted appends a structured field's string (RFC 9651): printable ASCII
// only; other bytes are percent-encoded.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
