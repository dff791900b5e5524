package httpd

import (
	"net"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/limiter"
)

// request is the part of an HTTP request that the data plane uses. It is valid until the exchange ends.
type request struct {
	method        string
	path          string
	query         string // only below authPrefix; ignored elsewhere
	authorization string // the first Authorization header
	// authorizations is the number of Authorization headers, if they were counted.
	authorizations int
	known          *api.KnownToken // nil: look the token up
	header         headerLines     // nil: already checked, and plain
	peer           net.Addr
	// These two are read only with a tracer.
	traceparent, tracestate string
	body                    []byte
}

// headerLines finds the lines of a header by its canonical name, in order of arrival. The returned slice is valid until
// the next call, the lines as long as the request.
type headerLines interface{ PeekAll(name string) [][]byte }

// exchange is one request, its answer, and all state in between. Exchanges are pooled.
type exchange struct {
	request
	codec.Reply

	scan   codec.Decoder
	check  codec.Request
	answer limiter.Answer
	// values holds attributes made of headers. It grows only by append: values already handed out stay unchanged.
	values []byte
	lines  []string // the lines of a header
	stripe *latencyStripe
	wire   []byte // an answer in wire format, if the library does not write it

	// due is when to send the answer, zero: at once; after is what is left of its delay at due.
	due   time.Time
	after time.Duration
	// hangUp closes the connection after the answer.
	hangUp bool

	began time.Time // when the request had arrived; zero: not recorded

	token *api.Token // the request's token; nil: none was required

	decided  bool         // answer holds this request's decision
	checks   int          // the number of checks in a batch
	work     int64        // bytes that deciding a batch takes
	charged  int64        // bytes charged to the budget; see size
	arriving api.Transfer // the body, if it is large
}

// size returns roughly how many bytes x holds, including its request and answer.
func (x *exchange) size() int64 {
	return x.work + int64(cap(x.request.body)+x.Size()+x.scan.Size()+cap(x.values)+cap(x.wire))
}

// reset prepares x for the next request.
func (x *exchange) reset() {
	x.request = request{body: api.Kept(x.request.body)}
	x.Reply.Reset()
	x.scan.Reset()
	x.check.Reset()
	clear(x.lines)
	x.token, x.decided, x.checks, x.work = nil, false, 0, 0
	x.values, x.wire = api.Kept(x.values), api.Kept(x.wire)
	x.began, x.due, x.after, x.hangUp = time.Time{}, time.Time{}, 0, false
}

// conclude answers with x's decision; see codec.Reply.
func (x *exchange) conclude(deny int, bare bool, node []byte) {
	x.decided = true
	x.Conclude(&x.answer, &x.check, deny, bare, node)
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
