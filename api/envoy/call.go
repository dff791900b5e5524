package envoy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for all other messages
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/rls"
	"github.com/rlnode/rlnode/internal/tracing"
)

// service describes Envoy's rate limit service to grpc-go.
var service = grpc.ServiceDesc{
	ServiceName: rls.Service,
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: rls.Method, Handler: shouldRateLimit}},
	Metadata:    rls.File,
}

const path = "/" + rls.Service + "/" + rls.Method

// call is a request and its answer. It is reused, with its buffers.
type call struct {
	rls.Call
	server  *Server
	stripe  *api.LatencyStripe
	arrival *arrival
	buf     []byte // the request in the wire format
	charged int64  // bytes charged to the budget for buf
}

func (s *Server) getCall() *call {
	c, ok := s.pool.Get().(*call)
	if !ok {
		c = &call{server: s, stripe: s.latency.Stripe(), arrival: s.newArrival()}
	}
	return c
}

// giveBack gives back what is charged for c.
func (c *call) giveBack() {
	if c.charged > 0 {
		c.server.Budget.Give(c.charged)
		c.charged = 0
	}
}

// put returns c to the pool.
func (c *call) put() {
	c.giveBack()
	c.Reset()
	c.buf = api.ReuseUncharged(c.buf)
	c.server.pool.Put(c)
}

// shouldRateLimit is the handler of the service's only method.
func shouldRateLimit(
	srv any, ctx context.Context, receive func(any) error, _ grpc.UnaryServerInterceptor,
) (reply any, err error) {
	s := srv.(*Server)
	defer s.recover(path, &err)
	defer s.calls.Add(-1)

	if s.calls.Add(1) > maxCalls {
		s.overloads.Add(1)
		return nil, statusOf(api.Errorf(api.Overloaded, "more than %d requests are in progress", maxCalls))
	}

	c := s.getCall()
	defer func() {
		if v := recover(); v != nil { // c may be broken: it does not return to the pool
			c.giveBack()
			panic(v)
		}
	}()

	c.stripe.Count()
	began := time.Now()
	token, e := s.admit(ctx) // callers without permission are refused before anything is received
	if e == nil {
		if err := c.arrival.await(ctx, nil, receive, c); err != nil {
			c.put()
			return nil, err
		}
		// The wait for the message is the caller's time and not ours.
		began = time.Now()
		e = c.answer(connectionOf(ctx), token)
	}

	if s.tracer != nil {
		c.trace(ctx, began, token, e)
	}

	if e != nil {
		c.put()
		return nil, statusOf(e)
	}

	took := time.Since(began)
	c.stripe.Observe(took)
	c.CountLatency(took)
	return c, nil // the codec puts it back
}

// answer decides c, which came over conn, unless conn has lost its seat.
func (c *call) answer(conn *inbound, token *api.Token) *api.Error {
	if conn == nil {
		return c.decide(token)
	}
	if !conn.beginAnswer() {
		return api.CrowdedError()
	}
	defer conn.endAnswer()
	return c.decide(token)
}

// decide decides c once its message has been received.
func (c *call) decide(token *api.Token) *api.Error {
	s := c.server
	n := int64(cap(c.buf))
	if n > api.UnchargedBytes {
		if !s.Budget.Wait(func() bool { return s.Budget.Take(n) }) {
			return s.Budget.FullError()
		}
		c.charged = n
	}
	if e := c.Read(c.buf); e != nil {
		return e
	}
	return c.Decide(s.Doors, token)
}

// admit returns the token of a caller that may ask now; nil if none is required.
func (s *Server) admit(ctx context.Context) (*api.Token, *api.Error) {
	if e := s.crowdedError(ctx); e != nil {
		return nil, e
	}
	if e := s.TurnAwayError(); e != nil {
		return nil, e
	}
	return s.permit(ctx)
}

// crowdedError returns an error if the caller's connection was accepted for probes only.
func (s *Server) crowdedError(ctx context.Context) *api.Error {
	if conn := connectionOf(ctx); conn != nil && conn.tracked.ProbesOnly {
		return api.CrowdedError()
	}
	return nil
}

// permit returns the caller's token; nil if none is required.
func (s *Server) permit(ctx context.Context) (*api.Token, *api.Error) {
	if !s.RequiresToken() {
		return nil, nil
	}
	return s.permitLines(connectionOf(ctx), metadata.ValueFromIncomingContext(ctx, "authorization"))
}

// permitLines returns the token in the authorization lines of a call over conn.
func (s *Server) permitLines(conn *inbound, lines []string) (*api.Token, *api.Error) {
	text := ""
	if len(lines) > 0 {
		text = lines[0]
	}
	token, e := s.Authorize(text, len(lines), api.ScopeCheck, nil)
	if conn != nil && token != nil {
		conn.tracked.Trust()
	}
	return token, e
}

// maxStrangersCalls is how many calls a stranger may have begun on a connection, and not completed.
const maxStrangersCalls = 4

// tap refuses calls of strangers as soon as their headers have arrived, before
// they have a goroutine and a stream.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	conn := connectionOf(ctx)
	if conn == nil || !conn.tracked.IsStranger() {
		return ctx, nil
	}

	if strings.HasPrefix(info.FullMethodName, "/"+healthpb.Health_ServiceDesc.ServiceName+"/") {
		// Health checks need no token, but a caller that shows one is no stranger.
		_, e := s.permitLines(conn, info.Header.Get("authorization"))
		if e == nil {
			return ctx, nil
		}

		if conn.begun.Load() >= maxStrangersCalls {
			s.overloads.Add(1)
			return nil,
				statusOf(api.Errorf(api.Overloaded,
					"more than %d calls of this connection are incomplete", maxStrangersCalls))
		}
		conn.begun.Add(1)
		return ctx, nil
	}

	if e := s.crowdedError(ctx); e != nil {
		return nil, statusOf(e)
	}

	_, e := s.permitLines(conn, info.Header.Get("authorization"))
	if e != nil {
		s.latency.Stripe().Count()
		return nil, statusOf(e)
	}

	return ctx, nil
}

// trace records a call if it is sampled.
func (c *call) trace(ctx context.Context, began time.Time, token *api.Token, e *api.Error) {
	first := func(key string) string {
		list := metadata.ValueFromIncomingContext(ctx, key)
		if len(list) > 0 {
			return list[0]
		}
		return ""
	}
	parent := first("traceparent")
	if !c.server.tracer.Sampled(parent) {
		return
	}

	t := tracing.Request{
		Name: rls.Method, Traceparent: parent, Tracestate: first("tracestate"), Method: "POST",
		Path: path, Status: 200, Began: began, Ended: time.Now(),
	}
	if token != nil {
		t.Token = token.Name
	}

	switch {
	case e != nil:
		t.Status = e.Status()
	case c.Asked:
		t.Decision = api.TracedDecision(&c.Answer)
	}

	c.server.tracer.Record(&t)
}

// codec copies the bytes of calls without decoding them. It leaves all other
// messages to grpc-go's codec.
type codec struct{}

var generated = encoding.GetCodecV2("proto")

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	c, ok := v.(*call)
	if !ok {
		if err := generated.Unmarshal(data, v); err != nil {
			return fmt.Errorf("read a message: %w", err)
		}
		return nil
	}

	// The bytes are copied, because grpc-go reuses its buffers, and the strings of
	// the call point into c.buf.
	n := data.Len()
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}

	c.buf = c.buf[:n]
	data.CopyTo(c.buf)
	return nil
}

// Marshal implements encoding.CodecV2. It releases the call.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	c, ok := v.(*call)
	if !ok {
		out, err := generated.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("write a message: %w", err)
		}
		return out, nil
	}
	out := c.Append(make([]byte, 0, answerCapacity))
	c.put()
	return mem.BufferSlice{mem.SliceBuffer(out)}, nil
}

// answerCapacity is the initial capacity for an answer, in bytes; most are shorter.
const answerCapacity = 128
