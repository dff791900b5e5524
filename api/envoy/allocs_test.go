//go:build !race

package envoy

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// For a request with any number of descriptors, the door allocates only the answer, which grpc-go keeps until it is sent, and the
// slice that holds it.
func TestRequestAllocatesLittle(t *testing.T) {
	n := startNode(t, vectorRules, nil)
	in := message(t, "RateLimitRequest")
	if err := protojson.Unmarshal([]byte(`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}]},{"entries":[{"key":"k","value":"b"}]},{"entries":[{"key":"k","value":"c"}]}]}`), in); err != nil {
		t.Fatal(err)
	}
	request, err := proto.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	s := n.server
	receive := func(m any) error {
		c := m.(*call)
		c.buf = append(c.buf[:0], request...)
		return nil
	}
	have := testing.AllocsPerRun(1000, func() {
		c := s.acquire()
		who, e := s.admit(t.Context())
		if e != nil {
			t.Fatal(e)
		}
		if err := c.arrival.await(t.Context(), nil, receive, c); err != nil {
			t.Fatal(err)
		}
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
