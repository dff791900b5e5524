package httpd

import (
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/api/rls"
	"github.com/rlnode/rlnode/internal/tracing"
)

const maxBatchBody = 8 << 20 // bytes

// handlers is the data plane apart from its HTTP server: routes and handlers.
type handlers struct {
	*api.Doors
	node      []byte          // the node's name as a JSON string
	tracer    *tracing.Tracer // nil: no tracing
	latency   api.Latency
	exchanges sync.Pool // of *exchange
	chunks    sync.Pool // of *chunk
	replies   sync.Pool // of *largeReply, with buffers that api.Reuse keeps
}

func newHandlers(doors *api.Doors, tracer *tracing.Tracer) *handlers {
	return &handlers{Doors: doors, node: codec.AppendString(nil, doors.Node), tracer: tracer}
}

// route is a path of the data plane and its handler.
type route struct {
	path    string
	prefix  string // instead of path: the route matches all paths with this prefix; empty: only path
	allow   string // allowed methods; empty: any
	maxBody int
	// bodyIgnored means that the body is discarded. If it exceeds maxBody, the
	// request is answered and the connection closed.
	bodyIgnored bool
	form        *codec.Form // the body is parsed as this form before serve is called; nil: serve parses it
	serve       func(*handlers, *exchange) *api.Error
	need        api.Scope // the caller's token must have one of these
}

// dataRoutes lists all routes of the data plane, busiest first.
var dataRoutes = []route{
	{path: "/v1/check", allow: "POST", maxBody: codec.MaxBody, form: codec.CheckForm,
		serve: (*handlers).check, need: api.ScopeCheck},
	{path: authPrefix + "{profile}", prefix: authPrefix, maxBody: maxAuthBody, bodyIgnored: true,
		serve: (*handlers).auth, need: api.ScopeCheck},
	{path: "/v1/check/batch", allow: "POST", maxBody: maxBatchBody, serve: (*handlers).batch, need: api.ScopeCheck},
	{path: "/v1/reserve", allow: "POST", maxBody: codec.MaxBody, form: codec.ReserveForm,
		serve: (*handlers).check, need: api.ScopeCheck},
	{path: "/v1/settle", allow: "POST", maxBody: codec.MaxBody, form: codec.SettleForm,
		serve: (*handlers).settleReservation, need: api.ScopeCheck},
	{path: "/v1/acquire", allow: "POST", maxBody: codec.MaxBody, form: codec.AcquireForm,
		serve: (*handlers).acquireSlot, need: api.ScopeCheck},
	{path: "/v1/renew", allow: "POST", maxBody: codec.MaxBody, form: codec.RenewForm,
		serve: (*handlers).renewSlot, need: api.ScopeCheck},
	{path: "/v1/release", allow: "POST", maxBody: codec.MaxBody, form: codec.ReleaseForm,
		serve: (*handlers).releaseSlot, need: api.ScopeCheck},
	{path: "/v1/adjust", allow: "POST", maxBody: codec.MaxBody, form: codec.AdjustForm,
		serve: answerUsage(api.Decider.Adjust), need: api.ScopeAdjust},
	{path: "/v1/usage", allow: "POST", maxBody: codec.MaxBody, form: codec.UsageForm,
		serve: answerUsage(api.Decider.Usage), need: api.ScopeCheck},
	{path: "/v1/reset", allow: "POST", maxBody: codec.MaxBody, form: codec.ResetForm,
		serve: answerUsage(api.Decider.Reset), need: api.ScopeAdjust},
	{path: "/json", allow: "POST", maxBody: rls.MaxMessage, serve: (*handlers).envoy, need: api.ScopeCheck},
	{path: "/healthz", allow: "GET, HEAD", maxBody: codec.MaxBody, serve: (*handlers).healthz, need: api.Anyone},
	{path: "/readyz", allow: "GET, HEAD", maxBody: codec.MaxBody, serve: (*handlers).readyz, need: api.Anyone},
	{path: "/", allow: "GET, HEAD", maxBody: codec.MaxBody, serve: (*handlers).welcome, need: api.Anyone},
}

func routeOf(path string) *route {
	for i := range dataRoutes {
		r := &dataRoutes[i]
		if r.path == path || r.prefix != "" && strings.HasPrefix(path, r.prefix) {
			return r
		}
	}
	return nil
}

// bodyLimit returns the maximum size of a body, in bytes. r may be nil: the body is then discarded.
func (r *route) bodyLimit() int {
	if r == nil {
		return codec.MaxBody
	}
	return r.maxBody
}

// getExchange returns an exchange for a request that has arrived, from the pool
// or a new one. It counts the request now, so that a caller that has the answer
// finds its request counted.
func (h *handlers) getExchange() *exchange {
	x, ok := h.exchanges.Get().(*exchange)
	if !ok {
		x = &exchange{stripe: h.latency.Stripe()}
	}
	if !h.charge(x) { // an earlier request left large buffers behind
		x = &exchange{stripe: x.stripe}
	}

	x.stripe.Count()
	return x
}

// putExchange returns x to the pool.
func (h *handlers) putExchange(x *exchange) {
	if x.charged > 0 {
		h.Budget.Give(x.charged)
		x.charged = 0
	}
	x.reset()
	h.exchanges.Put(x)
}

// charge charges the budget for the growth of x's buffers since the last
// charge. It reports false if the budget has no room.
func (h *handlers) charge(x *exchange) bool {
	return x.size() <= api.UnchargedBytes || h.chargeFor(x, 0)
}

// chargeFor is like charge, for buffers that are about to grow by extra bytes.
func (h *handlers) chargeFor(x *exchange, extra int) bool {
	size := x.size() + int64(extra)
	if size <= api.UnchargedBytes || size <= x.charged {
		return true
	}
	if !h.Budget.Take(size - x.charged) {
		return false
	}
	x.charged = size
	return true
}

// admit returns the route for x and sets its token. It needs only the method,
// path and headers, so a request can be refused before its body is read.
func (h *handlers) admit(x *exchange) (*route, *api.Error) {
	r := routeOf(x.path)
	switch {
	case x.header != nil && (r == nil || r.prefix != authPrefix) && fromPage(x.header):
		// Requests below authPrefix are exempt: proxies forward their users' headers there.
		return nil, api.Errorf(api.CrossOrigin,
			"the data plane is not for pages in a browser: the request has the header Origin, or a Sec-Fetch-Site of another site")
	case r == nil:
		return nil, api.Errorf(api.NotFound, "there is nothing at %s", api.Excerpt(strings.ToValidUTF8(x.path, "�")))
	case x.method != r.allow && r.allow != "" && !slices.Contains(strings.Split(r.allow, ", "), x.method):
		e := api.Errorf(api.MethodNotAllowed, "%s takes %s", r.path, r.allow)
		e.Allow = r.allow
		return nil, e
	}

	token, e := h.Authorize(x.authorization, x.authorizations, r.need, x.tokenCache)
	if e != nil {
		return nil, e
	}

	x.token = token
	if token != nil && x.conn != nil {
		x.conn.Trust()
	}

	return r, nil
}

// serve answers x once its body has been received.
func (h *handlers) serve(r *route, x *exchange) {
	defer h.recover(x)
	if x.began.IsZero() {
		x.began = time.Now()
	}
	if e := h.dispatch(r, x); e != nil {
		x.SetError(e)
	}
	if h.tracer != nil {
		h.trace(r, x)
	}
}

// dispatch runs r's handler on x. Probes are answered at any time.
func (h *handlers) dispatch(r *route, x *exchange) *api.Error {
	if r.need != api.Anyone {
		if e := h.ChecksError(); e != nil {
			return e
		}
	}
	if r.form != nil {
		if e := x.decoder.Read(x.request.body, r.form, &x.check); e != nil {
			return e
		}
	}
	return r.serve(h, x)
}

// recover turns a panic into an internal error that reveals nothing about it.
func (h *handlers) recover(x *exchange) {
	if v := recover(); v != nil {
		h.Panics.Add(1)
		h.Logger.Error("panic in a handler", "path", x.path, "panic", v, "stack", string(debug.Stack()))
		x.SetError(api.InternalError())
		x.mustClose = true
	}
}

// check answers POST /v1/check, and POST /v1/reserve: a check whose cost is an estimate.
func (h *handlers) check(x *exchange) *api.Error {
	if e := x.token.NamespaceError(&x.check.Query); e != nil {
		return e
	}
	if e := x.check.RequireKey(h.Decider.Rules()); e != nil {
		return e
	}
	if x.onAdminPlane && x.check.Wait {
		return api.Errorf(api.BadValue, "wait: the admin plane holds no answer back; ask the data plane")
	}

	x.check.AwaitsLoan = !x.isPipelined
	x.check.Waits = x.check.Wait && !x.check.Reserving
	if err := h.checkOrReserve(x); err != nil {
		return h.explain(err)
	}

	if x.answer.Allowed && x.check.Wait && !x.check.Peeks() {
		x.delayAnswer(time.Now())
		h.recordAdvance(x)
	}

	x.compose(0, false, h.node)
	x.observe()
	return nil
}

// explain turns an error of the decider into an answer. It logs internal errors.
func (h *handlers) explain(err error) *api.Error {
	e := api.AsError(err)
	if e.Code == api.Internal {
		h.Logger.Error("check not decided", "error", err)
	}
	return e
}

// healthz answers GET /healthz: the process is alive.
func (h *handlers) healthz(x *exchange) *api.Error {
	x.StartJSON(200)
	x.Body = append(x.Body, h.HealthReport()...)
	return nil
}

// welcome answers GET / with what this server is, and where its documentation is.
func (h *handlers) welcome(x *exchange) *api.Error {
	x.StartJSON(200)
	x.Body = append(append(append(x.Body, `{"node":`...), h.node...),
		`,"what":"the data plane of rlnode, a rate limiter: POST /v1/check asks whether something may happen now","docs":"/openapi.yaml and /ui/ of the admin plane, and https://github.com/rlnode/rlnode"}`...)
	return nil
}

// readyz answers GET /readyz: whether the node takes checks.
func (h *handlers) readyz(x *exchange) *api.Error {
	if e := h.ProbeError(); e != nil {
		return e
	}
	return h.healthz(x)
}
