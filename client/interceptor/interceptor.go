// Package interceptor checks each call of a gRPC server with rlnode.
//
//	server := grpc.NewServer(
//		grpc.UnaryInterceptor(interceptor.Unary(limiter, interceptor.Options{})),
//		grpc.StreamInterceptor(interceptor.Stream(limiter, interceptor.Options{})),
//	)
//
// A stream is checked once, when it begins, and with Options.EachMessage also
// for each further message that it receives. A refused call ends with
// ResourceExhausted, with the detail RetryInfo if a later call may pass. A call
// that the rules deny ends with PermissionDenied, and one that no node decided
// with Unavailable. The rate headers that the rules turn on are in the answer's
// metadata.
package interceptor

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/rlnode/rlnode/client"
)

// Options configures the interceptors. All fields are optional: by default,
// every rule that matches the attributes ip and endpoint applies.
// client.MiddlewareOptions documents the fields of the same name in more
// detail.
type Options struct {
	// Rule limits the check to this rule.
	Rule string
	// Key returns the subject: a value for each key attribute of Rule. Only Rule
	// then applies. Nil: the subject follows from the attributes.
	Key func(ctx context.Context, method string) []string
	// MissingKey says what happens to a call for which Key returns nil, or an empty
	// value. client.MissingRefuse (the default) ends it with InvalidArgument,
	// client.MissingError calls OnError and ends it with Internal, and
	// client.MissingAllow lets it pass without a check. Any other text is used in
	// place of what is missing.
	MissingKey string
	// Attributes returns the attributes that rules match. Nil: ip (see TrustedHops)
	// and endpoint, which is the method, such as /shop.Orders/Place.
	Attributes func(ctx context.Context, method string) map[string]string
	// TrustedHops is the number of proxies between clients and this server, each of
	// which appends to x-forwarded-for; see client.Address.
	TrustedHops int
	// Cost returns the costs per unit. Nil, or a nil result: the cost that the
	// rules set, or 1 request.
	Cost func(ctx context.Context, method string) map[string]int64
	// Request returns the whole check, for instance one with inline limits. Rule,
	// Key, Attributes and Cost are then ignored. Nil: the check is made from those.
	Request func(ctx context.Context, method string) client.Request
	// Skip reports whether to let a call pass without a check. Nil: never.
	Skip func(ctx context.Context, method string) bool
	// Slots acquires slots in place of a check, and holds them until the handler
	// returns, or the caller hangs up. The handler's context ends, too, if they are
	// lost. The Checker must be a client.Acquirer. Not with EachMessage.
	Slots bool
	// SlotTTL is how long slots are held without being renewed. 0: as long as the rules say.
	SlotTTL time.Duration

	// EachMessage checks each message that a stream receives, like a call of its
	// own. The check at the stream's beginning covers the first one. If one is
	// refused, the handler's RecvMsg returns the status that ends the stream.
	EachMessage bool

	// OnError is called if no node decided, whether the call passes or not. Nil: no callback.
	OnError func(ctx context.Context, err error)

	// IgnoreDelay passes delayed calls on at once.
	IgnoreDelay bool
	// MaxDelay bounds how long a call is held; one with a longer delay is refused.
	// 0: client.DefaultMaxDelay.
	MaxDelay time.Duration
	// MaxHeld bounds the calls that are held at once; any more are refused. 0:
	// client.DefaultMaxHeld.
	MaxHeld int
	// NoHeaders suppresses all rate headers except retry-after.
	NoHeaders bool
}

// guard checks calls for an interceptor.
type guard struct {
	checker client.Checker
	options Options
	held    atomic.Int64 // calls held for their delay
}

// newGuard returns a guard with the defaults filled in. It panics if Key is set
// without Rule, or Slots without an Acquirer or with EachMessage.
func newGuard(c client.Checker, o Options) *guard {
	if o.Key != nil && o.Rule == "" {
		panic("interceptor: Options.Key needs Rule")
	}

	_, acquires := c.(client.Acquirer)
	if o.Slots && (!acquires || o.EachMessage) {
		panic("interceptor: Options.Slots needs a client.Acquirer, and excludes EachMessage")
	}
	if o.Attributes == nil {
		o.Attributes = attributes(o.TrustedHops)
	}
	if expecter, ok := c.(interface{ ExpectRules(names ...string) }); ok {
		expecter.ExpectRules(o.Rule)
	}

	o.MaxDelay = cmp.Or(o.MaxDelay, client.DefaultMaxDelay)
	o.MaxHeld = cmp.Or(o.MaxHeld, client.DefaultMaxHeld)
	return &guard{checker: c, options: o}
}

// attributes returns a function that extracts the attributes ip and endpoint from a call.
func attributes(trustedHops int) func(context.Context, string) map[string]string {
	address := client.Address(trustedHops)
	return func(ctx context.Context, method string) map[string]string {
		forwarded := metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")
		r := http.Request{Header: http.Header{"X-Forwarded-For": forwarded}}
		if p, ok := peer.FromContext(ctx); ok {
			r.RemoteAddr = p.Addr.String()
		}
		return map[string]string{"ip": address(&r), "endpoint": method}
	}
}

// Unary returns an interceptor that checks each call before its handler runs.
// In the handler, client.FromContext returns the decision. Unary panics if
// Options.Key is set without Options.Rule, or Options.Slots without an Acquirer
// or with EachMessage.
func Unary(c client.Checker, o Options) grpc.UnaryServerInterceptor {
	g := newGuard(c, o)
	return func(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, release, err := g.admit(ctx, info.FullMethod, func(h metadata.MD) error { return grpc.SetHeader(ctx, h) })
		if err != nil {
			return nil, err
		}
		defer release()
		return handler(ctx, in)
	}
}

// Stream is like Unary, for streams. A stream is checked once, when it begins,
// unless Options.EachMessage is set.
func Stream(c client.Checker, o Options) grpc.StreamServerInterceptor {
	g := newGuard(c, o)
	return func(server any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, release, err := g.admit(s.Context(), info.FullMethod, s.SetHeader)
		if err != nil {
			return err
		}
		defer release()
		return handler(server, &stream{ServerStream: s, ctx: ctx, guard: g, method: info.FullMethod})
	}
}

// stream is a server stream with the decision in its context.
type stream struct {
	grpc.ServerStream
	ctx      context.Context
	guard    *guard
	method   string
	received atomic.Int64 // messages
}

// RecvMsg receives a message and, if it is not the first one and
// Options.EachMessage is set, checks it.
func (s *stream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil || s.received.Add(1) == 1 || !s.guard.options.EachMessage {
		return err
	}
	_, _, err = s.guard.admit(s.ServerStream.Context(), s.method, func(metadata.MD) error { return nil })
	return err
}

// Context returns the context with the decision.
func (s *stream) Context() context.Context { return s.ctx }

// admit checks a call, and passes the headers to set. It returns the context
// for the handler and the function to call after it, or the status that refuses
// the call.
func (g *guard) admit(
	ctx context.Context, method string, set func(metadata.MD) error,
) (context.Context, func(), error) {
	o := &g.options
	nothing := func() {}
	if o.Skip != nil && o.Skip(ctx, method) {
		return ctx, nothing, nil
	}
	q, err := g.request(ctx, method)
	if err != nil && o.MissingKey == client.MissingAllow {
		return ctx, nothing, nil
	}
	if err != nil {
		return nil, nil, g.missingKey(ctx, err)
	}

	d, slot, err := client.Decide(ctx, g.checker, q, o.Slots, o.SlotTTL)
	if err != nil && o.OnError != nil {
		o.OnError(ctx, err)
	}
	if d.Allowed && d.Delay > 0 && !o.IgnoreDelay {
		g.waitDelay(ctx, &d)
	}
	if slot != nil && (ctx.Err() != nil || !d.Allowed) {
		slot.CloseSoon()
	}
	if ctx.Err() != nil {
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
	g.setHeaders(&d, set)
	switch {
	case !d.Allowed:
		return nil, nil, refusal(&d)
	case slot == nil:
		return client.NewContext(ctx, d), nothing, nil
	}
	context.AfterFunc(ctx, slot.CloseSoon) // which gRPC ends after the handler at the latest
	return client.NewContext(slot.Context(), d), slot.CloseSoon, nil
}

// setHeaders passes d's headers to set.
func (g *guard) setHeaders(d *client.Decision, set func(metadata.MD) error) {
	header := http.Header{}
	md := metadata.MD{}
	d.SetHeaders(header)
	for name, values := range header {
		md[strings.ToLower(name)] = values
	}
	if len(md) > 0 {
		_ = set(md) // fails only if the headers have already been sent
	}
}

// missingKey returns the status for a call whose key is missing.
func (g *guard) missingKey(ctx context.Context, err error) error {
	if g.options.MissingKey != client.MissingError {
		return status.Error(codes.InvalidArgument, "This call does not say whose it is.")
	}
	if g.options.OnError != nil {
		g.options.OnError(ctx, err)
	}
	return status.Error(codes.Internal, err.Error())
}

// request returns the check of a call. The error wraps client.ErrMissingKey.
func (g *guard) request(ctx context.Context, method string) (q client.Request, err error) {
	o := &g.options
	if o.Request != nil {
		q = o.Request(ctx, method)
		q.Headers = !o.NoHeaders
		return q, nil
	}

	q = client.Request{Rule: o.Rule, Headers: !o.NoHeaders}
	if o.Key != nil {
		q.Key, err = client.CompleteKey(o.Key(ctx, method), o.MissingKey)
	} else {
		q.Attributes = o.Attributes(ctx, method)
	}

	if o.Cost != nil {
		q.Costs = o.Cost(ctx, method)
	}

	return q, err
}

// waitDelay waits for d's delay, or turns d into a refusal if the delay is too long.
func (g *guard) waitDelay(ctx context.Context, d *client.Decision) {
	defer g.held.Add(-1)
	n := g.held.Add(1)
	if n > int64(g.options.MaxHeld) || d.Delay > g.options.MaxDelay {
		d.Allowed = false
		d.RetryAfter = d.Delay
		d.Reason = fmt.Sprintf("Too many wait for their turn; retry in %v.", d.Delay)
		return
	}
	select {
	case <-time.After(d.Delay):
	case <-ctx.Done():
	}
}

// refusal returns the status for a call that d refuses.
func refusal(d *client.Decision) error {
	code, retry := codes.ResourceExhausted, d.RetryAfter
	switch {
	case d.Denied():
		code = codes.PermissionDenied
	case d.DecidedBy == client.ByError:
		code, retry = codes.Unavailable, time.Second
	}

	reason := d.Reason
	if d.Refusal != nil && d.Refusal.Detail != "" {
		reason = d.Refusal.Detail
	}

	s := status.New(code, reason)
	if retry > 0 {
		if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)}); err == nil {
			s = detailed
		}
	}

	return s.Err()
}
