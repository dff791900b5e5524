package httpd

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
)

// fixed is a decider that gives every check the same answer.
type fixed struct {
	answer limiter.Answer
	set    *rules.Set
}

func (f *fixed) Check(_ *limiter.Query, a *limiter.Answer) error {
	limits := append(a.Limits[:0], f.answer.Limits...)
	*a = f.answer
	a.Limits = limits
	return nil
}

func (f *fixed) CheckAll(queries []*limiter.Query, answers []*limiter.Answer, errs []error) {
	for i := range queries {
		errs[i] = f.Check(queries[i], answers[i])
	}
}

func (f *fixed) Reserve(q *limiter.Query, _ time.Duration, a *limiter.Answer) (string, error) {
	return "an id", f.Check(q, a)
}

func (f *fixed) Settle(string, []limiter.UnitCost) (*limiter.Settlement, error) {
	return nil, limiter.ErrUnknownReservation
}

func (f *fixed) Acquire(q *limiter.Query, a *limiter.Answer) (limiter.Slot, error) {
	return limiter.Slot{ID: "a slot", Expires: time.Second}, f.Check(q, a)
}

func (f *fixed) RenewSlot(string, time.Duration) (time.Duration, error) {
	return 0, limiter.ErrUnknownSlot
}
func (f *fixed) ReleaseSlot(string) (bool, error)   { return false, limiter.ErrUnknownSlot }
func (f *fixed) ReleaseUnanswered(limiter.Slot)     {}
func (f *fixed) SlotOf(string) (limiter.Slot, bool) { return limiter.Slot{}, false }

func (f *fixed) Usage(*limiter.Query) (*limiter.Usage, error) { return nil, limiter.ErrKey }
func (f *fixed) KeyUsage(string, string) (limiter.KeyUsage, error) {
	return limiter.KeyUsage{}, limiter.ErrKey
}

func (f *fixed) ResetKey(string, string) (limiter.KeyUsage, error) {
	return limiter.KeyUsage{}, limiter.ErrKey
}

func (f *fixed) Reset(*limiter.Query) (*limiter.Usage, error) { return nil, limiter.ErrKey }

func (f *fixed) Adjust(*limiter.Query) (*limiter.Usage, error) {
	return nil, limiter.ErrNoLimitInUnit
}

func (f *fixed) Rules() *rules.Set { return f.set }

// newFixed returns a decider with two limits and a shadow limit; the second limit is the tightest.
func newFixed() *fixed {
	window := func(name string, amount int64, d time.Duration, text string) *rules.Limit {
		return &rules.Limit{Name: name, Unit: "requests", Per: text,
			Limit: algorithms.Limit{Kind: algorithms.FixedWindow, Amount: amount, Window: d}}
	}
	tenant, ip, shadow := &rules.Rule{Name: "tenant"}, &rules.Rule{Name: "ip"}, &rules.Rule{Name: "new", Shadow: true}
	set := &rules.Set{Version: 17, Headers: document.Headers{IETF: true, XRateLimit: true}}
	return &fixed{set: set, answer: limiter.Answer{
		Allowed: true, DecidedBy: limiter.ByOwner, RulesVersion: 17, Set: set, TightestIndex: 1,
		Now: algorithms.At(time.Unix(1_700_000_000, 500_000_000)),
		Limits: []limiter.LimitAnswer{
			{Rule: ip, Limit: window("ip", 100, time.Second, "1s"),
				Decision: algorithms.Decision{Allowed: true, Used: 1, Remaining: 99,
					ResetAfter: time.Millisecond, MoreAfter: time.Millisecond}},
			{Rule: tenant, Limit: window("tenant", 1000, time.Minute, "1m"),
				Decision: algorithms.Decision{Allowed: true, Used: 588, Remaining: 412,
					ResetAfter: 35_279_000_001, MoreAfter: 35_279_000_001}},
			{Rule: shadow, Limit: window("new", 1, time.Minute, "1m"),
				Decision: algorithms.Decision{RetryAfter: algorithms.Never, ResetAfter: time.Second}},
		},
	}}
}

// refuse makes the answer a refusal by limit i.
func (f *fixed) refuse(i int, retry time.Duration) {
	f.answer.Allowed, f.answer.TightestIndex = false, i
	l := &f.answer.Limits[i]
	l.Allowed, l.Remaining, l.RetryAfter = false, 0, retry
}

// handlersOf returns the data plane of a node that is ready.
func handlersOf(d api.Decider) *handlers {
	doors := &api.Doors{Config: api.Config{Node: "n2", Decider: d, Logger: slog.New(slog.DiscardHandler)}}
	doors.Ready()
	return newHandlers(doors, nil)
}

// planeWithTokens is like handlersOf, with the tokens of the settings.
func planeWithTokens(t testing.TB, d api.Decider, apiToken, adminToken string) *handlers {
	t.Helper()
	doors, err := api.Open(api.Config{Node: "n2", Decider: d, Logger: slog.New(slog.DiscardHandler),
		APIToken: apiToken, AdminToken: adminToken})
	expect.NoError(t, err)
	doors.Ready()
	return newHandlers(doors, nil)
}

// serve answers x.
func serve(p *handlers, x *exchange) {
	if r, e := p.admit(x); e != nil {
		x.SetError(e)
	} else {
		p.serve(r, x)
	}
}

// ask serves one check and returns status, headers and body as text.
func ask(p *handlers, body string) (status int, headers, answer string) {
	x := p.getExchange()
	defer p.putExchange(x)
	x.method, x.path = "POST", "/v1/check"
	x.request.body = append(x.request.body, body...)
	serve(p, x)
	var h strings.Builder
	for _, one := range x.Headers {
		fmt.Fprintf(&h, "%s: %s\n", one.Name, one.Value)
	}
	return x.Status, h.String(), string(x.Body)
}

const plainCheck = `{"rule":"tenant","key":"k"}`

func TestAnswer(t *testing.T) {
	const policy = `RateLimit-Policy: "tenant";q=1000;w=60, "ip";q=100;w=1` + "\n"
	tests := []struct {
		name    string
		body    string
		change  func(*fixed)
		status  int
		headers string
		answer  string
	}{
		{
			name: "allowed", body: plainCheck, status: 200,
			headers: policy + `RateLimit: "tenant";r=412;t=36, "ip";r=99;t=1
X-RateLimit-Limit: 1000
X-RateLimit-Remaining: 412
X-RateLimit-Reset: 1700000036
`,
			answer: `{"allowed":true,"rule":"tenant","limit":1000,"used":588,"remaining":412,"unit":"requests","window_ms":60000,` +
				`"reset_after_ms":35280,"retry_after_ms":0,"more_after_ms":35280,"delay_ms":0,"rate":{"limit":1000,"per_ms":60000},"decided_by":"owner","node":"n2","rules_version":17}`,
		},
		{
			name: "refused", body: plainCheck, status: 429,
			change: func(f *fixed) { f.refuse(1, 1_000_000_001) },
			headers: policy + `RateLimit: "tenant";r=0, "ip";r=99;t=1
X-RateLimit-Limit: 1000
X-RateLimit-Remaining: 0
X-RateLimit-Reset: 1700000036
Retry-After: 2
`,
			answer: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
				`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
				`"detail":"Limit \"tenant\" of rule \"tenant\" (1000 requests per 1m) is used up; retry in 1.001 s.",` +
				`"violated-policies":["tenant"],"code":"rate-limited",` +
				`"allowed":false,"rule":"tenant","limit":1000,"used":588,"remaining":0,"unit":"requests","window_ms":60000,` +
				`"reset_after_ms":35280,"retry_after_ms":1001,"more_after_ms":35280,"delay_ms":0,"rate":{"limit":1000,"per_ms":60000},"decided_by":"owner","node":"n2","rules_version":17}`,
		},
		{
			name: "a region's share", body: plainCheck, status: 429,
			change: func(f *fixed) {
				f.refuse(1, 1_000_000_001)
				share := *f.answer.Limits[1].Limit
				share.Amount, share.WholeCapacity, share.WholeAmount = 300, 900, 900
				f.answer.Limits[1].Limit = &share
				f.answer.Set = &rules.Set{}
			},
			headers: "Retry-After: 2\n",
			answer: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
				`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
				`"detail":"This region's share of limit \"tenant\" of rule \"tenant\" (300 of 900 requests per 1m) is used up; retry in 1.001 s.",` +
				`"violated-policies":["tenant"],"code":"rate-limited",` +
				`"allowed":false,"rule":"tenant","limit":900,"used":588,"remaining":0,"unit":"requests","window_ms":60000,` +
				`"reset_after_ms":35280,"retry_after_ms":1001,"more_after_ms":35280,"delay_ms":0,"rate":{"limit":900,"per_ms":60000},"decided_by":"owner","node":"n2","rules_version":17}`,
		},
		{
			name: "never, no headers, detail", body: `{"rule":"tenant","key":"k","detail":true}`, status: 429,
			change: func(f *fixed) {
				f.refuse(1, algorithms.Never)
				f.answer.Limits[1].Cost = 1001
				f.answer.Set = &rules.Set{}
				f.answer.Limits = f.answer.Limits[1:]
				f.answer.TightestIndex = 0
			},
			answer: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
				`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,` +
				`"detail":"Limit \"tenant\" of rule \"tenant\" (1000 requests per 1m) can never allow it: the cost of 1001 is above its capacity of 1000.",` +
				`"violated-policies":["tenant"],"code":"cost-above-limit",` +
				`"allowed":false,"rule":"tenant","limit":1000,"used":588,"remaining":0,"unit":"requests","window_ms":60000,` +
				`"reset_after_ms":35280,"retry_after_ms":-1,"more_after_ms":35280,"delay_ms":0,"rate":{"limit":1000,"per_ms":60000},"decided_by":"owner","node":"n2","rules_version":17,"limits":[` +
				`{"rule":"tenant","name":"tenant","algorithm":"fixed-window","unit":"requests","limit":1000,"window_ms":60000,` +
				`"used":588,"remaining":0,"reset_after_ms":35280,"retry_after_ms":-1,"more_after_ms":35280,"allowed":false,"shadow":false,"rate":{"limit":1000,"per_ms":60000}},` +
				`{"rule":"new","name":"new","algorithm":"fixed-window","unit":"requests","limit":1,"window_ms":60000,` +
				`"used":0,"remaining":0,"reset_after_ms":1000,"retry_after_ms":-1,"allowed":false,"shadow":true,"rate":{"limit":1,"per_ms":60000}}]}`,
		},
		{
			name: "delta, x only", body: plainCheck, status: 200,
			change: func(f *fixed) {
				f.answer.Set = &rules.Set{Headers: document.Headers{XRateLimit: true, ResetDelta: true}}
			},
			headers: `X-RateLimit-Limit: 1000
X-RateLimit-Remaining: 412
X-RateLimit-Reset: 36
`,
			answer: `{"allowed":true,"rule":"tenant","limit":1000,"used":588,"remaining":412,"unit":"requests","window_ms":60000,` +
				`"reset_after_ms":35280,"retry_after_ms":0,"more_after_ms":35280,"delay_ms":0,"rate":{"limit":1000,"per_ms":60000},"decided_by":"owner","node":"n2","rules_version":17}`,
		},
		{
			name: "deny list", body: plainCheck, status: 403,
			change: func(f *fixed) {
				f.answer.Allowed, f.answer.DecidedBy, f.answer.Limits, f.answer.TightestIndex = false, limiter.ByList, nil, -1
			},
			answer: `{"type":"about:blank","title":"The rules deny this","status":403,"detail":"The deny list refuses this.",` +
				`"code":"denied","allowed":false,"rule":"","retry_after_ms":-1,"delay_ms":0,"decided_by":"list","node":"n2","rules_version":17}`,
		},
		{
			name: "default deny", body: `{"attributes":{}}`, status: 403,
			change: func(f *fixed) {
				f.answer.Allowed, f.answer.DecidedBy, f.answer.Limits, f.answer.TightestIndex = false, limiter.ByNone, nil, -1
			},
			answer: `{"type":"about:blank","title":"The rules deny this","status":403,"detail":"No rule applies, and the default is to deny.",` +
				`"code":"denied","allowed":false,"rule":"","retry_after_ms":-1,"delay_ms":0,"decided_by":"none","node":"n2","rules_version":17}`,
		},
		{
			name: "only shadow", body: `{"attributes":{}}`, status: 200,
			change: func(f *fixed) { f.answer.Limits, f.answer.TightestIndex = f.answer.Limits[2:], -1 },
			answer: `{"allowed":true,"rule":"","retry_after_ms":0,"delay_ms":0,"decided_by":"owner","node":"n2","rules_version":17}`,
		},
		{
			name: "delayed", body: plainCheck, status: 200,
			change: func(f *fixed) { f.answer.Set = &rules.Set{}; f.answer.Limits[0].Delay = 1500 * time.Microsecond },
			answer: `{"allowed":true,"rule":"tenant","limit":1000,"used":588,"remaining":412,"unit":"requests","window_ms":60000,` +
				`"reset_after_ms":35280,"retry_after_ms":0,"more_after_ms":35280,"delay_ms":2,"rate":{"limit":1000,"per_ms":60000},"decided_by":"owner","node":"n2","rules_version":17}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixed()
			if tt.change != nil {
				tt.change(f)
			}
			status, headers, answer := ask(handlersOf(f), tt.body)
			expect.Equal(t, status, tt.status, "status")
			if headers != tt.headers {
				t.Errorf("headers:\nhave %s\nwant %s", headers, tt.headers)
			}
			if answer != tt.answer {
				t.Errorf("answer:\nhave %s\nwant %s", answer, tt.answer)
			}
		})
	}
}

// The check path allocates nothing once its buffers have grown.
func TestCheckAllocatesNothing(t *testing.T) {
	for _, body := range []string{
		plainCheck,
		`{"attributes":{"ip":"198.51.100.7","tenant":"acme","endpoint":"\/chat\/completions"},"costs":{"tokens":900},"detail":true}`,
	} {
		for _, refused := range []bool{false, true} {
			f := newFixed()
			if refused {
				f.refuse(1, time.Second)
			}
			p := handlersOf(f)
			x := p.getExchange() // once: under the race detector, a pool drops objects at random
			n := testing.AllocsPerRun(1000, func() {
				x.reset()
				x.method, x.path = "POST", "/v1/check"
				x.request.body = append(x.request.body, body...)
				serve(p, x)
			})
			expect.Equal(t, n, 0, "%s, refused %v: allocations", body, refused)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, body := range []string{plainCheck,
		`{"attributes":{"ip":"198.51.100.7","tenant":"acme","api_key":"k1","endpoint":"/chat/completions"},"costs":{"tokens":900}}`} {
		b.Run(fmt.Sprint(len(body), "B"), func(b *testing.B) {
			p := handlersOf(newFixed())
			b.ReportAllocs()
			for b.Loop() {
				x := p.getExchange()
				x.method, x.path = "POST", "/v1/check"
				x.request.body = append(x.request.body, body...)
				serve(p, x)
				p.putExchange(x)
			}
		})
	}
}

// BenchmarkServer measures a check through the server library, without a connection.
func BenchmarkServer(b *testing.B) {
	s := &Server{handlers: handlersOf(newFixed())}
	var ctx fasthttp.RequestCtx
	ctx.Init(&fasthttp.Request{}, nil, nil)
	body := strings.NewReader(plainCheck)
	b.ReportAllocs()
	for b.Loop() {
		ctx.Request.Reset()
		ctx.Response.Reset()
		ctx.Request.Header.SetMethod("POST")
		ctx.Request.SetRequestURI("/v1/check")
		body.Reset(plainCheck)
		ctx.Request.SetBodyStream(body, len(plainCheck))
		if s.handle(&ctx); ctx.Response.StatusCode() != 200 {
			b.Fatal(ctx.Response.String())
		}
	}
}

func BenchmarkBatch(b *testing.B) {
	p := handlersOf(newFixed())
	body := `{"checks":[` + strings.Repeat(plainCheck+",", 99) + plainCheck + `]}`
	b.ReportAllocs()
	for b.Loop() {
		x := p.getExchange()
		x.method, x.path = "POST", "/v1/check/batch"
		x.request.body = append(x.request.body, body...)
		serve(p, x)
		p.putExchange(x)
	}
}
