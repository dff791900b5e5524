package interceptor

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// checker gives the same answer to every check, and records the requests.
type checker struct {
	asked  []client.Request
	answer string // a node's JSON
	err    error
}

func (c *checker) Check(_ context.Context, q client.Request) (d client.Decision, err error) {
	c.asked = append(c.asked, q)
	if c.err != nil {
		return client.Decision{DecidedBy: client.ByError, Reason: "Nobody answers."}, c.err
	}
	err = d.UnmarshalJSON([]byte(c.answer))
	d.MakeHeaders(false, q.Headers, true)
	return d, err
}

const figures = `"rule":"r","limit":10,"remaining":4,"unit":"requests","window_ms":60000,"reset_after_ms":6000,"decided_by":"owner"`

// health is a service that records the decisions in the contexts of its calls.
type health struct {
	grpc_health_v1.UnimplementedHealthServer
	decisions []client.Decision
}

func (h *health) Check(
	ctx context.Context, _ *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	d, _ := client.FromContext(ctx)
	h.decisions = append(h.decisions, d)
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func (h *health) Watch(
	_ *grpc_health_v1.HealthCheckRequest, s grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse],
) error {
	d, _ := client.FromContext(s.Context())
	h.decisions = append(h.decisions, d)
	return s.Send(&grpc_health_v1.HealthCheckResponse{})
}

// call makes a unary or streaming call to a server with the interceptors, and
// returns the answer's metadata.
func call(t *testing.T, c client.Checker, o Options, streams bool, more ...string) (*health, metadata.MD, error) {
	t.Helper()
	service := &health{}
	server := grpc.NewServer(grpc.UnaryInterceptor(Unary(c, o)), grpc.StreamInterceptor(Stream(c, o)))
	grpc_health_v1.RegisterHealthServer(server, service)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	go server.Serve(ln)
	defer server.Stop()
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	expect.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), more...), 20*time.Second)
	defer cancel()
	stub := grpc_health_v1.NewHealthClient(conn)
	if !streams {
		var header, trailer metadata.MD
		_, err = stub.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
		return service, metadata.Join(header, trailer), err
	}
	s, err := stub.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	expect.NoError(t, err)
	_, err = s.Recv()
	header, _ := s.Header()
	return service, metadata.Join(header, s.Trailer()), err
}

func TestCalls(t *testing.T) {
	for _, test := range []struct {
		name, answer string
		err          error
		code         codes.Code
		retry        time.Duration
		header       map[string]string
	}{
		{"allowed", `{"allowed":true,` + figures + `}`, nil, codes.OK, 0,
			map[string]string{"x-ratelimit-remaining": "4", "x-ratelimit-limit": "10", "retry-after": ""}},
		{"refused", `{"allowed":false,"retry_after_ms":1500,` + figures + `}`, nil,
			codes.ResourceExhausted, 1500 * time.Millisecond,
			map[string]string{"x-ratelimit-remaining": "4", "retry-after": "2"}},
		{"never", `{"allowed":false,"retry_after_ms":-1,` + figures + `}`, nil,
			codes.ResourceExhausted, 0, map[string]string{"retry-after": ""}},
		{"denied", `{"allowed":false,"retry_after_ms":-1,"decided_by":"list"}`, nil, codes.PermissionDenied, 0, nil},
		{"nobody", "", errors.New("x"), codes.Unavailable, time.Second, nil},
		{"a long delay", `{"allowed":true,"delay_ms":3600000,` + figures + `}`, nil,
			codes.ResourceExhausted, time.Hour, map[string]string{"retry-after": "3600"}},
		{"a short delay", `{"allowed":true,"delay_ms":1,` + figures + `}`, nil, codes.OK, 0, nil},
	} {
		for _, streams := range []bool{false, true} {
			c := &checker{answer: test.answer, err: test.err}
			var told error
			service, header, err := call(t, c,
				Options{TrustedHops: 1, OnError: func(_ context.Context, err error) { told = err }},
				streams, "x-forwarded-for", "192.0.2.7")
			s := status.Convert(err)
			retry := time.Duration(0)
			for _, detail := range s.Details() {
				retry = detail.(*errdetails.RetryInfo).GetRetryDelay().AsDuration()
			}
			if s.Code() != test.code || retry != test.retry || told != test.err ||
				len(service.decisions) != map[bool]int{true: 1}[test.code == codes.OK] {
				t.Errorf("%s: have %v, retry in %v, told %v, decisions %v", test.name, err, retry,
					told, service.decisions)
			}
			if err == nil && !service.decisions[0].Allowed || err != nil && s.Message() == "" {
				t.Errorf("%s: have %v, %v", test.name, service.decisions, err)
			}
			for name, want := range test.header {
				expect.Equal(t, append(header.Get(name), "")[0], want, "%s: %s", test.name, name)
			}
			endpoint := "/grpc.health.v1.Health/Check"
			if streams {
				endpoint = "/grpc.health.v1.Health/Watch"
			}
			want := client.Request{Attributes: map[string]string{"ip": "192.0.2.7",
				"endpoint": endpoint}, Headers: true}
			expect.DeepEqual(t, c.asked, []client.Request{want}, "asked")
		}
	}
}

func TestOptions(t *testing.T) {
	c := &checker{answer: `{"allowed":true,"delay_ms":3600000,` + figures + `}`}
	o := Options{
		Rule: "r", IgnoreDelay: true, NoHeaders: true,
		Key:  func(_ context.Context, method string) []string { return []string{method} },
		Cost: func(context.Context, string) map[string]int64 { return map[string]int64{"tokens": 7} },
	}
	if _, header, err := call(t, c, o, false); err != nil || len(header.Get("x-ratelimit-limit")) > 0 {
		t.Errorf("have %v, %v", header, err)
	}
	want := client.Request{Rule: "r", Key: []string{"/grpc.health.v1.Health/Check"},
		Costs: map[string]int64{"tokens": 7}}
	expect.DeepEqual(t, c.asked, []client.Request{want}, "asked")
	o.Skip = func(context.Context, string) bool { return true }
	if _, _, err := call(t, c, o, false); err != nil || len(c.asked) != 1 {
		t.Errorf("have %v, asked %d times", err, len(c.asked))
	}
	inline := client.Request{Key: []string{"a"}, Limits: []client.Limit{{Limit: 1, Per: "1m"}}}
	if _, _, err := call(t, c,
		Options{Request: func(context.Context, string) client.Request { return inline }, IgnoreDelay: true},
		false); err != nil {
		t.Error(err)
	}
	inline.Headers = true
	expect.DeepEqual(t, c.asked[1], inline, "asked")
	if _, _, err := call(t, c, Options{}, false); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("have %v", err)
	}
	if ip := c.asked[2].Attributes["ip"]; ip != "127.0.0.1" {
		t.Errorf("have ip %q", ip)
	}
	defer func() {
		if recover() == nil {
			t.Error("Key without Rule did not panic")
		}
	}()
	Unary(c, Options{Key: o.Key})
}

// If a caller gives up while its call is held, the call ends.
func TestHeldCallsEndWithTheirCaller(t *testing.T) {
	c := &checker{answer: `{"allowed":true,"delay_ms":20000,` + figures + `}`}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := Unary(c, Options{})(ctx, nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
		t.Error("the handler was called")
		return nil, nil
	})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("have %v", err)
	}
}

// TestRealNode: callers get the rate headers of a real node's rules, and learn when to retry.
func TestRealNode(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program")
	}
	folder := t.TempDir()
	program, rules := filepath.Join(folder, "rlnode"), filepath.Join(folder, "rules.yaml")
	text := "version: 1\nrules: [{name: calls, key: [ip], limits: [{limit: 2, per: 1h, algorithm: fixed-window}]}]\n"
	expect.NoError(t, errors.Join(process.Build(program), os.WriteFile(rules, []byte(text), 0o600)))
	node := process.Start(t, program, "--rules", rules)
	c, err := client.New(client.Options{Nodes: []string{node.Data}, Timeout: process.Timeout, OnError: client.Closed})
	expect.NoError(t, err)
	defer c.Close()
	for i, streams := range []bool{false, true, false, true} {
		_, header, err := call(t, c, Options{}, streams)
		left := regexp.MustCompile(`^"calls";r=(\d);t=\d+$`).FindStringSubmatch(strings.Join(header.Get("ratelimit"), "|"))
		if left == nil || left[1] != strconv.Itoa(max(1-i, 0)) ||
			!slices.Equal(header.Get("ratelimit-policy"), []string{`"calls";q=2;w=3600`}) {
			t.Errorf("call %d: have %v", i, header)
		}
		s, retry := status.Convert(err), strings.Join(header.Get("retry-after"), "|")
		if i < 2 {
			if err != nil || retry != "" {
				t.Errorf("call %d: have %v, %v", i, err, header)
			}
			continue
		}
		seconds, _ := strconv.Atoi(retry)
		if s.Code() != codes.ResourceExhausted || len(s.Details()) != 1 || seconds < 1 || seconds > 3600 {
			t.Errorf("call %d: have %v, %v, %v", i, err, s.Details(), header)
		}
	}
}

func TestMissingKey(t *testing.T) {
	for _, test := range []struct {
		missing, key string
		code         codes.Code
		asked        []string
	}{
		{"", "a", codes.OK, []string{"a"}}, {"", "", codes.InvalidArgument, nil},
		{client.MissingRefuse, "", codes.InvalidArgument, nil},
		{client.MissingError, "", codes.Internal, nil}, {client.MissingAllow, "", codes.OK, nil},
		{"anonymous", "", codes.OK, []string{"anonymous"}},
	} {
		c := &checker{answer: `{"allowed":true,` + figures + `}`}
		var told error
		o := Options{
			Rule: "r", MissingKey: test.missing,
			Key:     func(context.Context, string) []string { return []string{test.key} },
			OnError: func(_ context.Context, err error) { told = err },
		}
		_, _, err := call(t, c, o, false)
		if status.Code(err) != test.code || errors.Is(told, client.ErrMissingKey) != (test.code == codes.Internal) {
			t.Errorf("%q: have %v, told %v", test.missing, err, told)
		}
		if len(c.asked) > 0 != (test.asked != nil) || test.asked != nil && !slices.Equal(c.asked[0].Key, test.asked) {
			t.Errorf("%q: asked %+v", test.missing, c.asked)
		}
	}
}

// scripted is a stream that receives a number of messages.
type scripted struct {
	grpc.ServerStream
	ctx  context.Context
	left int
}

func (s *scripted) Context() context.Context    { return s.ctx }
func (s *scripted) SetHeader(metadata.MD) error { return nil }
func (s *scripted) RecvMsg(any) error {
	if s.left == 0 {
		return io.EOF
	}
	s.left--
	return nil
}

// Each further message of a stream is checked if that is asked for, and a refusal ends the stream.
func TestEachMessage(t *testing.T) {
	const allowed, refused = `{"allowed":true,"decided_by":"owner"}`, `{"allowed":false,"decided_by":"owner","retry_after_ms":1000}`
	for _, each := range []bool{false, true} {
		c := &checker{answer: allowed}
		receive := Stream(c, Options{Rule: "r", EachMessage: each})
		var got []error
		err := receive(nil, &scripted{ctx: t.Context(), left: 5},
			&grpc.StreamServerInfo{FullMethod: "/s/m"}, func(_ any, s grpc.ServerStream) error {
				for i := range 6 {
					if i == 3 {
						c.answer = refused
					}
					err := s.RecvMsg(nil)
					got = append(got, err)
					if err != nil {
						return err
					}
				}
				return nil
			})
		want, checks := io.EOF.Error(), 1
		if each {
			want, checks = codes.ResourceExhausted.String(), 4
		}
		if err == nil || !strings.Contains(err.Error(), want) || len(c.asked) != checks {
			t.Errorf("each %t: %v after %d messages and %d checks, want %s after %d checks", each,
				err, len(got), len(c.asked), want, checks)
		}
	}
}
