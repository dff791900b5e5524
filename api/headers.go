package api

import (
	"bytes"
	"math"
	"strconv"

	"github.com/rlnode/rlnode/rules"
)

// maxHeaderItems bounds the limits named in RateLimit and RateLimit-Policy, so that an answer's headers are small
// enough for every client. The tightest limits come first.
const maxHeaderItems = 64

// rateHeaders adds the headers that say what is left.
func (x *exchange) rateHeaders() {
	a := &x.answer
	t := a.TightestLimit()
	if t == nil {
		return
	}
	if a.Set.Headers.IETF {
		x.rank()
		x.ietfHeaders()
	}
	if a.Set.Headers.XRateLimit {
		x.set("X-RateLimit-Limit", x.intValue(t.Limit.UndividedCapacity()))
		x.set("X-RateLimit-Remaining", x.intValue(t.Remaining))
		reset := seconds(t.ResetAfter)
		if !a.Set.Headers.ResetDelta {
			// Round the point in time up, not the duration until then.
			at := a.Now.Wall + int64(t.ResetAfter)
			if at < 0 {
				at = math.MaxInt64 // a debt of centuries
			}
			if reset = at / 1e9; at%1e9 > 0 {
				reset++
			}
		}
		x.set("X-RateLimit-Reset", x.intValue(reset))
	}
}

var headerStyles = [...]string{"ietf", "x-ratelimit", "reset-delta"}

// styleHeader says which headers a single check would get, for clients that make them from the results of a batch.
func (x *exchange) styleHeader(h rules.Headers) {
	from := len(x.values)
	for i, on := range [...]bool{h.IETF, h.XRateLimit, h.ResetDelta} {
		if on {
			x.values = append(append(x.values, headerStyles[i]...), ' ')
		}
	}
	x.set("Rlnode-Headers", bytes.TrimSpace(x.values[from:]))
}

// retryAfter adds Retry-After to a refusal that will end.
func (x *exchange) retryAfter() {
	if t := x.answer.TightestLimit(); t != nil && t.RetryAfter >= 0 {
		x.set("Retry-After", x.intValue(max(1, seconds(t.RetryAfter))))
	}
}

func (x *exchange) intValue(v int64) []byte {
	from := len(x.values)
	x.values = strconv.AppendInt(x.values, v, 10)
	return x.values[from:]
}

func (x *exchange) ietfHeaders() {
	from := len(x.values)
	for n, i := range x.order {
		l := &x.answer.Limits[i]
		if n > 0 {
			x.values = append(x.values, ", "...)
		}
		x.values = appendQuoted(x.values, l.Limit.Name)
		x.values = appendInt(x.values, ";q=", l.Limit.UndividedCapacity())
		x.values = appendInt(x.values, ";w=", max(1, seconds(l.Limit.WindowAt(x.answer.Now))))
	}
	policy := x.values[from:len(x.values):len(x.values)]
	from = len(x.values)
	for n, i := range x.order {
		l := &x.answer.Limits[i]
		if n > 0 {
			x.values = append(x.values, ", "...)
		}
		x.values = appendQuoted(x.values, l.Limit.Name)
		x.values = appendInt(x.values, ";r=", l.Remaining)
		x.values = appendInt(x.values, ";t=", max(1, seconds(l.ResetAfter)))
	}
	x.set("RateLimit-Policy", policy)
	x.set("RateLimit", x.values[from:])
}

// rank sorts the limits that are not in shadow, tightest first, ties in document order.
func (x *exchange) rank() {
	x.order = x.order[:0]
	limits := x.answer.Limits
	for i := range limits {
		if limits[i].Rule.Shadow {
			continue
		}
		if len(x.order) < maxHeaderItems {
			x.order = append(x.order, int32(i))
		} else if limits[i].Tighter(&limits[x.order[maxHeaderItems-1]]) {
			x.order[maxHeaderItems-1] = int32(i)
		}
		for n := len(x.order) - 1; n > 0 && limits[x.order[n]].Tighter(&limits[x.order[n-1]]); n-- {
			x.order[n], x.order[n-1] = x.order[n-1], x.order[n]
		}
	}
}

// appendQuoted appends a structured field's string (RFC 9651): printable ASCII only; other bytes are percent-encoded.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
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
