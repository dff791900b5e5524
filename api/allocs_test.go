package api

import (
	"strings"
	"testing"
	"time"
)

// A batch allocates nothing once its buffers have grown, be its checks allowed, refused, or in detail.
func TestBatchAllocatesNothing(t *testing.T) {
	detailed := `{"attributes":{"ip":"198.51.100.7","tenant":"acme"},"costs":{"tokens":900},"detail":true}`
	for _, check := range []string{plainCheck, detailed} {
		for _, refused := range []bool{false, true} {
			f := newFixed()
			if refused {
				f.refuse(1, time.Second)
			}
			p := newPlane(f)
			body := `{"checks":[` + strings.Repeat(check+",", 49) + check + `]}`
			x := p.acquire() // once: the race detector's pool forgets at random
			n := testing.AllocsPerRun(100, func() {
				x.reset()
				x.method, x.path = "POST", "/v1/check/batch"
				x.request.body = append(x.request.body, body...)
				serve(p, x)
			})
			if n != 0 || x.status != 200 || x.checks != 50 {
				t.Errorf("%s, refused %v: have %v allocations a batch, want 0; status %d of %d checks", check, refused, n, x.status, x.checks)
			}
		}
	}
}

// The token costs nothing.
func TestTokenAllocatesNothing(t *testing.T) {
	p := newPlane(newFixed())
	p.tokens.set.Store(setTokens("secret", "other"))
	x := p.acquire()
	if n := testing.AllocsPerRun(500, func() {
		x.reset()
		x.method, x.path, x.authorization = "POST", "/v1/check", "Bearer secret"
		x.request.body = append(x.request.body, plainCheck...)
		if serve(p, x); x.status != 200 {
			t.Errorf("have status %d", x.status)
		}
	}); n != 0 {
		t.Errorf("have %v allocations, want 0", n)
	}
}

func TestLatencyAllocatesNothing(t *testing.T) {
	var l latency
	s := l.stripe()
	took := time.Duration(1)
	if n := testing.AllocsPerRun(500, func() {
		s.observe(took)
		took *= 2
		took %= 2 * time.Second
	}); n != 0 {
		t.Errorf("have %v allocations, want 0", n)
	}
}
