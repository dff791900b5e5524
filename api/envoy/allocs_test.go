//go:build !race

package envoy

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/rlnode/rlnode/internal/expect"
)

// For a request with any number of descriptors, the door allocates only the
// answer, which grpc-go keeps until it is sent, and the slice that holds it.
func TestRequestAllocatesLittle(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	in := message(t, "RateLimitRequest")
	expect.NoError(t,
		protojson.Unmarshal([]byte(`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}]},{"entries":[{"key":"k","value":"b"}]},{"entries":[{"key":"k","value":"c"}]}]}`), in))
	request, err := proto.Marshal(in)
	expect.NoError(t, err)
	s := n.server
	receive := func(m any) error {
		c := m.(*call)
		c.buf = append(c.buf[:0], request...)
		return nil
	}
	have := testing.AllocsPerRun(1000, func() {
		c := s.getCall()
		who, e := s.admit(t.Context())
		if e != nil {
			t.Fatal(e)
		}
		expect.NoError(t, c.arrival.await(t.Context(), nil, receive, c))
		if e := c.decide(who); e != nil {
			t.Fatal(e)
		}
		if out, err := (codec{}).Marshal(c); err != nil || out.Len() == 0 {
			t.Fatal(err)
		}
	})
	if have > 5 {
		t.Errorf("%v allocations", have)
	}
}
