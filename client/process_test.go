package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// folder is the directory in which the real node is built.
var folder string

// TestMain lets the tests with nodes go on at once: most of the time they wait
// until a node is ready. Those that count on how soon a node answers, or on
// memory, come before them, one by one.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "12")
	dir, err := os.MkdirTemp("", "rlnode-client-*")
	if err != nil {
		panic(err)
	}
	folder = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// program is the real node, built once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(folder, "rlnode")
	return path, process.Build(path)
})

// start runs a node with the given rules and further flags.
func start(t testing.TB, rules string, more ...string) *process.Node {
	t.Helper()
	path, err := program()
	expect.NoError(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	expect.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	return process.Start(t, path, append([]string{"--rules", file}, more...)...)
}

func connect(t testing.TB, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(o)
	expect.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

const nodeRules = `version: 1
rules:
  - {name: address, key: [ip], limits: [{limit: 5, per: 1h, algorithm: fixed-window}]}
  - {name: crowd, key: [tenant], limits: [{limit: 700, per: 8760h, algorithm: fixed-window}]}
  - {name: llm, match: {plan: llm}, key: [user], limits: [{limit: 100, per: 1h, algorithm: fixed-window}, {limit: 1000, per: 1h, algorithm: fixed-window, unit: tokens}]}
  - {name: queue, match: {plan: queue}, key: [user], limits: [{limit: 10, per: 1s, algorithm: leaky-bucket, burst: 5}]}
`

// TestRealNode makes every kind of call to a real node.
func TestRealNode(t *testing.T) {
	t.Parallel()
	n := start(t, nodeRules, "--api-token", "secret", "--name", "n1")
	c := connect(t, client.Options{Nodes: []string{n.Data}, Token: "secret", Timeout: process.Timeout})
	ctx := context.Background()
	by := func(attributes ...string) client.Request {
		m := map[string]string{}
		for i := 0; i < len(attributes); i += 2 {
			m[attributes[i]] = attributes[i+1]
		}
		return client.Request{Attributes: m}
	}

	for i := range 6 {
		d, err := c.Check(ctx, by("ip", "192.0.2.1"))
		if err != nil || d.Allowed != (i < 5) || d.Rule != "address" || d.Limit != 5 ||
			d.Remaining != max(4-int64(i), 0) || d.Node != "n1" ||
			d.Window != time.Hour || d.Unit != "requests" || (d.RetryAfter > 0) == d.Allowed {
			t.Errorf("check %d: have %+v, %v", i, d, err)
		}
		if !d.Allowed && (d.Reason == "" || len(d.Violated) != 1 || d.Violated[0] != "address") {
			t.Errorf("refusal: have %+v", d)
		}
	}
	if d, err := c.Peek(ctx,
		client.Request{Rule: "address", Key: []string{"192.0.2.2"}, Cost: 6}); err != nil ||
		d.Allowed || d.RetryAfter != client.Never {
		t.Errorf("peek: have %+v, %v", d, err)
	}
	if d, err := c.Check(ctx, by("nobody", "asks")); err != nil || !d.Allowed ||
		d.DecidedBy != client.ByNone || d.Rule != "" {
		t.Errorf("no rule: have %+v, %v", d, err)
	}
	q := by("plan", "llm", "user", "u")
	q.Costs, q.Detail = map[string]int64{"tokens": 400}, true
	if d, err := c.Check(ctx, q); err != nil || !d.Allowed || len(d.Limits) != 2 ||
		d.Unit != "tokens" || d.Remaining != 600 {
		t.Errorf("two units: have %+v, %v", d, err)
	}
	u, err := c.Adjust(ctx, "address", []string{"192.0.2.1"}, -3)
	if err != nil || len(u.Limits) != 1 || u.Limits[0].Used != 2 || u.Rule != "address" || len(u.Key) != 1 {
		t.Errorf("adjust: have %+v, %v", u, err)
	}
	var e *client.Error
	_, err = c.Check(ctx, client.Request{Rule: "nosuch", Key: []string{"x"}})
	if !errors.As(err, &e) || e.Status != 404 || e.Code != "unknown-rule" {
		t.Errorf("unknown rule: have %v", err)
	}
	stranger := connect(t, client.Options{Nodes: []string{n.Data}, Token: "wrong"})
	if d, err := stranger.Check(ctx, by("ip", "192.0.2.9")); !errors.As(err, &e) ||
		e.Status != 401 || d.Allowed || d.DecidedBy != client.ByError {
		t.Errorf("wrong token: have %+v, %v", d, err)
	}
	hostile := by("ip", strings.Repeat("\xff\x00\"", 5000), "user", strings.Repeat("<", 100_000), "tenant", "a\u2028b")
	if d, err := c.Check(ctx, hostile); err != nil || d.Rule != "address" {
		t.Errorf("hostile values: have %+v, %v", d, err)
	}
}

// TestRealNodeCrowd: through batches, 10,000 concurrent callers get exactly what the limit allows.
func TestRealNodeCrowd(t *testing.T) {
	t.Parallel()
	n := start(t, nodeRules)
	c := connect(t, client.Options{Nodes: []string{n.Data}, Timeout: process.Timeout, OnError: client.Closed})
	var admitted, wrong atomic.Int64
	var all sync.WaitGroup
	for i := range 10_000 {
		all.Go(func() {
			bad := i%1000 == 500
			q := client.Request{Attributes: map[string]string{"tenant": "acme"}}
			if bad {
				q = client.Request{Rule: "nosuch", Key: []string{"x"}}
			}
			d, err := c.Check(context.Background(), q)
			switch {
			case (err != nil) != bad:
				t.Errorf("have %+v, %v", d, err)
			case bad:
				wrong.Add(1)
			case d.Allowed:
				admitted.Add(1)
			}
		})
	}
	all.Wait()
	if admitted.Load() != 700 || wrong.Load() != 10 {
		t.Errorf("%d of 700 were admitted, %d of 10 were wrong", admitted.Load(), wrong.Load())
	}
}

var checks = flag.Int("checks", 10_000, "how many checks TestRealNodeMemory makes")

// TestRealNodeMemory: neither memory nor goroutines grow with the number of checks.
func TestRealNodeMemory(t *testing.T) {
	n := start(t, nodeRules)
	c := connect(t, client.Options{Nodes: []string{n.Data}, Timeout: process.Timeout})
	limits := []client.Limit{{Limit: 1_000_000_000, Per: "1h"}}
	const callers = 100
	var heaps []float64 // in MiB
	var goroutines []int
	for range 10 {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for j := range *checks / callers / 10 {
					q := client.Request{Namespace: "memory",
						Key: []string{fmt.Sprintf("%d-%d", i, j%50)}, Limits: limits,
						Headers: j%20 == 0}
					if d, err := c.Check(context.Background(), q); err != nil || !d.Allowed {
						t.Errorf("have %+v, %v", d, err)
						return
					}
				}
			})
		}
		all.Wait()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heaps, goroutines = append(heaps, float64(m.HeapAlloc)/(1<<20)), append(goroutines, runtime.NumGoroutine())
	}
	t.Logf("after each tenth of %d checks: MiB of heap %.1f, goroutines %d", *checks, heaps, goroutines)
	const most = 200 // two a connection, of which a client may have 69
	if heaps[9] > heaps[2]*1.3+2 || goroutines[9] > most {
		t.Error("memory or goroutines grow")
	}
}

// TestRealNodeComesBack: OnError decides while the only node is down, and the
// node decides as soon as it is back.
func TestRealNodeComesBack(t *testing.T) {
	t.Parallel()
	port := strconv.Itoa(process.FreePort(t))
	n := start(t, nodeRules, "--http-port", port)
	clients := map[client.OnError]*client.Client{}
	for _, o := range []client.OnError{client.Open, client.Closed, client.Local} {
		clients[o] = connect(t,
			client.Options{Nodes: []string{n.Data}, OnError: o,
				Local: []client.Limit{{Limit: 9, Per: "1h"}}, Timeout: process.Timeout})
	}
	check := func(o client.OnError) (client.Decision, error) {
		q := client.Request{Key: []string{fmt.Sprint(o)},
			Limits: []client.Limit{{Limit: 3, Per: "1h", Algorithm: "fixed-window", FromFirst: true}}}
		return clients[o].Check(context.Background(), q)
	}
	for o := range clients {
		if d, err := check(o); err != nil || !d.Allowed || d.Used != 1 {
			t.Errorf("%d: have %+v, %v", o, d, err)
		}
	}
	n.Stop(syscall.SIGKILL)
	for o, want := range map[client.OnError]struct {
		allowed int
		by      client.DecidedBy
	}{client.Open: {5, client.ByError}, client.Closed: {0, client.ByError}, client.Local: {3, client.ByLocal}} {
		for i := range 5 {
			if d, err := check(o); !errors.Is(err, client.ErrUnavailable) ||
				d.Allowed != (i < want.allowed) || d.DecidedBy != want.by {
				t.Errorf("%d, without a node, check %d: have %+v, %v", o, i, d, err)
			}
		}
	}
	start(t, nodeRules, "--http-port", port)
	for o := range clients {
		process.Eventually(t, "the node is asked again", func() bool {
			d, err := check(o)
			return err == nil && d.DecidedBy == client.ByOwner
		})
	}
}

// TestRealNodeLimits: a real node accepts inline limits in every mode, for
// several subjects, and in batches.
func TestRealNodeLimits(t *testing.T) {
	t.Parallel()
	n := start(t, nodeRules+"inline: {namespaces: [shop, inline]}\n")
	c := connect(t, client.Options{Nodes: []string{n.Data}, Timeout: process.Timeout, OnError: client.Closed})
	ctx := context.Background()
	few := client.Request{Namespace: "shop", Key: []string{"user-42"},
		Limits: []client.Limit{{Limit: 3, Per: "1h", Algorithm: "fixed-window", FromFirst: true}},
		Detail: true}
	for i := range 4 {
		d, err := c.Check(ctx, few)
		if err != nil || d.Allowed != (i < 3) || d.Used != min(int64(i)+1, 3) || d.Limit != 3 ||
			d.Rule != "inline/shop" || d.Counted || len(d.Limits) != 1 ||
			d.Limits[0].Used != d.Used || d.Window != time.Hour {
			t.Errorf("check %d: have %+v, %v", i, d, err)
		}
	}
	few.Mode, few.Cost = client.CountMode, 5
	if d, err := c.Check(ctx, few); err != nil || d.Allowed || !d.Counted || d.Used != 8 ||
		d.Remaining != 0 || d.Reason == "" {
		t.Errorf("count: have %+v, %v", d, err)
	}
	if d, err := c.Peek(ctx, few); err != nil || d.Allowed || d.Counted || d.Used != 8 {
		t.Errorf("peek: have %+v, %v", d, err)
	}
	few.Shadow, few.Mode = true, ""
	if d, err := c.Check(ctx, few); err != nil || !d.Allowed || d.Rule != "" ||
		len(d.Limits) != 1 || d.Limits[0].Allowed {
		t.Errorf("shadow: have %+v, %v", d, err)
	}
	year := []client.Limit{{Limit: 10, Per: "365d", Algorithm: "token-bucket"},
		{Limit: 700, Per: "365d", Algorithm: "token-bucket", Unit: "tokens", Name: "t", Burst: 700}}
	both := client.Request{Subjects: []client.Subject{
		{Key: []string{"a"}, Limits: year, Costs: map[string]int64{"tokens": 500}, Exact: true},
		{Key: []string{"b", "c"}, Limits: year, Cost: 10},
	}, Detail: true}
	d, err := c.Peek(ctx, both)
	if err != nil || !d.Allowed || len(d.Limits) != 4 {
		t.Errorf("peek at two subjects: have %+v, %v", d, err)
	}
	if d, err := c.Check(ctx, both); err != nil || !d.Allowed || d.Used != 10 {
		t.Errorf("two subjects: have %+v, %v", d, err)
	}
	if d, err := c.Check(ctx, both); err != nil || d.Allowed || d.Unit != "requests" && d.Unit != "tokens" {
		t.Errorf("two subjects, again: have %+v, %v", d, err)
	}
	both.Subjects[0].Mode, both.Subjects[1].Mode = client.CountMode, client.PeekMode
	if d, err := c.Check(ctx, both); err != nil || d.Allowed || d.Counted {
		t.Errorf("a count beside a peek that is refused: have %+v, %v", d, err)
	}
	both.Subjects[1].Mode = client.CountMode
	if d, err := c.Check(ctx, both); err != nil || d.Allowed || !d.Counted {
		t.Errorf("two counts: have %+v, %v", d, err)
	}
	r, err := c.Reserve(ctx,
		client.Request{Key: []string{"r"}, Limits: year, Costs: map[string]int64{"tokens": 600}},
		time.Minute)
	if err != nil || !r.Allowed || r.ID == "" {
		t.Fatalf("reserve: have %+v, %v", r, err)
	}
	if s, err := c.Settle(ctx, r.ID, map[string]int64{"tokens": 100}); err != nil || s.Costs["tokens"] != 100 {
		t.Errorf("settle: have %+v, %v", s, err)
	}
	for code, q := range map[string]client.Request{
		"bad-value": {Key: []string{"k"}, Limits: []client.Limit{{Limit: 1, Per: "1m", Algorithm: "leaky"}}},
		"forbidden": {Namespace: "other", Key: []string{"k"}, Limits: year},
	} {
		var e *client.Error
		if d, err := c.Check(ctx, q); !errors.As(err, &e) || e.Code != code || d.Allowed {
			t.Errorf("have %+v, %v, want %s", d, err, code)
		}
	}

	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for range 10 {
				d, err := c.Check(ctx,
					client.Request{Key: []string{"crowd"}, Limits: year,
						Costs: map[string]int64{"requests": 0, "tokens": 1}})
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	expect.Equal(t, admitted.Load(), 700, "of 700 were admitted")
}

// TestRealNodeUsage: a subject's usage is read, adjusted by unit and reset, for
// a rule and for inline limits.
func TestRealNodeUsage(t *testing.T) {
	t.Parallel()
	n := start(t, nodeRules)
	c := connect(t, client.Options{Nodes: []string{n.Data}, Timeout: process.Timeout, OnError: client.Closed})
	ctx := context.Background()
	limits := []client.Limit{{Limit: 10, Per: "365d"}, {Limit: 700, Per: "365d", Unit: "tokens", Name: "t"}}
	for _, q := range []client.Request{
		{Rule: "llm", Key: []string{"u"}},
		{Namespace: "shop", Key: []string{"a", "b"}, Limits: limits},
	} {
		count := q
		count.Mode, count.Costs, count.RequestID = client.CountMode, map[string]int64{"requests": 3,
			"tokens": 900}, "count"
		for range 2 { // because of the id, it takes effect once
			if d, err := c.Check(ctx, count); err != nil || d.Used == 0 {
				t.Errorf("count: have %+v, %v", d, err)
			}
		}
		used := func(what string, u client.Usage, err error, requests, tokens int64) {
			t.Helper()
			if err != nil || len(u.Limits) != 2 || u.Limits[0].Used != requests ||
				u.Limits[1].Used != tokens || u.Rule != q.Rule || u.Namespace != q.Namespace ||
				len(u.Key) != len(q.Key) {
				t.Errorf("%s: have %+v, %v, want %d and %d", what, u, err, requests, tokens)
			}
		}
		u, err := c.Usage(ctx, q)
		used("usage", u, err, 3, 900)
		adjust := q
		adjust.RequestID = "adjust"
		for range 2 {
			u, err = c.AdjustCosts(ctx, adjust, map[string]int64{"requests": -2, "tokens": 5})
			used("adjust", u, err, 1, 905)
		}
		if q.Rule == "" {
			q.Limits = nil
			u, err = c.Usage(ctx, q)
			if err != nil || len(u.Limits) != 2 || u.Unknown != 0 {
				t.Errorf("all of it: have %+v, %v", u, err)
			}
			q.Limits = limits
		}
		u, err = c.Reset(ctx, q)
		used("reset", u, err, 0, 0)
	}
	var e *client.Error
	if _, err := c.AdjustCosts(ctx, client.Request{Rule: "address", Key: []string{"a"}},
		map[string]int64{"tokens": 1}); !errors.As(err, &e) || e.Code != "bad-value" {
		t.Errorf("a unit that the rule has not: have %v", err)
	}
}

// TestRealNodeDelays: Wait and the middleware observe the delays of a leaky bucket.
func TestRealNodeDelays(t *testing.T) {
	t.Parallel()
	n := start(t, nodeRules)
	c := connect(t, client.Options{Nodes: []string{n.Data}, Timeout: process.Timeout})
	ctx := context.Background()
	began := time.Now()
	q := client.Request{Rule: "queue", Key: []string{"u"}, Wait: true}
	var last client.Decision
	for range 3 {
		d, err := c.Check(ctx, q)
		if err != nil || !d.Allowed {
			t.Fatalf("have %+v, %v", d, err)
		}
		last = d
	}
	if took := time.Since(began); last.Delay > 0 && took < 150*time.Millisecond {
		t.Errorf("three checks at ten per second took %v; the last had a delay of %v", took, last.Delay)
	}
}

// TestRealNodeHeaders: the middleware's headers are those of the node, whether
// a check was sent alone or in a batch.
func TestRealNodeHeaders(t *testing.T) {
	t.Parallel()
	n := start(t, nodeRules)
	c := connect(t, client.Options{Nodes: []string{n.Data}, Timeout: process.Timeout, MaxInFlight: 1})
	server := httptest.NewServer(client.Middleware(c, client.MiddlewareOptions{
		Attributes: func(r *http.Request) map[string]string {
			return map[string]string{"plan": "llm", "user": r.URL.Query().Get("user"), "ip": r.URL.Query().Get("user")}
		},
	})(http.NotFoundHandler()))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()

	want, err := http.Post(n.Data+"/v1/check", "",
		strings.NewReader(`{"attributes":{"plan":"llm","user":"direct","ip":"direct"}}`))
	expect.NoError(t, err)
	want.Body.Close()
	names := []string{"RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining"}
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			for j := range 7 {
				r, err := http.Get(fmt.Sprintf("%s/?user=u%d", server.URL, i))
				if err != nil {
					t.Error(err)
					return
				}
				body, _ := io.ReadAll(r.Body)
				r.Body.Close()
				for _, name := range names {
					// The seconds until the reset depend on the time.
					have, want := timeless(r.Header.Get(name)), timeless(want.Header.Get(name))
					if j == 0 && have != want || have == "" {
						t.Errorf("%s: have %q, want %q", name, have, want)
					}
				}
				if reset := r.Header.Get("X-RateLimit-Reset"); len(reset) != 10 {
					t.Errorf("X-RateLimit-Reset: have %q", reset)
				}
				status := http.StatusNotFound // the request has passed
				if j >= 5 {
					status = http.StatusTooManyRequests
				}
				expect.Equal(t, r.StatusCode, status, "request %d", j)
				if j < 5 {
					continue
				}
				var p struct {
					Violated []string `json:"violated-policies"`
					Detail   string
				}
				if err := json.Unmarshal(body, &p); err != nil || len(p.Violated) != 1 ||
					p.Violated[0] != "address" || p.Detail == "" ||
					r.Header.Get("Retry-After") == "" || r.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("refusal: have %v %s, %v", r.Header, body, err)
				}
			}
		})
	}
	all.Wait()
}

// TestRealNodesStop: under load, one node shuts down cleanly and another is
// killed. Every check is decided.
func TestRealNodesStop(t *testing.T) {
	t.Parallel()
	nodes := []*process.Node{start(t, nodeRules, "--name", "n0"),
		start(t, nodeRules, "--name", "n1"), start(t, nodeRules, "--name", "n2")}
	o := client.Options{OnError: client.Closed, Timeout: process.Timeout}
	for _, n := range nodes {
		o.Nodes = append(o.Nodes, n.Data)
	}
	c := connect(t, o)
	var by [3]atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for j := 0; ; j++ {
				select {
				case <-stop:
					return
				default:
				}
				d, err := c.Check(context.Background(),
					client.Request{Attributes: map[string]string{"ip": fmt.Sprintf("10.%d.%d.%d", i,
						j/250%250, j%250)}})
				if err != nil {
					t.Errorf("have %+v, %v", d, err)
					return
				}
				by[d.Node[1]-'0'].Add(1)
			}
		})
	}
	for i, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		process.Eventually(t, "the node is asked", func() bool { return by[i].Load() > 50 })
		nodes[i].Stop(signal)
	}
	process.Eventually(t, "the last node is asked", func() bool { return by[2].Load() > 50 })
	close(stop)
	all.Wait()
}

// slotTTL is that of slotRules.
const slotTTL = 20 * time.Second

const slotRules = `version: 1
rules:
  - {name: render, key: [tenant], limits: [{limit: 2, ttl: 20s, algorithm: concurrency}]}
`

// TestRealNodesKeepSlots: of three nodes, the one that a client uses is killed
// while the client holds slots, and takes and releases others. It renews and
// releases them at another node. There is never one too many, and none is left.
func TestRealNodesKeepSlots(t *testing.T) {
	t.Parallel()
	subnet := fmt.Sprintf("127.%d.%d", 1+rand.N(250), rand.N(250))
	var nodes [3]*process.Node
	var starting sync.WaitGroup
	for i := range nodes {
		starting.Go(func() {
			nodes[i] = start(t, slotRules, "--name", fmt.Sprint("n", i), "--bind", fmt.Sprint(subnet, ".", i+1),
				"--bootstrap-expect", "3", "--join", fmt.Sprintf("%[1]s.1,%[1]s.2,%[1]s.3", subnet))
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}

	connectTo := func(first, second int) *client.Client {
		o := client.Options{Nodes: []string{nodes[first].Data, nodes[second].Data},
			OnError: client.Closed, Timeout: process.Timeout}
		return connect(t, o)
	}
	c, other := connectTo(0, 1), connectTo(2, 1)

	ctx := t.Context()
	ask := func(tenant string) client.Request { return client.Request{Rule: "render", Key: []string{tenant}} }
	take := func(c *client.Client, tenant string) *client.Slot {
		t.Helper()
		s, err := c.Acquire(ctx, ask(tenant), 0)
		expect.NoError(t, err)
		return s
	}
	wantFull := func(tenant string) {
		t.Helper()
		_, err := other.Acquire(ctx, ask(tenant), 0)
		refused, ok := errors.AsType[*client.Refused](err)
		if !ok || refused.Unwrap() != nil || refused.RetryAfter <= 0 || refused.RetryAfter > slotTTL {
			t.Errorf("%s: got %v, want a refusal", tenant, err)
		}
	}
	usage := func(tenant string) client.LimitUsage {
		t.Helper()
		u, err := other.Usage(ctx, ask(tenant))
		expect.NoError(t, err)
		return u.Limits[0]
	}

	// Two clients share a limit. A second release frees nothing, and what has been
	// freed can't be renewed.
	first := take(c, "shared")
	evicted, err := c.Acquire(ctx, ask("shared"), 3*time.Second) // it is renewed each second
	expect.NoError(t, err)
	wantFull("shared")
	expect.NoError(t, first.Close())
	take(other, "shared")
	expect.NoError(t, c.ReleaseSlot(ctx, first.ID))
	wantFull("shared")
	var e *client.Error
	if _, err := c.RenewSlot(ctx, first.ID); !errors.As(err, &e) || e.Code != "unknown-slot" {
		t.Errorf("got %v of a slot that was released", err)
	}
	_, err = other.Reset(ctx, ask("shared"))
	expect.NoError(t, err)
	<-evicted.Context().Done() // before the kill, which may lose a reset that no copy has yet
	if err := context.Cause(evicted.Context()); !errors.Is(err, client.ErrSlotLost) {
		t.Errorf("got %v of a slot that a reset has freed", err)
	}

	const tenants = 6 // with owners on all nodes
	held := map[string][]*client.Slot{}
	for i := range tenants {
		tenant := fmt.Sprint("held-", i)
		held[tenant] = []*client.Slot{take(c, tenant), take(c, tenant)}
		wantFull(tenant)
	}

	var turns atomic.Int64
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for i := range tenants {
		q := ask(fmt.Sprint("busy-", i))
		q.Wait = true // what is released just before its owner dies may be held until its end
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s, err := c.Acquire(ctx, q, 0)
				if err == nil {
					err = s.Close()
				}
				if err != nil {
					t.Errorf("%s: %v", q.Key, err)
					return
				}
				turns.Add(1)
			}
		})
	}
	goesOn := func() bool { return turns.Load() > 100 || t.Failed() }
	process.Eventually(t, "the client is busy", goesOn)
	nodes[0].Stop(syscall.SIGKILL)
	killed := time.Now()
	turns.Store(0)

	// What is released while other nodes take over can be had by others, once.
	for tenant, slots := range held {
		expect.NoError(t, slots[0].Close())
		q := ask(tenant)
		q.Wait = true
		soon, cancel := context.WithTimeout(ctx, process.Timeout)
		_, err := other.Acquire(soon, q, 0)
		cancel()
		expect.NoError(t, err)
		wantFull(tenant)
	}
	process.Eventually(t, "the client is busy at another node", goesOn)

	for tenant, slots := range held {
		process.Eventually(t, tenant+": its slots are renewed at another node", func() bool {
			// A copy of a slot may end a little later than the slot did where it was granted.
			renewed := slotTTL - time.Since(killed) + time.Second/2
			return !slices.ContainsFunc(usage(tenant).Held, func(h client.Holder) bool { return h.Expires < renewed })
		})
		wantFull(tenant)
		expect.NoError(t, context.Cause(slots[1].Context()))
	}

	close(stop)
	busy.Wait()
	c.Close()
	for i := range tenants {
		expect.Equal(t, usage(fmt.Sprint("held-", i)).Used, 1, "held-%d: the other client's slots", i)
		process.Within(t, slotTTL+process.Timeout, "no slot is left",
			func() bool { return usage(fmt.Sprint("busy-", i)).Used == 0 })
	}
	other.Close()
}

// BenchmarkRealNode measures a check at a node on this machine: by one caller,
// and by 64 concurrent callers, with and without sharing requests.
func BenchmarkRealNode(b *testing.B) {
	n := start(b, nodeRules)
	for _, test := range []struct {
		name               string
		callers, batch, at int
	}{
		{"alone", 1, 1, 1}, {"64-sharing", 64, client.DefaultMaxBatch, client.DefaultMaxInFlight},
		{"64-each-its-own", 64, 1, 64},
	} {
		b.Run(test.name, func(b *testing.B) {
			c := connect(b,
				client.Options{Nodes: []string{n.Data}, MaxBatch: test.batch, MaxInFlight: test.at,
					Timeout: process.Timeout})
			var all sync.WaitGroup
			for i := range test.callers {
				all.Go(func() {
					q := client.Request{Attributes: map[string]string{"ip": fmt.Sprintf("192.0.2.%d", i)}}
					for range b.N/test.callers + 1 {
						if _, err := c.Check(context.Background(), q); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

var seconds = regexp.MustCompile(`t=\d+`)

func timeless(header string) string { return seconds.ReplaceAllString(header, "t=") }

// TestRealNodeOneLimit: an adjustment or a reset of one limit leaves the others
// as they are, and says what was applied; a check takes what there is.
func TestRealNodeOneLimit(t *testing.T) {
	t.Parallel()
	n := start(t, `version: 1
rules:
  - name: api
    key: [user]
    usage: monthly
    limits: [{name: hour, limit: 10, per: 1h, algorithm: fixed-window}, {name: day, limit: 100, per: 24h, algorithm: fixed-window}]
  - {name: plain, key: [user], limits: [{limit: 10, per: 1h, algorithm: fixed-window}]}
`)
	c := connect(t, client.Options{Nodes: []string{n.Data}, Timeout: process.Timeout, OnError: client.Closed})
	ctx := context.Background()
	q := client.Request{Rule: "api", Key: []string{"u"}}
	for i, want := range []int64{7, 3, 0} {
		take := client.Request{Rule: "plain", Key: q.Key, Mode: client.AtMostMode, Cost: 7}
		if d, err := c.Check(ctx, take); err != nil || d.Granted != want || d.Allowed != (want > 0) {
			t.Errorf("at most 7, check %d: have %+v, %v, want %d", i, d, err, want)
		}
	}

	count := q
	count.Mode, count.Cost = client.CountMode, 4
	if _, err := c.Check(ctx, count); err != nil {
		t.Fatal(err)
	}
	one := q
	one.LimitName, one.Bill = "hour", true
	u, err := c.AdjustCosts(ctx, one, map[string]int64{"requests": -50})
	if err != nil || len(u.Limits) != 1 || u.Limits[0].Name != "hour" || u.Limits[0].Used != 0 ||
		u.Limits[0].Applied != -4 || u.Applied["requests"] != -4 {
		t.Errorf("a reward to one limit: have %+v, %v", u, err)
	}
	one.LimitName = "day"
	u, err = c.Reset(ctx, one)
	if err != nil || len(u.Limits) != 1 || u.Limits[0].Used != 0 || u.Applied != nil {
		t.Errorf("a reset of the other: have %+v, %v", u, err)
	}

	var e *client.Error
	one.LimitName = "nobody"
	_, err = c.Reset(ctx, one)
	if !errors.As(err, &e) || e.Code != "unknown-limit" || e.Status != 404 {
		t.Errorf("a limit that there is not: have %v", err)
	}
	unbilled := client.Request{Rule: "plain", Key: q.Key, Bill: true}
	_, err = c.AdjustCosts(ctx, unbilled, map[string]int64{"requests": 1})
	if !errors.As(err, &e) || e.Code != "bad-value" {
		t.Errorf("the bill of a rule that has none: have %v", err)
	}
	one.LimitName = strings.Repeat("x", 1025)
	_, err = c.Reset(ctx, one)
	if !errors.Is(err, client.ErrRequest) || !strings.Contains(err.Error(), "LimitName") {
		t.Errorf("a long name: have %v", err)
	}
}
