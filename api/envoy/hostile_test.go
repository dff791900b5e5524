package envoy

import (
	"bytes"
	"context"
	"flag"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/rls"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
)

var hostileRequests = flag.Int("hostile", 5_000, "how many random requests are sent") // make hostile sends a million

// rawCodec sends bytes in place of a request.
type rawCodec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(*[]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func field(b []byte, n protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

func descriptorOf(key, value string) string {
	return string(field(nil, 1, string(field(field(nil, 1, key), 2, value))))
}

// Requests beyond the bounds, and bytes that are not a request, are refused
// with a detail. The node answers the next request.
func TestHostileRequests(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	domain := field(nil, 1, "d")
	many := domain
	for range 10_000 {
		many = field(many, 2, descriptorOf("k", "v"))
	}
	deep := string(field(field(nil, 1, "k"), 2, "v"))
	entries := ""
	for range 1000 {
		entries += string(field(nil, 1, deep))
	}
	for name, test := range map[string]struct {
		request []byte
		want    string
	}{
		"10,000 descriptors": {many, "descriptors: at most 64 are allowed"},
		"1,000 entries":      {field(domain, 2, entries), "entries"},
		"a huge domain":      {field(nil, 1, strings.Repeat("x", 100_000)), "domain"},
		"cut short":          {bytes.TrimSuffix(field(domain, 2, descriptorOf("k", "v")), []byte("v")), ""},
		"a wrong type":       {protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7), ""},
		"over the bound":     {field(domain, 2, descriptorOf("k", strings.Repeat("x", 300_000))), "larger than max"},
	} {
		err := n.send(t, test.request)
		s := status.Convert(err)
		if s.Code() != codes.InvalidArgument && s.Code() != codes.ResourceExhausted ||
			!strings.Contains(s.Message(), test.want) {
			t.Errorf("%s: have %v, want %q", name, err, test.want)
		}
	}
	// Clients choose the values. If a value caused an error, Envoy might let the request pass.
	for _, value := range []string{strings.Repeat("x", 100_000), "\xff\xfe"} {
		if err := n.send(t, field(domain, 2, descriptorOf("k", value))); err != nil {
			t.Errorf("a value of %d bytes: %v", len(value), err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	good := field(domain, 2, descriptorOf("k", "v"))
	for range *hostileRequests {
		b := bytes.Clone(good)
		for range 1 + random.IntN(4) {
			b[random.IntN(len(b))] = byte(random.Uint32())
		}
		switch s := status.Convert(n.send(t, b[:random.IntN(len(b)+1)])); s.Code() {
		case codes.OK, codes.InvalidArgument:
		default:
			t.Fatalf("%x: have %v", b, s)
		}
	}
	if have := n.answer(oneDescriptor("k", "after", "")); have != ok(two, "1") {
		t.Errorf("have %s", have)
	}
}

// send sends raw bytes as a request.
func (n *node) send(t *testing.T, request []byte) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out := message(t, "RateLimitResponse")
	return n.conn.Invoke(ctx, path, &request, out, grpc.ForceCodecV2(rawCodec{generated}))
}

// The numbers of connections, streams and goroutines return to their earlier levels.
func TestNothingStays(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	n.answer(oneDescriptor("k", "a", ""))
	before := runtime.NumGoroutine()
	for range 50 {
		c := dial(t, n)
		if _, err := ask(t, c, "", oneDescriptor("k", "b", "")); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	apitest.Until(t, "connections and goroutines end", func() bool {
		open, _ := n.server.conns.Count()
		return open <= 1 && runtime.NumGoroutine() <= before+2
	})
}

// panicking is a decider that panics.
type panicking struct{ api.Decider }

func (panicking) Check(*limiter.Query, *limiter.Answer) error { panic("a bug") }

// A panic gives back what its call was charged.
func TestPanicsKeepNothingCharged(t *testing.T) {
	n := startNode(t, vectorRules, func(c *apitest.Config) { c.Decider = panicking{c.Decider} })
	one := strings.TrimSuffix(strings.TrimPrefix(oneDescriptor("k", strings.Repeat("a", 400), ""), `{"domain":"d","descriptors":[`), `]}`)
	request := `{"domain":"d","descriptors":[` + strings.Repeat(one+",", rls.MaxDescriptors-1) + one + `]}`
	if _, err := ask(t, n.conn, "", request); status.Code(err) != codes.Internal {
		t.Fatalf("got %v", err)
	}
	expect.Equal(t, n.Panics.Load(), 1, "panics")
	expect.Equal(t, n.Budget.Used(), 0, "bytes stay charged")
}

// What a large request needed does not stay in the pool: the next small one
// would be charged for it.
func TestLargeRequestsLeaveNoBuffers(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	c := n.server.getCall()
	c.buf = make([]byte, 0, api.UnchargedBytes+1)
	c.put()
	expect.Equal(t, cap(c.buf), 0, "bytes in the pool")
}
