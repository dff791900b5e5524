package api

import (
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/tracing"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

const (
	maxCheckBody = 64 << 10 // bytes
	maxBatchBody = 8 << 20
)

// Decider decides checks. *limiter.Limiter is one.
type Decider interface {
	// Check decides q now and keeps nothing of q. The error wraps limiter.ErrUnknownRule or limiter.ErrKey.
	Check(q *limiter.Query, a *limiter.Answer) error
	// CheckAll decides several queries in order, each as Check does. answers and errs have an element for each.
	CheckAll(queries []*limiter.Query, answers []*limiter.Answer, errs []error)
	// Reserve decides q as Check does. If q is allowed, id names the reservation for Settle.
	Reserve(q *limiter.Query, ttl time.Duration, a *limiter.Answer) (id string, err error)
	// Settle replaces a reservation's estimate by the real costs, once.
	Settle(id string, costs []limiter.UnitCost) (*limiter.Settlement, error)
	// Adjust adds n to a subject's usage of a rule's limits in requests. A request id that was seen before does not add
	// again.
	Adjust(rule string, key []string, n int64, request string) (*limiter.Usage, error)
	// Rules returns the rules in force; nil until there are any.
	Rules() *rules.Set
}

// dataPlane answers checks.
type dataPlane struct {
	decider   Decider
	node      []byte  // the node's name as a JSON string
	tokens    *tokens // nil: no token is required
	readiness *readiness
	health    func() []byte
	log       *slog.Logger
	tracer    *tracing.Tracer // nil: no tracing
	slow      time.Duration   // see Config
	latency   latency
	budget    budget
	exchanges sync.Pool // of *exchange
	chunks    sync.Pool // of *chunk
	panics    atomic.Int64
}

// route is one address of the data plane.
type route struct {
	path    string
	below   string // instead of path: a prefix that paths must have; empty: none
	allow   string // methods; empty: any
	maxBody int
	// bodyIgnored: the body is discarded. One that is larger than maxBody ends the connection, not the request.
	bodyIgnored bool
	form        *form // the form that the body is parsed as before serve; nil: serve parses it
	serve       func(*dataPlane, *exchange) *Error
	need        Scope // of the caller's token
}

// dataRoutes are all addresses of the data plane, the busiest first.
var dataRoutes = []route{
	{path: "/v1/check", allow: "POST", maxBody: maxCheckBody, form: checkForm, serve: (*dataPlane).check, need: ScopeCheck},
	{path: authPrefix + "{profile}", below: authPrefix, maxBody: maxAuthBody, bodyIgnored: true, serve: (*dataPlane).auth, need: ScopeCheck},
	{path: "/v1/check/batch", allow: "POST", maxBody: maxBatchBody, serve: (*dataPlane).batch, need: ScopeCheck},
	{path: "/v1/reserve", allow: "POST", maxBody: maxCheckBody, form: reserveForm, serve: (*dataPlane).check, need: ScopeCheck},
	{path: "/v1/settle", allow: "POST", maxBody: maxCheckBody, form: settleForm, serve: (*dataPlane).settleReservation, need: ScopeCheck},
	{path: "/v1/adjust", allow: "POST", maxBody: maxCheckBody, form: adjustForm, serve: (*dataPlane).adjust, need: ScopeAdjust},
	{path: "/healthz", allow: "GET, HEAD", maxBody: maxCheckBody, serve: (*dataPlane).healthz, need: anyone},
	{path: "/readyz", allow: "GET, HEAD", maxBody: maxCheckBody, serve: (*dataPlane).readyz, need: anyone},
}

func routeOf(path string) *route {
	for i := range dataRoutes {
		if r := &dataRoutes[i]; r.path == path || r.below != "" && strings.HasPrefix(path, r.below) {
			return r
		}
	}
	return nil
}

// bodyLimit is the maximum size of a body, in bytes; without a route the body is only discarded.
func (r *route) bodyLimit() int {
	if r == nil {
		return maxCheckBody
	}
	return r.maxBody
}

func (p *dataPlane) acquire() *exchange {
	x, ok := p.exchanges.Get().(*exchange)
	if !ok {
		return &exchange{stripe: p.latency.stripe()}
	}
	if !p.charge(x) { // a large check, left over from an earlier request
		x = &exchange{stripe: x.stripe}
	}
	return x
}

func (p *dataPlane) release(x *exchange) {
	if x.charged > 0 {
		p.budget.give(x.charged)
		x.charged = 0
	}
	x.reset()
	p.exchanges.Put(x)
}

// charge takes from the budget what x's buffers have grown by since the last charge. It reports false if the budget has
// no room.
func (p *dataPlane) charge(x *exchange) bool { return x.size() <= freeBytes || p.chargeFor(x, 0) }

// chargeFor is charge for buffers that will grow by more bytes.
func (p *dataPlane) chargeFor(x *exchange, more int) bool {
	size := x.size() + int64(more)
	if size <= freeBytes || size <= x.charged {
		return true
	}
	if !p.budget.take(size - x.charged) {
		return false
	}
	x.charged = size
	return true
}

// admit finds the route for x from its method, path and headers alone, so an error precedes reading the body.
func (p *dataPlane) admit(x *exchange) (*route, *Error) {
	r := routeOf(x.path)
	switch {
	case x.header != nil && (r == nil || r.below != authPrefix) && fromPage(x.header):
		// Proxies ask below authPrefix, and pass on what their users' browsers sent.
		return nil, errorf(CrossOrigin, "the data plane is not for pages in a browser: the request has the header Origin, or a Sec-Fetch-Site of another site")
	case r == nil:
		return nil, errorf(NotFound, "there is nothing at %s", excerpt(strings.ToValidUTF8(x.path, "�")))
	case x.method != r.allow && r.allow != "" && !allows(r.allow, x.method):
		e := errorf(MethodNotAllowed, "%s takes %s", r.path, r.allow)
		e.allow = r.allow
		return nil, e
	}
	who, e := p.tokens.permit(x.authorization, x.authorizations, r.need, x.known)
	if e != nil {
		return nil, e
	}
	x.token = who
	return r, nil
}

// serve answers x, whose body has been received.
func (p *dataPlane) serve(r *route, x *exchange) {
	defer p.recover(x)
	if x.began.IsZero() {
		x.began = time.Now()
	}
	if e := p.dispatch(r, x); e != nil {
		x.Refuse(e)
	}
	if p.tracer != nil {
		p.trace(r, x)
	}
}

// dispatch runs r's handler on x. Probes are answered at any time.
func (p *dataPlane) dispatch(r *route, x *exchange) *Error {
	if r.need != anyone {
		if e := p.readiness.checks(); e != nil {
			return e
		}
	}
	if r.form != nil {
		if e := x.scan.Read(x.request.body, r.form, &x.check); e != nil {
			return e
		}
	}
	return r.serve(p, x)
}

// recover turns a panic into an answer that reveals nothing about it.
func (p *dataPlane) recover(x *exchange) {
	if v := recover(); v != nil {
		p.panics.Add(1)
		p.log.Error("panic in a handler", "path", x.path, "panic", v, "stack", string(debug.Stack()))
		x.Refuse(errInternal())
		x.hangUp = true
	}
}

// allows reports whether method is in the list allow.
func allows(allow, method string) bool {
	for one := range strings.SplitSeq(allow, ", ") {
		if one == method {
			return true
		}
	}
	return false
}

// check answers POST /v1/check, and POST /v1/reserve: a check whose cost is an estimate.
func (p *dataPlane) check(x *exchange) *Error {
	if e := x.check.NeedsKey(p.decider.Rules()); e != nil {
		return e
	}
	if err := p.checkOrReserve(x); err != nil {
		return p.explain(err)
	}
	if x.answer.Allowed && x.check.wait && !x.check.Peek {
		x.wait(time.Now())
	}
	x.conclude(statusRefused, false, p.node)
	x.stripe.observe(time.Since(x.began))
	return nil
}

// explain turns the decider's error into an answer.
func (p *dataPlane) explain(err error) *Error {
	e := AsError(err)
	if e.Code == Internal {
		p.log.Error("check not decided", "error", err)
	}
	return e
}

// healthz answers that the process is alive.
func (p *dataPlane) healthz(x *exchange) *Error {
	x.JSON(200)
	x.Body = append(x.Body, p.health()...)
	return nil
}

// readyz answers whether the node takes checks.
func (p *dataPlane) readyz(x *exchange) *Error {
	if e := p.readiness.probe(); e != nil {
		return e
	}
	return p.healthz(x)
}
