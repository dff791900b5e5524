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
	stripe *api.LatencyStripe
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

// size returns roughly how many bytes e holds, including its request and answer.
func (e *exchange) size() int64 {
	return e.work + int64(cap(e.request.body)+e.Size()+e.scan.Size()+cap(e.values)+cap(e.wire))
}

// reset prepares e for the next request.
func (e *exchange) reset() {
	e.request = request{body: api.Reuse(e.request.body)}
	e.Reply.Reset()
	e.scan.Reset()
	e.check.Reset()
	clear(e.lines)
	e.token, e.decided, e.checks, e.work = nil, false, 0, 0
	e.values, e.wire = api.Reuse(e.values), api.Reuse(e.wire)
	e.began, e.due, e.after, e.hangUp = time.Time{}, time.Time{}, 0, false
}

// compose answers with e's decision; see codec.Reply.
func (e *exchange) compose(deny int, bare bool, node []byte) {
	e.decided = true
	e.Compose(&e.answer, &e.check, deny, bare, node)
}

// wait holds back the answer of a check that was decided just before now, for its delay, as far as the rules that delay
// it ask to hold answers back.
func (e *exchange) wait(now time.Time) {
	hold := time.Duration(0)
	for i := range e.answer.Limits {
		if l := &e.answer.Limits[i]; !l.Rule.Shadow {
			hold = max(hold, min(l.Delay, l.Rule.MaxDelay))
		}
	}
	if hold > 0 {
		e.due, e.after = now.Add(hold), e.answer.Delay()-hold
	}
}
