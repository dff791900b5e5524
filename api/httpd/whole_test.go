//go:build !race

package httpd

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// These tests rely on pools, which drop objects at random under the race detector.

// wholeRequests returns requests as the server library hands them over: a POST, and a proxy's GET.
func wholeRequests(tb testing.TB, f *fixed) map[string]func() {
	s := &Server{handlers: handlersOf(f)}
	requests := map[string]func(*fasthttp.Request){
		"POST /v1/check": func(r *fasthttp.Request) {
			r.Header.SetMethod("POST")
			r.SetRequestURI("/v1/check")
		},
		"GET /v1/auth": func(r *fasthttp.Request) {
			r.Header.SetMethod("GET")
			r.SetRequestURI("/v1/auth/web?deny_status=403")
			r.Header.Set("X-Forwarded-For", "203.0.113.9, 198.51.100.7")
			r.Header.Set("X-Forwarded-Uri", "/chat?x=y")
		},
	}
	all := map[string]func(){}
	for name, fill := range requests {
		ctx, text, body := &fasthttp.RequestCtx{}, []byte(plainCheck), bytes.NewReader(nil)
		ctx.Init(&fasthttp.Request{}, nil, nil)
		all[name] = func() {
			ctx.Request.Reset()
			ctx.Response.Reset()
			if fill(&ctx.Request); ctx.IsPost() {
				body.Reset(text)
				ctx.Request.SetBodyStream(body, len(plainCheck))
			}
			if s.handle(ctx); ctx.Response.StatusCode() >= 500 || ctx.Response.StatusCode() == 404 {
				tb.Error(ctx.Response.String())
			}
		}
	}
	return all
}

// authFixed is a fixed answer for rules with a profile.
func authFixed(tb testing.TB, refused bool) *fixed {
	f := newFixed()
	doc, err := document.Parse([]byte(authRules))
	expect.NoError(tb, err)
	if f.set, err = rules.Compile(doc, 17); err != nil {
		tb.Fatal(err)
	}
	if refused {
		f.refuse(1, time.Second)
	}
	return f
}

// Answering a request of the library allocates nothing.
func TestWholeRequestsAllocateNothing(t *testing.T) {
	for _, refused := range []bool{false, true} {
		for name, run := range wholeRequests(t, authFixed(t, refused)) {
			for range 10 {
				run()
			}
			expect.Equal(t, testing.AllocsPerRun(500, run), 0, "%s, refused %v: allocations", name, refused)
		}
	}
}

func BenchmarkWhole(b *testing.B) {
	for _, refused := range []bool{false, true} {
		for name, run := range wholeRequests(b, authFixed(b, refused)) {
			b.Run(fmt.Sprint(name, ", refused ", refused), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					run()
				}
			})
		}
	}
}

// A batch allocates nothing once its buffers have grown, whether its checks are
// allowed, refused, or with detail.
func TestBatchAllocatesNothing(t *testing.T) {
	detailed := `{"attributes":{"ip":"198.51.100.7","tenant":"acme"},"costs":{"tokens":900},"detail":true}`
	for _, check := range []string{plainCheck, detailed} {
		for _, refused := range []bool{false, true} {
			f := newFixed()
			if refused {
				f.refuse(1, time.Second)
			}
			p := handlersOf(f)
			body := `{"checks":[` + strings.Repeat(check+",", 49) + check + `]}`
			x := p.getExchange()
			n := testing.AllocsPerRun(100, func() {
				x.reset()
				x.method, x.path = "POST", "/v1/check/batch"
				x.request.body = append(x.request.body, body...)
				serve(p, x)
			})
			if n != 0 || x.Status != 200 || x.checks != 50 {
				t.Errorf("%s, refused %v: have %v allocations a batch, want 0; status %d of %d checks", check, refused, n, x.Status, x.checks)
			}
		}
	}
}
