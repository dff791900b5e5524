package httpd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/api/framing"
)

// Bounds of the data plane's server.
const (
	dataReadTimeout  = 10 * time.Second // from a request's first byte to its last
	batchReadFactor  = 3
	dataWriteTimeout = 30 * time.Second
	dataIdleTimeout  = 3 * time.Minute
	dataHeaderBytes  = framing.MaxHead
)

// Server serves the data plane over HTTP/1.1. It hides the server library.
type Server struct {
	handlers *handlers
	server   *fasthttp.Server
	addr     net.Addr
	conns    *api.Connections
	transport
	held         *heldAnswers
	date         dateHeader
	libraryConns sync.Pool // of *libraryConn
	once         sync.Once
}

// Open binds the data plane's address and starts serving.
func Open(doors *api.Doors, config Config) (*Server, error) {
	if config.ReadTimeout < 0 {
		return nil, errors.New("open data plane: ReadTimeout must be at least 0")
	}
	ln, err := api.Listen(config.Addr)
	if err != nil {
		return nil, fmt.Errorf("open data plane: %w", err)
	}
	return start(newHandlers(doors, config.Tracer), ln, config.ReadTimeout), nil
}

// start serves the data plane on ln.
func start(handlers *handlers, ln net.Listener, readTimeout time.Duration) *Server {
	readTimeout = cmp.Or(readTimeout, dataReadTimeout)
	s := &Server{
		handlers: handlers, addr: ln.Addr(),
		conns:     handlers.DataConnections(),
		transport: transport{began: time.Now(), slack: readTimeout / slackDivisor, tls: handlers.TLS},
	}
	s.held = newHeldAnswers(maxHeldFor(api.MaxFiles()), handlers.Draining(), s.sendHeld)
	s.server = &fasthttp.Server{
		Handler:        s.handle,
		ErrorHandler:   s.malformed,
		ExpectHandler:  s.expect,
		HeaderReceived: s.headerReceived,
		Logger:         serverLog{handlers.Logger},

		// This package reads bodies itself, in pieces: the library would allocate
		// whatever length a caller announces.
		StreamRequestBody:            true,
		MaxRequestBodySize:           codec.MaxBody,
		DisablePreParseMultipartForm: true,

		ReadTimeout:       readTimeout,
		WriteTimeout:      cmp.Or(handlers.Timeout, dataWriteTimeout),
		IdleTimeout:       cmp.Or(handlers.Timeout, dataIdleTimeout),
		ReadBufferSize:    dataHeaderBytes,
		Concurrency:       2 * api.MaxDataConnections, // never reached: see seats
		KeepHijackedConns: true,                       // see hold

		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
		SecureErrorLogMessage: true,
	}
	s.server.ConnState = followConnState
	if handlers.tracer == nil {
		s.fast = s.serveFast
	}
	s.conns.Serve(ln, s.begin)
	return s
}

// Addr returns the address on which the data plane listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Close stops accepting connections, waits for the requests in progress until
// ctx ends, and closes what is left.
func (s *Server) Close(ctx context.Context) error {
	s.held.releaseAll()
	s.held.awaitEmpty(ctx)
	err := s.conns.Stop(ctx)
	s.once.Do(s.held.close)

	if err != nil {
		return fmt.Errorf("close data plane: %w", err)
	}
	return nil
}

// headerReceived grants batches more time, and corrects how the library handles
// Connection and Expect.
func (s *Server) headerReceived(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
	list := h.Peek("Connection")
	if len(list) > 0 && !h.ConnectionClose() {
		closes, ok := framing.ConnectionList(list)
		if closes || !ok {
			h.SetConnectionClose()
		}
	}
	if !h.IsHTTP11() {
		h.Del("Expect") // RFC 9110, 10.1.1
	}

	path, _ := framing.SplitTarget(codec.UnsafeString(h.RequestURI()))
	if routeOf(path).bodyLimit() > codec.MaxBody {
		c.ReadTimeout = batchReadFactor * s.server.ReadTimeout
	}
	return c
}

// handle answers one request. At a shutdown, the library may have closed the
// connection after it read the request. Then the request is not decided: nobody
// would get the answer, and the caller asks another node.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	t := libraryConnOf(ctx)
	if t != nil && t.isClosed() {
		return
	}

	x := s.handlers.getExchange()
	defer s.handlers.putExchange(x)

	if t != nil {
		x.conn = t.Connection
	}

	x.method = codec.UnsafeString(ctx.Method())
	x.path, x.query = target(ctx)
	x.header = &ctx.Request.Header
	x.peer = ctx.RemoteAddr()

	lines := ctx.Request.Header.PeekAll("Authorization")
	if len(lines) > 0 {
		x.authorization, x.authorizations = codec.UnsafeString(lines[0]), len(lines)
	}

	if s.handlers.tracer != nil {
		x.traceparent = codec.UnsafeString(ctx.Request.Header.Peek("Traceparent"))
		x.tracestate = codec.UnsafeString(ctx.Request.Header.Peek("Tracestate"))
	}

	// The token is checked before the body is read: a valid one makes the
	// caller safe from being displaced while it sends.
	r, refusal := s.handlers.admit(x)
	if refusal == nil && r.need != api.Anyone && api.IsProbesOnly(ctx.Conn()) {
		r = nil
		refusal = api.CrowdedError()
	}

	e := s.readBody(ctx, x, r.bodyLimit())
	if t != nil {
		t.handled++
		// The framing has seen all input that arrived. If that has another head,
		// another request waits behind this one.
		x.isPipelined = t.frame.Heads() > t.handled
	}

	// After an error, the rest of the body is unread, so no request can follow.
	x.mustClose = e != nil
	if r != nil && r.bodyIgnored && x.mustClose && e.Code == api.TooLarge {
		e = nil
	}

	if t != nil && !t.BeginAnswer() {
		_ = t.closeNow() // otherwise the library would answer in our place
		return
	}

	switch {
	case refusal != nil:
		x.SetError(refusal)
	case e != nil:
		x.SetError(e)
	default:
		s.handlers.serve(r, x)
	}

	s.answer(ctx, x)
}

// target returns a request's path and query, exactly as they were sent. Dot
// segments and encoded characters must not lead past a proxy that allows or
// denies by the path. Below authPrefix, proxies append their callers' paths.
func target(ctx *fasthttp.RequestCtx) (path, query string) {
	return framing.SplitTarget(codec.UnsafeString(ctx.RequestURI()))
}

// answer hands x's response to the library.
func (s *Server) answer(ctx *fasthttp.RequestCtx, x *exchange) {
	if !s.handlers.charge(x) {
		x.Body = nil
		x.SetError(s.handlers.Budget.FullError())
	}

	if !x.due.IsZero() && s.hold(ctx, x) {
		return
	}

	r := &ctx.Response
	r.SetStatusCode(x.Status)
	r.Header.SetContentType(x.ContentType)

	for i := range x.Headers {
		r.Header.SetCanonical([]byte(x.Headers[i].Name), x.Headers[i].Value)
	}

	n := len(x.Body)
	if n <= api.UnchargedBytes {
		r.SetBody(x.Body)
	} else {
		// Move the buffer and its charge to the reply.
		size := int64(cap(x.Body))
		x.charged = max(0, x.charged-size)
		var sent *largeReply
		sent, x.Body = s.handlers.newLargeReply(x.Body, size, ctx.Conn())
		r.SetBodyStream(sent, n)
	}

	t := libraryConnOf(ctx)
	switch {
	case x.mustClose:
		s.closeAfterAnswer(ctx)
	case s.handlers.ClosesConnections(), t != nil && (t.ProbesOnly || t.closesAfterAnswer()):
		ctx.SetConnectionClose() // makes the caller connect again, preferably to another node
	}
}

// closeAfterAnswer closes the connection after the answer. It lingers, so that
// a caller that is still sending can read the answer.
func (s *Server) closeAfterAnswer(ctx *fasthttp.RequestCtx) {
	ctx.SetConnectionClose()
	if c := api.Unwrap[*api.Connection](ctx.Conn()); c != nil {
		c.Linger()
	}
}

// readBody reads a body of up to most bytes into x.
func (s *Server) readBody(ctx *fasthttp.RequestCtx, x *exchange, most int) *api.Error {
	stream := ctx.RequestBodyStream()
	if stream == nil {
		return nil
	}

	length := ctx.Request.Header.ContentLength()
	if length > most {
		return api.TooLargeError(most)
	}

	large := false
	defer func() {
		if large {
			s.handlers.Budget.Finish(&x.transfer)
		}
	}()

	for b := x.request.body[:0]; ; {
		if len(b) == cap(b) {
			// The buffer grows to at most twice what has arrived, so that announcing a
			// large length costs nothing.
			size := max(4096, 2*cap(b))
			if length >= len(b) {
				// The buffer has one byte more than announced, so that the read that finds
				// the end needs no larger one.
				size = min(size, max(4096, length+1))
			}

			if large { // the wait for room must not count as the caller's slowness
				s.handlers.Budget.Finish(&x.transfer)
				large = false
			}

			t := libraryConnOf(ctx)
			if t != nil {
				t.endStall() // the wait for room must not count; the next read begins the stall anew
			}

			if !s.handlers.Budget.Wait(func() bool { return s.handlers.chargeFor(x, size-cap(b)) }) {
				return s.handlers.Budget.FullError()
			}

			if t != nil {
				t.isCharged = x.charged > 0
			}

			b = append(make([]byte, 0, size), b...)
			x.request.body = b
		}

		if !large && x.charged > 0 {
			large = true
			s.handlers.Budget.Begin(&x.transfer, x.charged, ctx.Conn())
		}

		n, err := stream.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		x.request.body = b
		if len(b) > most {
			return api.TooLargeError(most)
		}

		if err == io.EOF {
			if length > len(b) {
				return api.Errorf(api.BadRequest, "the body ended after %d of %d bytes", len(b), length)
			}
			if t := libraryConnOf(ctx); t != nil && t.frame.TrailersRefused() {
				return notReceived(t.frame.Err())
			}
			return nil
		}

		if err != nil {
			return notReceived(err)
		}
	}
}

// notReceived returns the error to answer for a request that could not be read.
func notReceived(err error) *api.Error {
	var frame framing.Error
	var full *api.Error
	switch {
	case errors.As(err, &frame) && frame != framing.ErrHeadTooLarge:
		return api.FramingError(frame)
	case errors.As(err, new(*fasthttp.ErrSmallBuffer)), frame == framing.ErrHeadTooLarge:
		return api.HeadTooLargeError(dataHeaderBytes)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return api.TooLargeError(codec.MaxBody)
	case errors.As(err, &full): // while it arrived, the budget had no room for it
		return full
	}
	return api.ReceiveError(err)
}

// malformed answers input that the library could not parse as a request.
func (s *Server) malformed(ctx *fasthttp.RequestCtx, err error) {
	x := s.handlers.getExchange()
	defer s.handlers.putExchange(x)
	ctx.Response.Reset()
	x.SetError(notReceived(err))
	x.mustClose = true
	s.answer(ctx, x)
}

// expect handles Expect: 100-continue. It refuses a body that is too large
// before the caller sends it.
func (s *Server) expect(ctx *fasthttp.RequestCtx) int {
	path, _ := target(ctx)
	r := routeOf(path)
	most := r.bodyLimit()
	if ctx.Request.Header.ContentLength() <= most || r != nil && r.bodyIgnored {
		return fasthttp.StatusContinue
	}
	x := s.handlers.getExchange()
	defer s.handlers.putExchange(x)
	x.SetError(api.TooLargeError(most))
	x.mustClose = true
	s.answer(ctx, x)
	return x.Status
}

// serverLog logs the library's messages at debug level, because they are about single connections.
type serverLog struct{ log *slog.Logger }

func (l serverLog) Printf(format string, args ...any) {
	l.log.Debug("data plane: a message of the HTTP library", "message", fmt.Sprintf(format, args...))
}
