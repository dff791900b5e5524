// Package interceptor asks rlnode about each call of a gRPC server.
//
//	server := grpc.NewServer(
//		grpc.UnaryInterceptor(interceptor.Unary(limiter, interceptor.Options{})),
//		grpc.StreamInterceptor(interceptor.Stream(limiter, interceptor.Options{})),
//	)
//
// A stream is checked once, when it begins. A refused call ends with ResourceExhausted and the detail RetryInfo if a later one
// may pass, one that the rules deny with PermissionDenied, and one that nobody decided with Unavailable. The rate headers that
// the rules turn on are in the answer's metadata.
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

// Options configure the interceptors. All are optional: by default, every rule that matches the attributes ip and endpoint is
// asked. client.MiddlewareOptions says more about those that have the same name there.
type Options struct {
	// Rule limits the check to this rule.
	Rule string
	// Key returns the subject: a value for each of Rule's key attributes. Only Rule is asked then. Nil: by attributes.
	Key func(ctx context.Context, method string) []string
	// Attributes returns the attributes that rules match by. Nil: ip, see TrustedHops, and endpoint, which is the method, such as
	// /shop.Orders/Place.
	Attributes func(ctx context.Context, method string) map[string]string
	// TrustedHops is the number of proxies between the world and this server, each of which adds to x-forwarded-for; see
	// client.Address. 0: none.
	TrustedHops int
	// Cost returns the costs per unit. Nil, or a nil result: what the rules say, or 1 request.
	Cost func(ctx context.Context, method string) map[string]int64
	// Request returns the check itself, such as one that brings its limits. Rule, Key, Attributes and Cost don't matter then.
	// Nil: by those.
	Request func(ctx context.Context, method string) client.Request
	// Skip reports whether to let a call pass without a check. Nil: none.
	Skip func(ctx context.Context, method string) bool

	// OnError is called if no node decided, whether the call passes or not. Nil: no callback.
	OnError func(ctx context.Context, err error)

	// IgnoreDelay passes delayed calls on at once.
	IgnoreDelay bool
	// MaxDelay bounds how long a call is held until its turn; one with a longer delay is refused. 0: client.DefaultMaxDelay.
	MaxDelay time.Duration
	// MaxHeld bounds the calls that are held at once; further ones are refused. 0: client.DefaultMaxHeld.
	MaxHeld int
	// NoHeaders leaves out the rate headers, all but retry-after.
	NoHeaders bool
}

// guard checks calls.
type guard struct {
	checker client.Checker
	options Options
	held    atomic.Int64 // calls waiting for their turn
}

// newGuard panics if Key is set without Rule.
func newGuard(c client.Checker, o Options) *guard {
	if o.Key != nil && o.Rule == "" {
		panic("interceptor: Options.Key needs Rule")
	}
	if o.Attributes == nil {
		o.Attributes = attributes(o.TrustedHops)
	}
	o.MaxDelay = cmp.Or(o.MaxDelay, client.DefaultMaxDelay)
	o.MaxHeld = cmp.Or(o.MaxHeld, client.DefaultMaxHeld)
	return &guard{checker: c, options: o}
}

// attributes returns a function that extracts the attributes ip and endpoint from a call.
func attributes(trustedHops int) func(context.Context, string) map[string]string {
	address := client.Address(trustedHops)
	return func(ctx context.Context, method string) map[string]string {
		r := http.Request{Header: http.Header{"X-Forwarded-For": metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")}}
		if p, ok := peer.FromContext(ctx); ok {
			r.RemoteAddr = p.Addr.String()
		}
		return map[string]string{"ip": address(&r), "endpoint": method}
	}
}

// Unary returns an interceptor that checks each call before its handler runs. client.FromContext has the decision there. It
// panics if Options.Key is set without Options.Rule.
func Unary(c client.Checker, o Options) grpc.UnaryServerInterceptor {
	g := newGuard(c, o)
	return func(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, err := g.admit(ctx, info.FullMethod, func(h metadata.MD) error { return grpc.SetHeader(ctx, h) })
		if err != nil {
			return nil, err
		}
		return handler(ctx, in)
	}
}

// Stream is Unary for streams. A stream is checked once, when it begins.
func Stream(c client.Checker, o Options) grpc.StreamServerInterceptor {
	g := newGuard(c, o)
	return func(server any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, err := g.admit(s.Context(), info.FullMethod, s.SetHeader)
		if err != nil {
			return err
		}
		return handler(server, &stream{s, ctx})
	}
}

// stream is a stream with the decision in its context.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context with the decision.
func (s *stream) Context() context.Context { return s.ctx }

// admit checks a call and returns the context for its handler, or the status that refuses it. Its headers go to set.
func (g *guard) admit(ctx context.Context, method string, set func(metadata.MD) error) (context.Context, error) {
	o := &g.options
	if o.Skip != nil && o.Skip(ctx, method) {
		return ctx, nil
	}
	d, err := g.checker.Check(ctx, g.request(ctx, method))
	if err != nil && o.OnError != nil {
		o.OnError(ctx, err)
	}
	if d.Allowed && d.Delay > 0 && !o.IgnoreDelay {
		g.hold(ctx, &d)
	}
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	header, md := http.Header{}, metadata.MD{}
	d.SetHeaders(header)
	for name, values := range header {
		md[strings.ToLower(name)] = values
	}
	if len(md) > 0 {
		_ = set(md) // fails only if headers were sent, and then they can't be changed
	}
	if !d.Allowed {
		return nil, refusal(&d)
	}
	return client.NewContext(ctx, d), nil
}

func (g *guard) request(ctx context.Context, method string) client.Request {
	o := &g.options
	if o.Request != nil {
		q := o.Request(ctx, method)
		q.Headers = !o.NoHeaders
		return q
	}
	q := client.Request{Rule: o.Rule, Headers: !o.NoHeaders}
	if o.Key != nil {
		q.Key = o.Key(ctx, method)
	} else {
		q.Attributes = o.Attributes(ctx, method)
	}
	if o.Cost != nil {
		q.Costs = o.Cost(ctx, method)
	}
	return q
}

// hold waits for d's turn, or turns d into a refusal if the turn is too far away.
func (g *guard) hold(ctx context.Context, d *client.Decision) {
	defer g.held.Add(-1)
	if n := g.held.Add(1); n > int64(g.options.MaxHeld) || d.Delay > g.options.MaxDelay {
		d.Allowed, d.RetryAfter = false, d.Delay
		d.Reason = fmt.Sprintf("Too many wait for their turn; retry in %v.", d.Delay)
		return
	}
	t := time.NewTimer(d.Delay)
	defer t.Stop()
	select {
	case <-t.C:
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
	s := status.New(code, d.Reason)
	if retry > 0 {
		if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)}); err == nil {
			s = with
		}
	}
	return s.Err()
}
