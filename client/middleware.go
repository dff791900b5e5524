package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// The defaults of MiddlewareOptions.
const (
	DefaultMaxDelay = 30 * time.Second
	DefaultMaxHeld  = 10_000
)

// MiddlewareOptions configures Middleware. All fields are optional: by default,
// every rule that matches the attributes ip, endpoint and method applies.
type MiddlewareOptions struct {
	// Rule limits the check to this rule.
	Rule string
	// Key returns the subject: a value for each key attribute of Rule. If Rule has
	// none, it returns an empty slice, not nil. With Key, only Rule applies, and
	// Attributes is not called. Nil: the subject follows from the attributes.
	Key func(*http.Request) []string
	// MissingKey says what happens to a request for which Key returns nil, or an
	// empty value, as for callers without an API key: MissingRefuse (the default)
	// answers 400 with the code missing-key, MissingError calls OnError and answers
	// 500, MissingAllow lets it pass without a check. Any other text, such as
	// "anonymous", is used in place of what is missing.
	MissingKey string
	// Attributes returns the attributes that rules match. Nil: RequestAttributes with TrustedHops.
	Attributes func(*http.Request) map[string]string
	// TrustedHops is the number of proxies between clients and this server; see Address.
	TrustedHops int
	// Cost returns the costs per unit, as in Request.Costs. Nil, or a nil result:
	// the cost that the rules set, or 1 request.
	Cost func(*http.Request) map[string]int64
	// Request returns the whole check, for instance one with inline limits. Rule,
	// Key, Attributes, Cost and Request.Headers are then ignored. Nil: the check is
	// made from those.
	Request func(*http.Request) Request
	// Skip reports whether to let a request pass without a check. Nil: never.
	Skip func(*http.Request) bool
	// Slots acquires slots in place of a check, and holds them for the length of
	// the response: they are released when next returns or panics, and when the
	// caller hangs up. The request's context ends, too, if they are lost. The
	// Checker must be an Acquirer.
	Slots bool
	// SlotTTL is how long slots are held without being renewed. 0: as long as the rules say.
	SlotTTL time.Duration

	// OnRefuse answers a refused request; the headers are already set. If
	// d.DecidedBy is ByError, no node decided, and d.Reason says why the request is
	// refused. Nil: Refuse.
	OnRefuse func(w http.ResponseWriter, r *http.Request, d Decision)
	// OnError is called if no node decided, whether the request passes or not. Nil: no callback.
	OnError func(r *http.Request, err error)

	// IgnoreDelay passes delayed requests on at once. Decision.Delay still has the delay.
	IgnoreDelay bool
	// MaxDelay bounds how long a request is held. A request with a longer delay is
	// refused, with the delay as RetryAfter; its cost is not given back. 0:
	// DefaultMaxDelay.
	MaxDelay time.Duration
	// MaxHeld bounds the requests that are held at once; any more are refused in
	// the same way. 0: DefaultMaxHeld.
	MaxHeld int
	// NoHeaders suppresses all rate headers except Retry-After.
	NoHeaders bool
}

// Checker decides checks. *Client is one, and so is *node.Node, a node embedded in this process.
type Checker interface {
	// Check decides q as Client.Check does.
	Check(ctx context.Context, q Request) (Decision, error)
}

// Acquirer acquires slots. *Client is one, and so is *node.Node.
type Acquirer interface {
	// Acquire takes slots as Client.Acquire does.
	Acquire(ctx context.Context, q Request, ttl time.Duration) (*Slot, error)
}

// Middleware checks each request before it reaches next. It sets the rate
// headers that the rules turn on in every answer. A refused request gets 429
// and a denied one 403, unless the rule's refusal or OnRefuse answers
// differently. A delayed request is held for its delay, and dropped if its
// context ends first. FromContext returns the Decision of a request that
// passed.
//
// It panics if Key is set without Rule, or Slots without an Acquirer.
func Middleware(c Checker, o MiddlewareOptions) func(next http.Handler) http.Handler {
	if o.Key != nil && o.Rule == "" {
		panic("client: MiddlewareOptions.Key needs Rule")
	}

	_, acquires := c.(Acquirer)
	if o.Slots && !acquires {
		panic("client: MiddlewareOptions.Slots needs an Acquirer")
	}
	if o.Attributes == nil {
		o.Attributes = RequestAttributes(o.TrustedHops)
	}
	if o.OnRefuse == nil {
		o.OnRefuse = Refuse
	}
	if expecter, ok := c.(interface{ ExpectRules(names ...string) }); ok {
		expecter.ExpectRules(o.Rule)
	}

	o.MaxDelay = cmp.Or(o.MaxDelay, DefaultMaxDelay)
	o.MaxHeld = cmp.Or(o.MaxHeld, DefaultMaxHeld)
	return func(next http.Handler) http.Handler {
		return &guard{checker: c, options: o, next: next}
	}
}

// RequestAttributes returns a function that extracts the attributes ip (see
// Address), endpoint (the path, without the query) and method from a request.
// Wrap it to add more attributes.
func RequestAttributes(trustedHops int) func(*http.Request) map[string]string {
	address := Address(trustedHops)
	return func(r *http.Request) map[string]string {
		return map[string]string{"ip": address(r), "endpoint": r.URL.Path, "method": r.Method}
	}
}

// decisionKey is the context key for the Decision.
type decisionKey struct{}

// NewContext returns a context with d, for FromContext.
func NewContext(ctx context.Context, d Decision) context.Context {
	return context.WithValue(ctx, decisionKey{}, d)
}

// FromContext returns the Decision that let a request pass Middleware, or a
// call pass an interceptor.
func FromContext(ctx context.Context) (Decision, bool) {
	d, ok := ctx.Value(decisionKey{}).(Decision)
	return d, ok
}

// guard is the handler that Middleware returns.
type guard struct {
	checker Checker
	options MiddlewareOptions
	next    http.Handler
	held    atomic.Int64 // requests held for their delay
}

// ServeHTTP checks r, and passes it to the next handler if it is allowed.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o := &g.options
	if o.Skip != nil && o.Skip(r) {
		g.next.ServeHTTP(w, r)
		return
	}

	q, err := g.request(r)
	if err != nil && o.MissingKey == MissingAllow {
		g.next.ServeHTTP(w, r)
		return
	}
	if err != nil {
		g.refuseMissingKey(w, r, err)
		return
	}

	d, slot, err := Decide(r.Context(), g.checker, q, o.Slots, o.SlotTTL)
	if slot != nil {
		defer slot.CloseSoon()
		defer context.AfterFunc(r.Context(), slot.CloseSoon)()
	}

	if err != nil && o.OnError != nil {
		o.OnError(r, err)
	}

	waited := d.Allowed && d.Delay > 0 && !o.IgnoreDelay && g.waitDelay(r.Context(), &d)
	if r.Context().Err() != nil && (err != nil || waited) {
		// Usually the caller has hung up. But a deadline of the server may have ended
		// the context, and without a status the answer would be 200.
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}

	d.SetHeaders(w.Header())
	if !d.Allowed {
		o.OnRefuse(w, r, d)
		return
	}

	ctx := r.Context()
	if slot != nil {
		ctx = slot.Context()
	}

	g.next.ServeHTTP(w, r.WithContext(NewContext(ctx, d)))
}

// Decide decides q, and acquires slots if slots is set. Otherwise, and for a
// refusal, the Slot is nil. Decide is for middleware.
func Decide(ctx context.Context, c Checker, q Request, slots bool, ttl time.Duration) (Decision, *Slot, error) {
	if !slots {
		d, err := c.Check(ctx, q)
		return d, nil, err
	}

	s, err := c.(Acquirer).Acquire(ctx, q, ttl)
	if s != nil {
		return s.Decision, s, s.Err
	}

	refused, ok := errors.AsType[*Refused](err)
	if !ok {
		return Decision{DecidedBy: ByError}, nil, err
	}

	return refused.Decision, nil, refused.cause
}

// request returns the check of r. The error wraps ErrMissingKey.
func (g *guard) request(r *http.Request) (q Request, err error) {
	o := &g.options
	if o.Request != nil {
		q = o.Request(r)
		q.Headers = !o.NoHeaders
		return q, nil
	}

	q = Request{Rule: o.Rule, Headers: !o.NoHeaders}
	if o.Key != nil {
		q.Key, err = CompleteKey(o.Key(r), o.MissingKey)
	} else {
		q.Attributes = o.Attributes(r)
	}

	if o.Cost != nil {
		q.Costs = o.Cost(r)
	}

	return q, err
}

// waitDelay waits for d's delay, or turns d into a refusal if the delay is too
// long. It reports whether it waited, for the whole delay or until the context
// ended.
func (g *guard) waitDelay(ctx context.Context, d *Decision) bool {
	defer g.held.Add(-1)
	n := g.held.Add(1)
	if n > int64(g.options.MaxHeld) || d.Delay > g.options.MaxDelay {
		d.Allowed = false
		d.Code = CodeRateLimited
		d.RetryAfter = d.Delay
		d.Reason = fmt.Sprintf("Too many wait for their turn; retry in %s.", formatDuration(d.Delay))
		return false
	}
	sleep(ctx, d.Delay)
	return true
}

// problemBody is an answer of type application/problem+json.
type problemBody struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Code     string   `json:"code,omitempty"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies,omitempty"`
}

// Refuse answers a refused request: 429, 403 if it was denied, or 503 if no
// node decided, with application/problem+json. If the rule that refused has a
// refusal, its status, headers and body are the answer. Middleware uses it
// unless OnRefuse is set.
func Refuse(w http.ResponseWriter, _ *http.Request, d Decision) {
	p := problemBody{
		Type:  "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title: "Request cannot be satisfied as assigned quota has been exceeded", Status: http.StatusTooManyRequests,
		Code: cmp.Or(d.Code, CodeRateLimited), Detail: d.Reason, Violated: d.Violated,
	}

	h := w.Header()
	switch {
	case d.Denied():
		p = problemBody{Type: "about:blank", Title: "The rules deny this",
			Status: http.StatusForbidden, Code: CodeDenied, Detail: d.Reason}
	case d.DecidedBy == ByError:
		p = problemBody{
			Type: "about:blank", Title: http.StatusText(http.StatusServiceUnavailable),
			Status: http.StatusServiceUnavailable,
			Detail: d.Reason,
		}
		h.Set(headerRetryAfter, "1")
	}

	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")

	if d.Refusal != nil {
		d.Refusal.answer(w, p)
		return
	}

	w.WriteHeader(p.Status)
	json.NewEncoder(w).Encode(p) // an error means that the connection is broken
}

// answer writes r. p is what the answer would be without r; its headers are set
// already.
func (r *Refusal) answer(w http.ResponseWriter, p problemBody) {
	h := w.Header()
	for name, value := range r.Headers {
		h.Set(name, value)
	}

	if 400 <= r.Status && r.Status <= 499 || r.Status == http.StatusServiceUnavailable {
		p.Status = r.Status
	}

	text := ""
	isText := false
	if len(r.Body) > 0 {
		isText = json.Unmarshal(r.Body, &text) == nil
	}

	switch {
	case isText:
		h.Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(p.Status)
		io.WriteString(w, text) // an error means that the connection is broken, here and below
	case len(r.Body) > 0:
		h.Set("Content-Type", "application/json")
		w.WriteHeader(p.Status)
		w.Write(r.Body)
	default:
		p.Violated = nil
		p.Code = cmp.Or(r.Code, p.Code)
		p.Type, p.Title, p.Detail = cmp.Or(r.Type, p.Type), cmp.Or(r.Title, p.Title), cmp.Or(r.Detail, p.Detail)
		w.WriteHeader(p.Status)
		json.NewEncoder(w).Encode(p)
	}
}
