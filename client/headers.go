package client

import (
	"cmp"
	"math"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// The rate headers of a node, as http.Header spells them. The first two are
// from draft-ietf-httpapi-ratelimit-headers.
const (
	headerPolicy     = "Ratelimit-Policy"
	headerRateLimit  = "Ratelimit"
	headerLimit      = "X-Ratelimit-Limit"
	headerRemaining  = "X-Ratelimit-Remaining"
	headerReset      = "X-Ratelimit-Reset"
	headerRetryAfter = "Retry-After"
	// headerStyle is in the answer to a batch, where checks have no headers. It
	// says which headers the rules turn on.
	headerStyle = "Rlnode-Headers"
)

// maxFieldInteger is the largest integer of a structured field (RFC 9651).
const maxFieldInteger = 999_999_999_999_999

// maxHeaderItems bounds the limits that the headers name. Nodes have the same bound.
const maxHeaderItems = 64

// rateHeaders are header values; an empty one is not sent.
type rateHeaders struct {
	policy, rateLimit       string
	limit, remaining, reset string
}

func headersOf(h http.Header) rateHeaders {
	return rateHeaders{
		policy: h.Get(headerPolicy), rateLimit: h.Get(headerRateLimit),
		limit: h.Get(headerLimit), remaining: h.Get(headerRemaining), reset: h.Get(headerReset),
	}
}

// SetHeaders sets the headers that tell a caller what is left:
// RateLimit-Policy, RateLimit, X-RateLimit-Limit, X-RateLimit-Remaining and
// X-RateLimit-Reset. It sets those that the rules file turns on, as the node
// sent them, or made from the decision if it was in a batch, where answers have
// no headers. It also sets Retry-After (whole seconds, at least 1) if d refuses
// but a later check may be allowed. It sets no time at all if the check can
// never be allowed. All but Retry-After need Request.Headers.
func (d *Decision) SetHeaders(h http.Header) {
	for _, header := range [...]struct{ name, value string }{
		{headerPolicy, d.headers.policy},
		{headerRateLimit, d.headers.rateLimit},
		{headerLimit, d.headers.limit},
		{headerRemaining, d.headers.remaining},
		{headerReset, d.headers.reset},
	} {
		if header.value != "" {
			h.Set(header.name, header.value)
		}
	}

	if !d.Allowed && d.RetryAfter > 0 {
		h.Set(headerRetryAfter, strconv.FormatInt(ceil(d.RetryAfter, time.Second), 10))
	}
}

// MakeHeaders makes the headers that SetHeaders sets, for a decision that has
// none. ietf turns on RateLimit-Policy and RateLimit, which need Limits; x
// turns on X-RateLimit-…. With delta, X-RateLimit-Reset is in seconds from now,
// otherwise in Unix time.
func (d *Decision) MakeHeaders(ietf, x, delta bool) {
	if d.Rule == "" || d.Unlimited {
		return
	}

	if x {
		reset := ceil(d.ResetAfter, time.Second)
		if !delta {
			at := time.Now().Add(d.ResetAfter)
			reset = at.Unix()
			if at.Nanosecond() > 0 {
				reset++
			}
		}

		d.headers.limit = strconv.FormatInt(d.Limit, 10)
		d.headers.remaining = strconv.FormatInt(d.Remaining, 10)

		d.headers.reset = strconv.FormatInt(reset, 10)
		if d.RetryAfter == Never {
			d.headers.reset = ""
		}
	}

	if ietf {
		d.headers.policy, d.headers.rateLimit = ietfHeaders(d.Limits, d.RetryAfter)
	}
}

// quota returns the pair of RateLimit-Policy: q units per w seconds. It is
// Limit in Window, or, where that is under a second, what comes back in a
// second.
func (l *LimitDecision) quota() (q, w int64) {
	if l.Window >= time.Second || l.Rate.Per <= 0 {
		return l.Limit, max(1, ceil(l.Window, time.Second))
	}
	perSecond := new(big.Int).Mul(big.NewInt(l.Rate.Limit), big.NewInt(int64(time.Second)))
	perSecond.Quo(perSecond, big.NewInt(int64(l.Rate.Per)))
	if perSecond.IsInt64() {
		return perSecond.Int64(), 1
	}
	return maxFieldInteger, 1
}

// ietfHeaders returns RateLimit-Policy and RateLimit for all limits that may
// refuse, tightest first. It leaves out the parameter t, the time until more is
// available, where that would be later than Retry-After, and everywhere if
// retry is Never.
func ietfHeaders(limits []LimitDecision, retry time.Duration) (policy, rateLimit string) {
	order := make([]*LimitDecision, 0, len(limits))
	for i := range limits {
		if !limits[i].Shadow && !limits[i].Unlimited {
			order = append(order, &limits[i])
		}
	}

	slices.SortStableFunc(order, compareTightness)
	latest := int64(math.MaxInt64) // of t
	switch {
	case retry == Never:
		latest = 0
	case retry > 0:
		latest = ceil(retry, time.Second)
	}

	var q, r []byte
	for i, l := range order[:min(len(order), maxHeaderItems)] {
		if i > 0 {
			q, r = append(q, ", "...), append(r, ", "...)
		}

		q, r = appendQuoted(q, l.Name), appendQuoted(r, l.Name)
		quota, seconds := l.quota()
		q = strconv.AppendInt(append(q, ";q="...), min(quota, maxFieldInteger), 10)
		if l.Unit != "requests" {
			q = appendQuoted(append(q, ";qu="...), l.Unit)
		}

		q = strconv.AppendInt(append(q, ";w="...), seconds, 10)
		r = strconv.AppendInt(append(r, ";r="...), min(l.Remaining, maxFieldInteger), 10)
		t := ceil(l.MoreAfter, time.Second)
		if t > 0 && t <= latest {
			r = strconv.AppendInt(append(r, ";t="...), t, 10)
		}
	}

	return string(q), string(r)
}

// compareTightness is a sort order: first refusals, longest wait first; then
// the rest, smallest share left first.
func compareTightness(a, b *LimitDecision) int {
	switch {
	case a.Allowed != b.Allowed && b.Allowed:
		return -1
	case a.Allowed != b.Allowed:
		return 1
	case !a.Allowed:
		return cmp.Compare(uint64(b.RetryAfter), uint64(a.RetryAfter)) // as an unsigned number, Never is the longest
	}
	product := func(x, y int64) *big.Int { return new(big.Int).Mul(big.NewInt(x), big.NewInt(y)) }
	return product(a.Remaining, b.Limit).Cmp(product(b.Remaining, a.Limit))
}

// appendQuoted appends s as a string of a structured field (RFC 9651). Bytes
// other than printable ASCII are percent-encoded.
func appendQuoted(b []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	b = append(b, '"')
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '%', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}

	return append(b, '"')
}
