package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/rlnode/rlnode/client"
)

// exampleNode stands in for a node in these examples. It has one limit: two requests a minute.
func exampleNode() *httptest.Server {
	left := 2
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/settle":
			io.WriteString(w, `{"reservation":"id-1","settled":true,"costs":{"tokens":812},"remaining":188}`)
		case r.URL.Path == "/v1/release":
			io.WriteString(w, `{"released":true}`)
		case r.URL.Path == "/v1/acquire":
			io.WriteString(w, `{"allowed":true,"rule":"render","limit":20,"used":8,"remaining":12,"unit":"requests","ttl_ms":30000,"reset_after_ms":30000,
				"retry_after_ms":0,"delay_ms":0,"decided_by":"owner","node":"n1","rules_version":1,"slot":"id-2","expires_ms":29969}`)
		case r.URL.Path == "/v1/reserve":
			io.WriteString(w, `{"allowed":true,"rule":"llm","limit":2000,"remaining":0,"unit":"tokens","window_ms":60000,"reset_after_ms":60000,
				"retry_after_ms":0,"delay_ms":0,"decided_by":"owner","node":"n1","rules_version":1,"reservation":"id-1"}`)
		case left > 0:
			left--
			w.Header().Set("RateLimit", fmt.Sprintf(`"per-ip";r=%d;t=60`, left))
			fmt.Fprintf(w, `{"allowed":true,"rule":"per-ip","limit":2,"remaining":%d,"unit":"requests","window_ms":60000,"reset_after_ms":60000,
				"retry_after_ms":0,"delay_ms":0,"decided_by":"owner","node":"n1","rules_version":1}`, left)
		default:
			w.Header().Set("RateLimit", `"per-ip";r=0;t=60`)
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, `{"allowed":false,"rule":"per-ip","limit":2,"remaining":0,"unit":"requests","window_ms":60000,"reset_after_ms":60000,
				"retry_after_ms":29100,"delay_ms":0,"decided_by":"owner","node":"n1","rules_version":1}`)
		}
	}))
}

func ExampleClient_Check() {
	node := exampleNode() // in production: rlnode serve
	defer node.Close()

	limiter, err := client.New(client.Options{Nodes: []string{node.URL}, OnError: client.Open})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()

	for range 3 {
		d, err := limiter.Check(context.Background(), client.Request{
			Attributes: map[string]string{"ip": "198.51.100.7", "endpoint": "/search"},
		})
		if err != nil {
			fmt.Println(err) // only for the log: OnError has already decided
		}
		if !d.Allowed {
			fmt.Printf("refused by %s; again in %v\n", d.Rule, d.RetryAfter)
			continue
		}
		fmt.Printf("allowed: %d of %d %s left\n", d.Remaining, d.Limit, d.Unit)
	}
	// Output:
	// allowed: 1 of 2 requests left
	// allowed: 0 of 2 requests left
	// refused by per-ip; again in 29.1s
}

func ExampleClient_Reserve() {
	node := exampleNode()
	defer node.Close()
	limiter, err := client.New(client.Options{Nodes: []string{node.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()
	ctx := context.Background()

	// At most 1,000 tokens; the actual number is not known yet.
	r, err := limiter.Reserve(ctx, client.Request{
		Attributes: map[string]string{"api_key": "k1"},
		Costs:      map[string]int64{"tokens": 1000},
	}, 5*time.Minute)
	if err != nil {
		fmt.Println(err)
	}
	if !r.Allowed {
		return
	}
	used := int64(812) // reported by the model

	s, err := limiter.Settle(ctx, r.ID, map[string]int64{"tokens": used})
	if err != nil {
		fmt.Println(err) // the estimate stays charged
	}
	fmt.Println("used", s.Costs["tokens"], "and", s.Remaining, "are left")
	// Output: used 812 and 188 are left
}

func ExampleClient_Acquire() {
	node := exampleNode()
	defer node.Close()
	limiter, err := client.New(client.Options{Nodes: []string{node.URL}, OnError: client.Closed})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()
	render := func(ctx context.Context) { fmt.Println("rendered:", ctx.Err() == nil) }

	slot, err := limiter.Acquire(context.Background(), client.Request{Rule: "render", Key: []string{"acme"}}, 0)
	if err != nil {
		fmt.Println(err) // a *client.Refused: all are held, or no node decided
		return
	}
	defer slot.Close()

	fmt.Println(slot.Remaining, "more may render")
	render(slot.Context())
	// Output:
	// 12 more may render
	// rendered: true
}

func ExampleMiddleware() {
	node := exampleNode()
	defer node.Close()
	limiter, err := client.New(client.Options{Nodes: []string{node.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()

	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello\n") })
	limit := client.Middleware(limiter, client.MiddlewareOptions{
		TrustedHops: 1, // behind one proxy
		Skip:        func(r *http.Request) bool { return r.URL.Path == "/healthz" },
	})
	server := httptest.NewServer(limit(hello)) // in production: http.ListenAndServe(":8000", limit(hello))
	defer server.Close()

	for range 3 {
		r, err := http.Get(server.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		r.Body.Close()
		fmt.Printf("%d, %s, Retry-After %q\n", r.StatusCode, r.Header.Get("RateLimit"), r.Header.Get("Retry-After"))
	}
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// 200, "per-ip";r=1;t=60, Retry-After ""
	// 200, "per-ip";r=0;t=60, Retry-After ""
	// 429, "per-ip";r=0;t=60, Retry-After "30"
}

// Add attributes of your own to the usual ones, and set a cost.
func ExampleRequestAttributes() {
	usual := client.RequestAttributes(1)
	_ = client.MiddlewareOptions{
		Attributes: func(r *http.Request) map[string]string {
			attributes := usual(r)
			if key := r.Header.Get("X-Api-Key"); key != "" {
				attributes["api_key"] = key // without the attribute, rules keyed by it do not apply
			}
			return attributes
		},
		Cost: func(r *http.Request) map[string]int64 {
			return map[string]int64{"requests": 1, "bytes": max(r.ContentLength, 0)}
		},
	}
}

// Limits that come with the call need no rule: here five calls a minute and 100
// a day for each user.
func ExampleRequest_limits() {
	node := exampleNode()
	defer node.Close()
	limiter, err := client.New(client.Options{Nodes: []string{node.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()

	d, err := limiter.Check(context.Background(), client.Request{
		Namespace: "checkout",
		Key:       []string{"user-42"},
		Limits:    []client.Limit{{Limit: 5, Per: "1m"}, {Limit: 100, Per: "day"}},
	})
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(d.Allowed)
	// Output: true
}

// One decision about two subjects: it takes the quota of both the user and the
// whole team, or of neither.
func ExampleSubject() {
	_ = client.Request{Subjects: []client.Subject{
		{Namespace: "user", Key: []string{"user-42"}, Limits: []client.Limit{{Limit: 5, Per: "1m"}}},
		{Namespace: "team", Key: []string{"acme"},
			Limits: []client.Limit{{Limit: 90000, Per: "1h", Unit: "tokens"}},
			Costs:  map[string]int64{"tokens": 900}},
	}}
}

// Count a cost that has already been incurred, even beyond the limit.
func ExampleMode() {
	var limiter *client.Client // from client.New
	spent := func(ctx context.Context, team string, tokens int64) {
		d, err := limiter.Check(ctx, client.Request{
			Namespace: "team", Key: []string{team}, Mode: client.CountMode, Costs: map[string]int64{"tokens": tokens},
			Limits: []client.Limit{{Limit: 90000, Per: "day", Unit: "tokens"}},
		})
		if err != nil {
			fmt.Println(err)
		}
		if d.Counted {
			fmt.Printf("%d of %d %s are used: warn the team\n", d.Used, d.Limit, d.Unit)
		}
	}
	_ = spent
}

// A wrong password costs more than an ordinary request.
func ExampleClient_Adjust() {
	var limiter *client.Client // from client.New
	failedLogin := func(ctx context.Context, ip string) {
		if _, err := limiter.Adjust(ctx, "login", []string{ip}, 4); err != nil {
			fmt.Println(err)
		}
	}
	_ = failedLogin
}

func ExampleError() {
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w,
			`{"status":404,"code":"unknown-rule","title":"Unknown rule","detail":"there is no rule \"lgoin\""}`)
	}))
	defer node.Close()
	limiter, err := client.New(client.Options{Nodes: []string{node.URL}, OnError: client.Closed})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer limiter.Close()

	d, err := limiter.Check(context.Background(), client.Request{Rule: "lgoin", Key: []string{"198.51.100.7"}})
	var answered *client.Error
	if errors.As(err, &answered) {
		fmt.Println(answered.Code, "-", answered.Detail)
	}
	fmt.Println(d.Allowed, d.DecidedBy)
	// Output:
	// unknown-rule - there is no rule "lgoin"
	// false error
}
