package envoy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/rls"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
)

// A token with the scope check may ask. Giving back needs adjust. A confined
// token may ask only about its domains.
func TestTokens(t *testing.T) {
	file := apitest.TokensFile(t, apitest.TokenEntry("asker", "secret-asker", "check"),
		apitest.TokenEntry("giver", "secret-giver", "check, adjust"),
		apitest.TokenEntry("reader", "secret-reader", "read"),
		apitest.ConfinedEntry("own", "secret-own", "check", "envoy/d"),
		apitest.ConfinedEntry("other", "secret-other", "check", "shop"), apitest.TokenEntry("root",
			"secret-root", "admin"))
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.TokensFile = file })
	plain, gift := oneDescriptor("k", "a", `,"hitsAddend":"0"`), oneDescriptor("k", "a", `,"isNegativeHits":true`)
	for _, test := range []struct {
		token, request string
		code           codes.Code
		want           string
	}{
		{"", plain, codes.Unauthenticated, "send a token as Authorization: Bearer"},
		{"guess", plain, codes.Unauthenticated, "this node does not know the token"},
		{"secret-reader", plain, codes.PermissionDenied, "reader has read"},
		{"secret-asker", plain, codes.OK, ""},
		{"secret-asker", gift, codes.PermissionDenied, "this needs a token with the scope adjust"},
		{"secret-giver", gift, codes.OK, ""},
		{"secret-own", plain, codes.OK, ""},
		{"secret-other", plain, codes.PermissionDenied,
			`other may only ask about the namespaces shop, and not about "envoy/d"`},
		{"secret-root", gift, codes.OK, ""},
	} {
		_, err := ask(t, n.conn, test.token, test.request)
		if s := status.Convert(err); s.Code() != test.code || !strings.Contains(s.Message(), test.want) {
			t.Errorf("%q: have %v, want %v %s", test.token, err, test.code, test.want)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret-asker",
		"authorization", "Bearer secret-root")
	if err := n.conn.Invoke(ctx, path, message(t, "RateLimitRequest"),
		message(t, "RateLimitResponse")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("two tokens: have %v", err)
	}
	if h, err := healthpb.NewHealthClient(n.conn).Check(t.Context(),
		&healthpb.HealthCheckRequest{}); err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("the health, without a token: have %v, %v", h, err)
	}
	if _, err := services(t.Context(), n.conn); status.Code(err) != codes.Unauthenticated {
		t.Errorf("reflection without a token: have %v", err)
	}
	if list, err := services(metadata.AppendToOutgoingContext(t.Context(), "authorization",
		"Bearer secret-asker"), n.conn); err != nil || !strings.Contains(list, rls.Service) {
		t.Errorf("reflection: have %s, %v", list, err)
	}
}

// services returns the services that reflection lists, and the file of the rate limit service.
func services(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return "", err
	}
	all := ""
	for _, request := range []*reflectionpb.ServerReflectionRequest{
		{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}},
		{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: rls.Service}},
	} {
		if err := stream.Send(request); err != nil {
			_, err = stream.Recv()
			return all, err
		}
		answer, err := stream.Recv()
		if err != nil {
			return all, err
		}
		if e := answer.GetErrorResponse(); e != nil {
			return all, status.Error(codes.Code(e.GetErrorCode()), e.GetErrorMessage())
		}
		all += answer.String()
	}
	return all, nil
}

// Over TLS, the door presents the certificate of the data plane.
func TestTLS(t *testing.T) {
	cert, key := testca.WritePair(t, t.TempDir(), "n1")
	pem, err := os.ReadFile(cert)
	expect.NoError(t, err)
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.CertFile, c.KeyFile = cert, key })
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	conn, err := grpc.NewClient(n.server.Addr().String(),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})))
	expect.NoError(t, err)
	defer conn.Close()
	if have, err := ask(t, conn, "", oneDescriptor("k", "a", "")); err != nil || have != ok(two, "1") {
		t.Errorf("have %s, %v", have, err)
	}
	if _, err := ask(t, n.conn, "", oneDescriptor("k", "a", "")); status.Code(err) != codes.Unavailable {
		t.Errorf("in plain text: have %v", err)
	}
}

// A new certificate applies to new connections. Old ones stay open.
func TestCertificateIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := testca.WritePair(t, dir, "n1")
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.CertFile, c.KeyFile = cert, key })
	open := func() *grpc.ClientConn {
		conn, err := grpc.NewClient(n.server.Addr().String(),
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
		expect.NoError(t, err)
		return conn
	}
	// The serial number of a connection's certificate, and its own address.
	serialOf := func(conn *grpc.ClientConn) (serial, address string) {
		var p peer.Peer
		if _, err := ask(t, conn, "", oneDescriptor("free", "a", ""), grpc.Peer(&p)); err != nil {
			t.Fatal(err)
		}
		return p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].SerialNumber.String(), p.LocalAddr.String()
	}
	old := open()
	defer old.Close()
	first, address := serialOf(old)
	testca.WritePair(t, dir, "n1")
	apitest.Until(t, "a new connection gets the new certificate", func() bool {
		conn := open()
		defer conn.Close()
		have, _ := serialOf(conn)
		return have != first
	})
	if serial, now := serialOf(old); serial != first || now != address {
		t.Errorf("the old connection: have %s at %s, want %s at %s", serial, now, first, address)
	}
}

// The span of a call is a child of the span named in the metadata. It says how
// the call was decided, and never names the subject.
func TestCallsAreTraced(t *testing.T) {
	collector := apitest.StartCollector(t, 0)
	file := apitest.TokensFile(t, apitest.TokenEntry("asker", "secret-asker", "check"))
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.Tracer, c.TokensFile = collector.Tracer, file })
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	call := func(token, request, flag string) {
		in := message(t, "RateLimitRequest")
		expect.NoError(t, protojson.Unmarshal([]byte(request), in))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token,
			"traceparent", "00-"+traceID+"-"+spanID+"-"+flag)
		_ = n.conn.Invoke(ctx, path, in, message(t, "RateLimitResponse")) // the span says how it ended
	}
	call("secret-asker", oneDescriptor("none", "somebody", ""), "01")
	call("secret-asker", oneDescriptor("none", "somebody", ""), "00") // not traced
	call("secret-asker", `{"domain":"d"}`, "01")
	call("guess", oneDescriptor("none", "somebody", ""), "01")
	spans, raw := collector.Close(t)
	var have []string
	for _, s := range spans {
		line := s.Name
		for _, a := range s.Attributes {
			switch a.Key {
			case "rlnode.rule", "rlnode.decided_by", "rlnode.token":
				line += " " + a.Value.GetStringValue()
			case "http.response.status_code":
				line += " " + strconv.FormatInt(a.Value.GetIntValue(), 10)
			}
		}
		have = append(have, line)
		if id, parent := hex.EncodeToString(s.TraceId), hex.EncodeToString(s.ParentSpanId); id != traceID || parent != spanID {
			t.Errorf("%s: trace %s, parent %s", line, id, parent)
		}
	}
	want := "ShouldRateLimit 200 asker owner d.none\nShouldRateLimit 400 asker\nShouldRateLimit 401"
	if text := strings.Join(have, "\n"); text != want {
		t.Errorf("have\n%s\nwant\n%s", text, want)
	}
	if strings.Contains(raw, "somebody") || strings.Contains(raw, "secret") {
		t.Error("a span reveals the subject or the token")
	}
}

// dialFrom opens a connection to n from a loopback address.
func dialFrom(t *testing.T, n *node, address string) *grpc.ClientConn {
	t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return dial(t, n, grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		return from.DialContext(ctx, "tcp", to)
	}))
}

// isCrowded reports whether err says that a connection found no place.
func isCrowded(err error) bool {
	return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "too many connections")
}

// On connections beyond the bound, the node answers only health checks.
func TestCrowded(t *testing.T) {
	file := apitest.TokensFile(t, apitest.TokenEntry("asker", "secret", "check"))
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.MaxConnections, c.TokensFile = 5, file })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, address := range []string{"127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3"} {
		if _, err := ask(t, dialFrom(t, n, address), "secret", oneDescriptor("k", "a", "")); err != nil {
			t.Errorf("a caller with a token: got %v", err)
		}
	}

	conn := dial(t, n)
	h, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("the health: got %v, %v", h, err)
	}
	if _, err := ask(t, conn, "secret", oneDescriptor("k", "a", "")); !isCrowded(err) {
		t.Errorf("a connection without a place: got %v", err)
	}
}

// Strangers that hold all places, whatever they do with them, don't keep out callers with a token.
func TestStrangersGiveWay(t *testing.T) {
	file := apitest.TokensFile(t, apitest.TokenEntry("asker", "secret", "check"))
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.MaxConnections, c.TokensFile = 9, file })
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	kept := dialFrom(t, n, "127.0.0.2")
	for i := range 30 {
		stranger := dialFrom(t, n, "127.0.0.3")
		switch i % 3 {
		case 0:
			_, _ = healthpb.NewHealthClient(stranger).Watch(ctx, &healthpb.HealthCheckRequest{},
				grpc.WaitForReady(true))
		case 1:
			// half a call
			_, _ = stranger.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, path, grpc.WaitForReady(true))
		case 2:
			_, _ = ask(t, stranger, "guess", oneDescriptor("k", "a", ""))
		}
		for name, conn := range map[string]*grpc.ClientConn{"an old connection": kept,
			"a new one": dialFrom(t, n, "127.0.0.4")} {
			if _, err := ask(t, conn, "secret", oneDescriptor("k", "a", "")); err != nil {
				t.Errorf("after %d strangers, %s: got %v", i+1, name, err)
			}
		}
	}
}

// Who has no token does not learn which services and methods there are.
func TestUnknownServices(t *testing.T) {
	file := apitest.TokensFile(t, apitest.TokenEntry("asker", "secret", "check"))
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.TokensFile = file })
	for _, method := range []string{"/no.such.Service/Method", "/" + rls.Service + "/NoSuchMethod", path} {
		for token, want := range map[string]codes.Code{"": codes.Unauthenticated,
			"guess": codes.Unauthenticated, "secret": codes.Unimplemented} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if token != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
			}
			if method == path && token == "secret" {
				want = codes.OK
			}
			in := message(t, "RateLimitRequest")
			expect.NoError(t, protojson.Unmarshal([]byte(oneDescriptor("k", "a", "")), in))
			err := n.conn.Invoke(ctx, method, in, message(t, "RateLimitResponse"))
			if status.Code(err) != want {
				t.Errorf("%s with %q: got %v, want %v", method, token, err, want)
			}
			cancel()
		}
	}
}

// A caller that does not complete its request loses its connection. One that
// opens reflection and sends nothing loses its stream.
func TestSlowCaller(t *testing.T) {
	t.Parallel()
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.Timeout = time.Second })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	// sends only headers
	stream, err := n.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, path, grpc.WaitForReady(true))
	if err == nil {
		err = stream.RecvMsg(message(t, "RateLimitResponse"))
	}
	if code := status.Code(err); ctx.Err() != nil || code != codes.Unavailable && code != codes.ResourceExhausted {
		t.Errorf("have %v", err)
	}
	list, err := reflectionpb.NewServerReflectionClient(n.conn).ServerReflectionInfo(ctx, grpc.WaitForReady(true))
	if err == nil {
		_, err = list.Recv()
	}
	if ctx.Err() != nil || status.Code(err) != codes.Canceled {
		t.Errorf("reflection that asks nothing: have %v", err)
	}
}

// The health follows the node's readiness only while a caller watches it.
func TestHealthIsFollowedWhileWatched(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	var ill atomic.Bool
	n := startNode(t, vectorRules, func(c *apitest.Config) {
		c.CheckReady = func() error {
			looks.Add(1)
			if ill.Load() {
				return errors.New("ill")
			}
			return nil
		}
	})
	quiet := func() bool {
		before := looks.Load()
		time.Sleep(3 * healthInterval)
		return looks.Load() == before
	}
	for end := time.Now().Add(20 * time.Second); !quiet(); {
		if time.Now().After(end) {
			t.Fatal("the readiness is polled although no caller watches the health")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	watch, err := healthpb.NewHealthClient(n.conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	expect.NoError(t, err)
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{
		healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING,
		healthpb.HealthCheckResponse_SERVING,
	} {
		if h, err := watch.Recv(); err != nil || h.GetStatus() != want {
			t.Fatalf("have %v, %v, want %v", h, err, want)
		}
		ill.Store(!ill.Load())
	}
	cancel()
	for end := time.Now().Add(20 * time.Second); !quiet(); {
		if time.Now().After(end) {
			t.Fatal("the readiness is still polled after the last watch has ended")
		}
	}
}

// A node that is no working member of the cluster refuses with UNAVAILABLE,
// once callers have had time to turn away, so that Envoy asks another one. Not
// being ready alone is no reason: a node whose voter is being replaced decides.
func TestNoMemberRefuses(t *testing.T) {
	t.Parallel()
	var left, replacing atomic.Bool
	failIf := func(why *atomic.Bool, text string) func() error {
		return func() error {
			if why.Load() {
				return errors.New(text)
			}
			return nil
		}
	}
	n := startNode(t, vectorRules, func(c *apitest.Config) {
		c.CheckReady, c.CheckMember = failIf(&replacing, "replacing"), failIf(&left, "the node has left the cluster")
	})
	asked := func() error {
		_, err := ask(t, n.conn, "", oneDescriptor("free", "a", ""))
		return err
	}
	replacing.Store(true)
	if h, err := healthpb.NewHealthClient(n.conn).Check(t.Context(),
		&healthpb.HealthCheckRequest{}); err != nil || h.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health while a voter is replaced: got %v, %v, want NOT_SERVING", h, err)
	}
	if err := asked(); err != nil {
		t.Errorf("while a voter is replaced: got %v, want an answer", err)
	}
	left.Store(true)
	began := time.Now()
	if err := asked(); err != nil && time.Since(began) < api.DrainGrace {
		t.Errorf("just left: got %v, want an answer", err)
	}
	apitest.Until(t, "the node refuses", func() bool { return status.Code(asked()) == codes.Unavailable })
	if after := time.Since(began); after < api.DrainGrace {
		t.Errorf("it refused after %v, want at least %v", after, api.DrainGrace)
	}
	left.Store(false)
	if err := asked(); err != nil {
		t.Errorf("a member again: got %v, want an answer", err)
	}
}

// A node that drains reports that to health watches. They don't delay its end,
// and connections are closed.
func TestLeaves(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	n.answer(oneDescriptor("k", "a", ""))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	watch, err := healthpb.NewHealthClient(n.conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: rls.Service})
	expect.NoError(t, err)
	next := func() healthpb.HealthCheckResponse_ServingStatus {
		h, err := watch.Recv()
		expect.NoError(t, err)
		return h.GetStatus()
	}
	for next() != healthpb.HealthCheckResponse_SERVING { // the health follows a moment later
	}
	n.Drain()
	expect.Equal(t, next(), healthpb.HealthCheckResponse_NOT_SERVING, "next()")
	if have := n.answer(oneDescriptor("k", "a", "")); have != ok(two, "") { // it still decides
		t.Errorf("have %s", have)
	}
	began := time.Now()
	if err := n.Close(ctx); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("closed after %v: %v", time.Since(began), err)
	}
	if _, err := watch.Recv(); err == nil {
		t.Error("the watch does not end")
	}
}
