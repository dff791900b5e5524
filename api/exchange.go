package api

import (
	"net"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

const (
	typeJSON    = "application/json"
	typeProblem = "application/problem+json"
	// keptBuffer is the largest buffer, in bytes, that is kept from request to request.
	keptBuffer = 64 << 10
)

// request is what the data plane looks at of an HTTP request. It holds until the exchange is over.
type request struct {
	method        string
	path          string
	query         string // of what is below authPrefix; elsewhere no query is looked at
	authorization string // the first header Authorization
	// authorizations is how many there are, if they were counted.
	authorizations int
	known          *knownToken // nil: the token is looked up
	header         headerLines // nil: read already, and plain
	peer           net.Addr
	// Read only where there is a tracer.
	traceparent, tracestate string
	body                    []byte
}

// headerLines finds the lines of a header, given its name in canonical case, in the order in which they came. What is
// returned holds until the next call, the lines themselves as long as the request.
type headerLines interface{ PeekAll(name string) [][]byte }

// response is what the data plane answers.
type response struct {
	status      int
	contentType string
	headers     []header
	body        []byte
	// due is when the answer is sent, zero: at once; after, what is left of its delay then.
	due   time.Time
	after time.Duration
	// hangUp closes the connection after the answer.
	hangUp bool
}

type header struct {
	name  string // in canonical case
	value []byte
}

func (r *response) set(name string, value []byte) {
	r.headers = append(r.headers, header{name, value})
}

// exchange is one request, its answer, and all that is needed on the way. Exchanges are pooled.
type exchange struct {
	request
	response

	scan   scanner
	check  checkRequest
	answer limiter.Answer
	// values holds the headers' values. It grows only by append: values already handed out stay as they are.
	values []byte
	order  []int32  // of answer.Limits, tightest first
	spare  []byte   // a sentence before it is quoted
	lines  []string // of a header
	stripe *latencyStripe
	chunk  chunk  // of a batch
	wire   []byte // an answer as it goes over the wire, where the library does not write it

	began time.Time // when the request was there; zero: not noted

	token *token // that the request came with; nil: none was asked for

	decided bool // answer holds the decision of this request
	checks  int  // of a batch
}

// reset makes x ready for the next request.
func (x *exchange) reset() {
	x.request = request{body: kept(x.request.body)}
	x.response = response{headers: x.headers[:0], body: kept(x.response.body)}
	x.scan.reset(nil)
	x.scan.scratch = kept(x.scan.scratch)
	x.check.reset()
	clear(x.lines)
	x.chunk.reset()
	x.token, x.decided, x.checks = nil, false, 0
	x.values = kept(x.values)
	x.spare = kept(x.spare)
	x.wire, x.began = kept(x.wire), time.Time{}
}

// kept is b emptied for the next use, or nothing when it grew too large to be kept.
func kept(b []byte) []byte {
	if cap(b) > keptBuffer {
		return nil
	}
	return b[:0]
}

// json begins an answer of JSON.
func (x *exchange) json(status int) {
	x.status, x.contentType = status, typeJSON
}

// refuse answers with an error.
func (x *exchange) refuse(e *Error) {
	x.status, x.contentType = e.Status(), typeProblem
	x.response.body = appendProblem(x.response.body[:0], e)
	x.headers = x.headers[:0]
	switch e.Code {
	case Unauthorized:
		x.set("WWW-Authenticate", []byte(`Bearer realm="rlnode"`))
	case MethodNotAllowed:
		x.set("Allow", []byte(e.allow))
	}
}
