package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// benchCmd measures how many checks a node decides, and how fast.
type benchCmd struct {
	Connections int           `short:"c" default:"16" help:"Connections, each with one request at a time (1 to 4096, default ${default})."`
	Duration    time.Duration `short:"d" default:"10s" help:"How long (at most 1h, default ${default})."`
	Rate        int           `default:"0" placeholder:"N" help:"Requests per second, sent on schedule even if answers are late; latency counts from when a request was due. Default: as many as possible."`
	Keys        int           `default:"10000" help:"Number of subjects (1 to 100,000,000, default ${default})."`
	Batch       int           `default:"1" help:"Checks per request (1 to 10,000, default ${default})."`
	Rule        string        `placeholder:"RULE" help:"Check by this rule, with a key of one value, instead of by all rules with the attribute ip."`
	JSON        bool          `help:"Print the figures as JSON."`
	dataPlane
}

func (c *benchCmd) validate() error {
	switch {
	case c.Connections < 1 || c.Connections > 4096:
		return usageError("--connections: %d is not in 1…4096", c.Connections)
	case c.Duration <= 0 || c.Duration > time.Hour:
		return usageError("--duration: %v is not above 0 and at most 1h", c.Duration)
	case c.Rate < 0 || c.Rate > 10_000_000:
		return usageError("--rate: %d is not in 0…10,000,000", c.Rate)
	case c.Keys < 1 || c.Keys > 100_000_000:
		return usageError("--keys: %d is not in 1…100,000,000", c.Keys)
	case c.Batch < 1 || c.Batch > 10_000:
		return usageError("--batch: %d is not in 1…10,000", c.Batch)
	}

	return nil
}

func (c *benchCmd) Run(env *environment) error {
	if err := c.validate(); err != nil {
		return err
	}

	n, err := c.client()
	if err != nil {
		return err
	}

	// One check is tried first, to report a wrong address, token or rule once
	// rather than as a thousand errors.
	if err := c.tryCheck(env, n); err != nil {
		return err
	}

	loaders, err := c.newLoaders(n)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(env.ctx, c.Duration)
	defer cancel()

	start := time.Now()
	due := &schedule{start: start, rate: c.Rate}
	var group sync.WaitGroup
	for _, l := range loaders {
		group.Go(func() { l.run(ctx, due) })
	}

	group.Wait()
	total := &benchFigures{}
	for _, l := range loaders {
		total.merge(&l.benchFigures)
	}

	return c.print(env.stdout, total, time.Since(start))
}

func (c *benchCmd) tryCheck(env *environment, n *remote) error {
	body := appendCheck(nil, quoteRule(c.Rule), 0)
	body = append(body[:len(body)-1], `,"peek":true}`...)
	r, err := n.exchange(env.ctx, post("/v1/check", body))
	if err != nil {
		return err
	}
	if !r.decides() {
		return n.problem(r)
	}
	return nil
}

func (c *benchCmd) newLoaders(n *remote) ([]*loader, error) {
	target, err := parseBase(n.base)
	if err != nil {
		return nil, err
	}

	config, err := c.tls()
	if err != nil {
		return nil, err
	}

	loaders := make([]*loader, c.Connections)
	for i := range loaders {
		loaders[i] = newLoader(uint64(i), c, target, config)
	}

	return loaders, nil
}

func newLoader(seed uint64, c *benchCmd, target *url.URL, config *tls.Config) *loader {
	path := "/v1/check"
	if c.Batch > 1 {
		path = "/v1/check/batch"
	}

	host := target.Host
	if target.Port() == "" {
		host = net.JoinHostPort(target.Hostname(), target.Scheme)
	}

	l := &loader{
		client: &fasthttp.HostClient{
			Addr: host, IsTLS: target.Scheme == "https", TLSConfig: config, MaxConns: 1, MaxIdemponentCallAttempts: 1,
			MaxResponseBodySize: maxReply, ReadBufferSize: 64 << 10, NoDefaultUserAgentHeader: true,
			DialTimeout: func(addr string, timeout time.Duration) (net.Conn, error) {
				return net.DialTimeout("tcp", addr, timeout)
			},
		},
		rule: quoteRule(c.Rule), keys: c.Keys, batch: c.Batch, wait: c.timeoutOr(defaultTimeout),
		random: rand.New(rand.NewPCG(seed, 1)),
	}
	l.request.SetRequestURI(target.Scheme + "://" + target.Host + path)
	l.request.Header.SetMethod(http.MethodPost)
	l.request.Header.SetContentType("application/json")

	if c.Token != "" {
		l.request.Header.Set("Authorization", "Bearer "+c.Token)
	}

	return l
}

// benchResult holds the figures as JSON, with latencies in milliseconds.
type benchResult struct {
	Seconds  float64            `json:"seconds"`
	Requests int64              `json:"requests"`
	Checks   int64              `json:"checks"`
	PerSec   float64            `json:"checks_per_second"`
	Allowed  int64              `json:"allowed"`
	Refused  int64              `json:"refused"`
	Errors   int64              `json:"errors"`
	Latency  map[string]float64 `json:"latency_ms"`
	Reason   string             `json:"first_error,omitempty"`
}

func (c *benchCmd) print(w io.Writer, f *benchFigures, took time.Duration) error {
	seconds := took.Seconds()
	r := benchResult{
		Seconds: seconds, Requests: f.requests, Checks: f.allowed + f.refused,
		PerSec:  float64(f.allowed+f.refused) / seconds,
		Allowed: f.allowed, Refused: f.refused, Errors: f.errors, Latency: make(map[string]float64),
	}
	if f.firstError != nil {
		r.Reason = f.firstError.Error()
	}

	for _, q := range [...]struct {
		name string
		at   float64
	}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1}} {
		r.Latency[q.name] = float64(f.latency.quantile(q.at).Microseconds()) / 1000
	}

	var err error
	if c.JSON {
		err = json.NewEncoder(w).Encode(r)
	} else {
		_, err = fmt.Fprintf(w, `%.1f s, %d connections, %d requests of %d checks
%.0f checks/s: %d allowed, %d refused, %d errors
latency per request: p50 %.3f ms, p90 %.3f ms, p99 %.3f ms, p99.9 %.3f ms, max %.3f ms
`, seconds, c.Connections, r.Requests, c.Batch, r.PerSec, r.Allowed, r.Refused, r.Errors,
			r.Latency["p50"], r.Latency["p90"], r.Latency["p99"], r.Latency["p99.9"], r.Latency["max"])
	}

	if err == nil && f.firstError != nil {
		err = fmt.Errorf("%d requests failed; the first: %w", f.errors, f.firstError)
	}
	if err == nil && f.requests == 0 {
		err = errors.New("no request was answered")
	}

	return err
}
