package envoy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/rls"
	"github.com/rlnode/rlnode/internal/latency"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/internal/tracing"
)

// Bounds of the door.
const (
	maxConnections = 2048 // connections served at once
	// A connection that waits takes seatMemory. All of them may take one part in
	// seatParts of the node's memory.
	seatMemory     = 40 << 10
	seatParts      = 32
	maxStreams     = 100  // streams at once on a connection
	maxCalls       = 4096 // calls at once
	maxIncomplete  = 512  // incomplete messages
	maxOpenStreams = 512  // long-lived streams: reflection and health watches
	// maxStrangersStreams is how many of them strangers may have.
	maxStrangersStreams = maxOpenStreams / 2
	headerBytes         = 16 << 10
	streamWindow        = 64 << 10         // the minimum in grpc-go
	readTimeout         = 10 * time.Second // from a call's headers to its last byte
	// An incomplete message is checked after checkInterval, when most are complete,
	// and then less and less often.
	checkInterval    = 50 * time.Millisecond
	maxCheckInterval = 400 * time.Millisecond
	handshakeTimeout = 10 * time.Second
	// connectionAge is how long a connection lasts, give or take a tenth, so that
	// callers spread over the nodes. Calls in progress are still answered.
	connectionAge   = 5 * time.Minute
	connectionGrace = 15 * time.Second
	// The node pings a connection that has been silent for pingAfter. Callers may
	// ping once every minPingInterval.
	pingAfter       = time.Minute
	pingTimeout     = 20 * time.Second
	minPingInterval = 5 * time.Second
	// healthInterval is how often the health is updated from the node's readiness
	// while a caller watches it.
	healthInterval = 100 * time.Millisecond
)

// healthNames are the names that health checks may ask about: the whole server,
// the name of the reference server, and the service.
var healthNames = [...]string{"", "ratelimit", rls.Service}

// Config configures the door, beyond the configuration that all doors share.
type Config struct {
	Addr   string          // host:port; port 0 picks a free one
	Tracer *tracing.Tracer // records calls; nil: no tracing
}

// Server serves Envoy's rate limit service over gRPC.
type Server struct {
	*api.Doors
	tracer      *tracing.Tracer
	conns       *api.Connections
	addr        net.Addr
	server      *grpc.Server
	health      *health.Server
	latency     api.Latency
	calls       atomic.Int64 // calls in progress
	incomplete  atomic.Int64 // incomplete messages
	stalled     stalledArrivals
	openStreams atomic.Int64  // long-lived streams: reflection and health watches
	strangers   atomic.Int64  // those of them that strangers have
	opened      chan struct{} // capacity 1: signals followReadiness that a stream was opened
	overloads   atomic.Int64  // requests refused or cut off because of overload
	pool        sync.Pool     // of *call

	ctx    context.Context // bounds the long-lived streams; Close cancels it first
	cancel context.CancelFunc
	loop   sync.WaitGroup // runs followReadiness
	done   chan error     // Serve's result
}

// Open binds the door's address and starts serving.
func Open(doors *api.Doors, config Config) (*Server, error) {
	ln, err := api.Listen(config.Addr)
	if err != nil {
		return nil, fmt.Errorf("open gRPC: %w", err)
	}

	s := &Server{
		Doors: doors, tracer: config.Tracer,
		conns: doors.NewConnections(doors.Seats(maxConnections, seatParts, seatMemory)), addr: ln.Addr(),
		health: health.NewServer(), opened: make(chan struct{}, 1), done: make(chan error, 1),
	}

	s.ctx, s.cancel = context.WithCancel(context.Background())

	s.server = grpc.NewServer(
		grpc.Creds(newCredentials(doors.TLS)),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(rls.MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(headerBytes),
		grpc.ConnectionTimeout(cmp.Or(doors.Timeout, handshakeTimeout)),
		// The library keeps the read buffer as long as a connection lasts, and the
		// write buffer only while it writes.
		grpc.ReadBufferSize(16<<10),
		grpc.WriteBufferSize(16<<10),
		// The windows are static, or the library would enlarge those of fast
		// callers.
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(1<<20),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: connectionGrace,
			Time: pingAfter, Timeout: pingTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval,
			PermitWithoutStream: true}),
		grpc.InTapHandle(s.tap),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		// Permission is asked first, so that a caller without a token does not
		// learn which services there are.
		grpc.UnknownServiceHandler(unknownService),
	)

	s.server.RegisterService(&service, s)
	s.server.RegisterService(s.boundMessages(healthpb.Health_ServiceDesc), s.health)
	reflectionpb.RegisterServerReflectionServer(s.server, reflection.NewServerV1(reflection.ServerOptions{
		Services: s.server, DescriptorResolver: rls.Resolver(),
	}))

	s.updateHealth()
	s.loop.Go(s.followReadiness)
	go func() { s.done <- s.server.Serve(s.conns.Listen(ln)) }()

	return s, nil
}

// Addr returns the address on which the door listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Latency returns how many requests there were, by how long they took.
func (s *Server) Latency() latency.Counts { return s.latency.Counts() }

// Metrics reports the door's metrics.
func (s *Server) Metrics(sink metrics.Sink) {
	s.latency.Metrics(sink, "envoy", "envoy_seconds",
		"Time from a request of Envoy's rate limit service to its answer.")
	sink.Count("envoy_overload_total",
		"Requests of Envoy's rate limit service refused or cut off because too many were in progress.",
		s.overloads.Load())
	s.conns.Metrics(sink, "envoy")
}

// Close makes callers go elsewhere, waits for the calls in progress until ctx
// ends, and closes what is left.
func (s *Server) Close(ctx context.Context) error {
	// The long-lived streams end first, because the library would wait for them.
	s.cancel()
	s.loop.Wait()
	s.health.Shutdown()
	s.conns.CloseSilent()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.server.GracefulStop()
	}()

	var err error
	select {
	case <-stopped:
	case <-ctx.Done():
		err = fmt.Errorf("close gRPC: %w", ctx.Err())
		s.conns.CloseAll()
		s.server.Stop()
		<-stopped
	}

	s.conns.CloseAll()
	serveErr := <-s.done
	if errors.Is(serveErr, grpc.ErrServerStopped) { // Close came before Serve had started
		serveErr = nil
	}

	s.done <- nil // for the next call of Close
	s.conns.Wait()
	return errors.Join(err, serveErr)
}

// followReadiness keeps the health up to date with the node's readiness while
// streams are open. A single health check updates it itself. It also closes the
// connections of strangers that have been idle for too long.
func (s *Server) followReadiness() {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()

	draining := s.Draining()
	idle := time.NewTicker(api.IdleInterval)
	defer idle.Stop()

	for {
		select {
		case now := <-idle.C:
			s.conns.CloseIdle(now)
			continue
		case <-s.ctx.Done():
			return
		case <-draining:
			draining = nil
		case <-s.opened:
			tick.Reset(healthInterval)
		case <-tick.C:
			if s.openStreams.Load() == 0 {
				tick.Stop()
			}
		}

		s.updateHealth()
	}
}

func (s *Server) updateHealth() {
	now := healthpb.HealthCheckResponse_SERVING
	if s.ProbeError() != nil {
		now = healthpb.HealthCheckResponse_NOT_SERVING
	}
	for _, name := range healthNames {
		s.health.SetServingStatus(name, now)
	}
}

// unary serves a health check, which needs no token.
func (s *Server) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (reply any, err error) {
	defer s.recover(info.FullMethod, &err)
	s.latency.Stripe().Count()
	s.updateHealth()
	if conn := connectionOf(ctx); conn != nil && conn.beginAnswer() {
		defer conn.endAnswer() // a connection that asks now and then is not idle
	}
	return next(ctx, req)
}

// stream serves reflection and health watches, until Close at the latest.
// Reflection needs a token, as calls do.
func (s *Server) stream(
	srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler,
) (err error) {
	defer s.recover(info.FullMethod, &err)

	s.latency.Stripe().Count()
	conn := connectionOf(ss.Context())
	if conn != nil {
		conn.endReceive() // even if the stream is refused: its call has been received
	}

	defer s.openStreams.Add(-1)

	if s.openStreams.Add(1) > maxOpenStreams {
		s.overloads.Add(1)
		return statusOf(api.Errorf(api.Overloaded, "more than %d streams are open", maxOpenStreams))
	}

	if conn != nil && conn.tracked.IsStranger() {
		defer s.strangers.Add(-1)
		if s.strangers.Add(1) > maxStrangersStreams {
			s.overloads.Add(1)
			return statusOf(api.Errorf(api.Overloaded, "more than %d streams without a token are open", maxStrangersStreams))
		}
	}

	select {
	case s.opened <- struct{}{}:
	default:
	}

	s.updateHealth()
	if conn != nil {
		conn.tracked.KeepIdle() // a caller that watches says nothing for long
	}

	ctx, cancel := context.WithCancel(ss.Context())
	defer cancel()

	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()

	if info.FullMethod != healthpb.Health_Watch_FullMethodName {
		e := s.crowdedError(ctx)
		if e == nil {
			_, e = s.permit(ctx)
		}
		if e != nil {
			return statusOf(e)
		}
	}

	return next(srv, &openStream{ss, ctx, cancel, s.newArrival()})
}

// unknownService answers calls of unknown methods, after stream has checked
// their token.
func unknownService(_ any, ss grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(ss)
	return status.Errorf(codes.Unimplemented, "there is no method %s", api.Excerpt(method))
}

// openStream is a stream that ends with its context, or when a message does not arrive in time.
type openStream struct {
	grpc.ServerStream
	ctx     context.Context
	cancel  context.CancelFunc
	arrival *arrival
}

// Context returns the context that ends the stream.
func (o *openStream) Context() context.Context { return o.ctx }

// RecvMsg receives a message into m.
func (o *openStream) RecvMsg(m any) error { return o.arrival.await(o.ctx, o.cancel, o.receive, m) }

func (o *openStream) receive(m any) error {
	received := make(chan error, 1)
	// The goroutine ends with the stream, at the latest when the handler returns.
	go func() { received <- o.ServerStream.RecvMsg(m) }()
	select {
	case err := <-received:
		return err
	case <-o.ctx.Done():
		return status.FromContextError(o.ctx.Err()).Err()
	}
}

// recover turns a panic into an error that reveals nothing about it.
func (s *Server) recover(method string, err *error) {
	if v := recover(); v != nil {
		s.Panics.Add(1)
		s.Logger.Error("panic in a handler", "path", method, "panic", v, "stack", string(debug.Stack()))
		*err = statusOf(api.InternalError())
	}
}

// statusOf returns e as a gRPC status.
func statusOf(e *api.Error) error {
	code := codes.Internal
	switch e.Status() {
	case 400:
		code = codes.InvalidArgument
	case 401:
		code = codes.Unauthenticated
	case 403:
		code = codes.PermissionDenied
	case 408, 413:
		code = codes.ResourceExhausted
	case 503:
		code = codes.Unavailable
	}

	return status.Error(code, e.Detail)
}
