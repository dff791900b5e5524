package httpd

import (
	"net"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter"
)

// request is the part of an HTTP request that the data plane uses. It is valid
// until the exchange ends.
type request struct {
	method        string
	path          string
	query         string // used only below authPrefix
	authorization string // the first Authorization header
	// authorizations is the number of Authorization headers, or 0 if they were not
	// counted because there is at most one.
	authorizations int
	tokenCache     *api.TokenCache // caches the token; nil: no cache
	header         headerLines     // nil: the fast path has already checked all headers
	peer           net.Addr
	conn           *api.Connection // nil: unknown
	onAdminPlane   bool            // it came to the admin plane, which holds no answer back
	isPipelined    bool            // another request on the connection has arrived, and would wait for this one
	// Both are set only if there is a tracer.
	traceparent, tracestate string
	body                    []byte
}

// headerLines returns the lines of a header by its canonical name, in order of
// arrival. The returned slice is valid until the next call, the lines until the
// request ends.
type headerLines interface{ PeekAll(name string) [][]byte }

// exchange is one request, its answer, and all state needed in between. Exchanges are pooled.
type exchange struct {
	request
	codec.Reply

	decoder codec.Decoder
	check   codec.Request
	answer  limiter.Answer
	// values holds attribute values derived from headers. It only grows by append,
	// so values already in use stay unchanged.
	values     []byte
	lines      []string // scratch space for the lines of a header
	stripe     *api.LatencyStripe
	wireAnswer []byte // the answer in wire format, if the fast path writes it

	// due is when to send the answer; zero: at once. delayAfterDue is what will be
	// left of the check's delay at due.
	due           time.Time
	delayAfterDue time.Duration
	prepaid       prepaid // what was taken for the delay
	// mustClose means that the connection must be closed after the answer.
	mustClose bool

	began time.Time // when the request had arrived; zero: not recorded

	token *api.Token // the caller's token; nil: none was required

	decided     bool         // answer holds this request's decision
	checks      int          // the number of checks in a batch
	batchMemory int64        // the memory that deciding a batch takes, in bytes
	charged     int64        // bytes charged to the budget; see size
	transfer    api.Transfer // a large body, or a large answer of the fast path
}

// size returns roughly how many bytes x holds, including its body and answer.
func (x *exchange) size() int64 {
	return x.batchMemory + int64(cap(x.request.body)+x.Size()+x.decoder.Size()+cap(x.values)+cap(x.wireAnswer))
}

// reset prepares x for the next request.
func (x *exchange) reset() {
	x.request = request{body: api.Reuse(x.request.body)}
	x.Reply.Reset()
	x.decoder.Reset()
	x.check.Reset()
	clear(x.lines)
	x.token = nil
	x.decided = false
	x.checks = 0
	x.batchMemory = 0
	x.values, x.wireAnswer = api.Reuse(x.values), api.Reuse(x.wireAnswer)
	x.began = time.Time{}
	x.due = time.Time{}
	x.delayAfterDue = 0
	x.mustClose = false
	x.prepaid = prepaid{}
}

// SetError makes e the answer to x. It goes out at once, even if the answer of the
// decision would have been held back.
func (x *exchange) SetError(e *api.Error) {
	x.Reply.SetError(e)
	x.due = time.Time{}
	x.delayAfterDue = 0
}

// compose turns x's decision into its answer; see codec.Reply.Compose.
func (x *exchange) compose(denyStatus int, forEndUser bool, node []byte) {
	x.decided = true
	x.Compose(&x.answer, &x.check, denyStatus, forEndUser, node)
}

// observe counts how long the answer to a check took.
func (x *exchange) observe() {
	took := time.Since(x.began)
	x.stripe.Observe(took)
	x.answer.CountLatency(took)
}

// delayAnswer schedules the answer of a check that was decided at now. Each
// limit holds it back for its delay, at most for the max_delay of its rule; the
// longest counts.
func (x *exchange) delayAnswer(now time.Time) {
	hold := time.Duration(0)
	for i := range x.answer.Limits {
		l := &x.answer.Limits[i]
		if !l.Rule.Shadow {
			hold = max(hold, min(l.Delay, l.Rule.MaxDelay))
		}
	}
	if hold > 0 {
		x.due, x.delayAfterDue = now.Add(hold), x.answer.Delay()-hold
	}
}
