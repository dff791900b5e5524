package httpd

import (
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
)

// Checking the token allocates nothing.
func TestTokenAllocatesNothing(t *testing.T) {
	p := planeWithTokens(t, newFixed(), "secret", "other")
	x := p.getExchange()
	if n := testing.AllocsPerRun(500, func() {
		x.reset()
		x.method, x.path, x.authorization = "POST", "/v1/check", "Bearer secret"
		x.request.body = append(x.request.body, plainCheck...)
		if serve(p, x); x.Status != 200 {
			t.Errorf("have status %d", x.Status)
		}
	}); n != 0 {
		t.Errorf("have %v allocations, want 0", n)
	}
}

func TestLatencyAllocatesNothing(t *testing.T) {
	var l api.Latency
	s := l.Stripe()
	took := time.Duration(1)
	if n := testing.AllocsPerRun(500, func() {
		s.Observe(took)
		took *= 2
		took %= 2 * time.Second
	}); n != 0 {
		t.Errorf("have %v allocations, want 0", n)
	}
}
