package api

import (
	"net"
	"time"

	"github.com/rlnode/rlnode/limiter"
)

const (
	typeJSON    = "application/json"
	typeProblem = "application/problem+json"
	// keptBuffer bounds, in bytes, the buffers that are kept from request to request.
	keptBuffer = 64 << 10
)

// request is the part of an HTTP request that the data plane uses. It is valid until the exchange ends.
type request struct {
	method        string
	path          string
	query         string // only below authPrefix; ignored elsewhere
	authorization string // the first Authorization header
	// authorizations is the number of Authorization headers, if they were counted.
	authorizations int
	known          *knownToken // nil: look the token up
	header         headerLines // nil: already checked, and plain
	peer           net.Addr
	// These two are read only with a tracer.
	traceparent, tracestate string
	body                    []byte
}

// headerLines finds the lines of a header by its canonical name, in order of arrival. The returned slice is valid until
// the next call, the lines as long as the request.
type headerLines interface{ PeekAll(name string) [][]byte }

// response is what the data plane answers.
type response struct {
	status      int
	contentType string
	headers     []header
	body        []byte
	// due is when to send the answer, zero: at once; after is what is left of its delay at due.
	due   time.Time
	after time.Duration
	// hangUp closes the connection after the answer.
	hangUp bool
}

type header struct {
	name  string // in canonical form
	value []byte
}

func (r *response) set(name string, value []byte) {
	r.headers = append(r.headers, header{name, value})
}

// exchange is one request, its answer, and all state in between. Exchanges are pooled.
type exchange struct {
	request
	response

	scan   scanner
	check  checkRequest
	answer limiter.Answer
	// values holds the values of headers. It grows only by append: values already handed out stay unchanged.
	values []byte
	order  []int32  // indices into answer.Limits, tightest first
	spare  []byte   // scratch space for a sentence before it is quoted
	lines  []string // the lines of a header
	stripe *latencyStripe
	wire   []byte // an answer in wire format, if the library does not write it

	began time.Time // when the request had arrived; zero: not recorded

	token *token // the request's token; nil: none was required

	decided  bool     // answer holds this request's decision
	checks   int      // the number of checks in a batch
	work     int64    // bytes that deciding a batch takes
	charged  int64    // bytes charged to the budget; see size
	arriving transfer // the body, if it is large
}

// size returns roughly how many bytes x holds, including its request and answer.
func (x *exchange) size() int64 {
	return x.work + int64(cap(x.request.body)+cap(x.response.body)+cap(x.scan.scratch)+cap(x.values)+cap(x.spare)+cap(x.wire))
}

// reset prepares x for the next request.
func (x *exchange) reset() {
	x.request = request{body: kept(x.request.body)}
	x.response = response{headers: x.headers[:0], body: kept(x.response.body)}
	x.scan.reset(nil)
	x.scan.scratch = kept(x.scan.scratch)
	x.check.reset()
	clear(x.lines)
	x.token, x.decided, x.checks, x.work = nil, false, 0, 0
	x.values = kept(x.values)
	x.spare = kept(x.spare)
	x.wire, x.began = kept(x.wire), time.Time{}
}

// kept returns b emptied for reuse, or nil if it is too large to keep.
func kept(b []byte) []byte {
	if cap(b) > keptBuffer {
		return nil
	}
	return b[:0]
}

// json starts a JSON answer.
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
