package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/internal/figures"
	"github.com/rlnode/rlnode/internal/loads"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// provoked is the set of error codes that some test has seen in an answer.
var provoked sync.Map

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && len(os.Args) > 1 && !strings.Contains(strings.Join(os.Args, " "), "-test.run") &&
		!strings.Contains(strings.Join(os.Args, " "), "-test.fuzz") {
		for c := range kinds {
			if _, ok := provoked.Load(c); !ok {
				fmt.Printf("no test provokes the code %s\n", c)
				code = 1
			}
		}
	}
	if code == 0 {
		// The library updates the time for Date headers once a second, for ever, and checks every ten seconds whether its pool
		// of idle workers has been stopped.
		if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2")); err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	os.Exit(code)
}

const testRules = `
version: 1
lists:
  deny: [{ip: 192.0.2.0/24}]
  allow: [{tenant: internal}]
rules:
  - name: login
    key: [ip]
    limits: [{limit: 5, per: 1h, algorithm: sliding-window-log}]
  - name: pair
    key: [tenant, endpoint]
    limits: [{limit: 3, per: 1h, algorithm: token-bucket}]
  - name: all
    key: []
    match: {kind: all}
    limits: [{limit: 1000000, per: 1h, algorithm: fixed-window}]
  - name: a
    key: [user]
    limits: [{limit: 5, per: 1h, algorithm: token-bucket}]
  - name: b
    key: [user]
    match: {both: "yes"}
    limits: [{limit: 3, per: 1h, algorithm: token-bucket}, {limit: 100, per: 1h, unit: tokens, algorithm: token-bucket}]
  - name: queue
    key: [q]
    limits: [{limit: 20, per: 1s, burst: 5, algorithm: leaky-bucket}]
  - name: new-idea
    key: [idea]
    shadow: true
    limits: [{limit: 1, per: 1h, algorithm: token-bucket}]
tiers:
  free: {limits: [{limit: 100, per: 1h}]}
`

// memoryRules is a RuleStore without persistence.
type memoryRules struct {
	limiter *limiter.Limiter
	fail    atomic.Pointer[error] // what Write returns, if not nil

	mu   sync.Mutex // guards docs
	docs []*rules.Document
}

func (m *memoryRules) Write(_ context.Context, c rules.Change, o cluster.WriteOptions) (int64, error) {
	if err := m.fail.Load(); err != nil {
		return 0, *err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o.IfMatch != 0 && o.IfMatch != int64(len(m.docs)) {
		return 0, fmt.Errorf("write rules: %w", rules.ErrConflict)
	}
	doc, err := m.docs[len(m.docs)-1].Apply(c)
	if err != nil {
		return 0, fmt.Errorf("write rules: %w", err)
	}
	return m.use(doc)
}

func (m *memoryRules) use(doc *rules.Document) (int64, error) {
	set, err := rules.Compile(doc, int64(len(m.docs)+1))
	if err != nil {
		return 0, err
	}
	m.docs = append(m.docs, doc)
	m.limiter.Use(set)
	return set.Version, nil
}

func (m *memoryRules) Versions() []rules.Version {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []rules.Version
	for i := len(m.docs); i > 0; i-- {
		list = append(list, rules.Version{Number: int64(i), When: time.Unix(0, 0).UTC(), By: "test", What: "all", Size: 1})
	}
	return list
}

func (m *memoryRules) Version(n int64) (*rules.Document, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n < 1 || n > int64(len(m.docs)) {
		return nil, fmt.Errorf("look for version %d: %w", n, rules.ErrNotFound)
	}
	return m.docs[n-1], nil
}

// node is a node under test.
type node struct {
	*API
	t      testing.TB
	rules  *memoryRules
	client *http.Client
	data   string // URL of the data plane
	adm    string // URL of the admin plane
}

// startNode starts a node on free ports. It is ready unless change, which may be nil, says otherwise.
func startNode(t testing.TB, change func(*Config)) *node {
	t.Helper()
	table := counters.New(100_000)
	clock := limiter.NewClock()
	l := limiter.New(table, clock)
	store := &memoryRules{limiter: l}
	doc, err := rules.Parse([]byte(testRules))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.use(doc); err != nil {
		t.Fatal(err)
	}
	config := Config{
		DataAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", Node: "n1", Version: "test",
		Decider: l, Subjects: l, Rules: store, Cluster: Alone{Name: "n1", ID: nodeID(1), Address: "127.0.0.1", Region: "default"},
		Membership: &members{}, Levels: levels{}, Loads: loads.New(loads.Config{Now: func() time.Duration { return 0 }}),
		Catch: func(context.Context) error { return nil }, Health: func() ClusterHealth { return ClusterHealth{Connected: true, LeaderKnown: true} },
		Activity: l.Activity, History: l.History, Figures: []figures.Source{l.Figures, table.Figures},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if change != nil {
		change(&config)
	}
	a, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableCompression: true}
	n := &node{API: a, t: t, rules: store, client: &http.Client{Transport: transport, Timeout: 20 * time.Second}}
	scheme := "http://"
	if config.CertFile != "" {
		scheme = "https://"
	}
	n.data, n.adm = scheme+a.DataAddr().String(), scheme+a.AdminAddr().String()
	a.Ready()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := clock.Close(); err != nil {
			t.Errorf("close clock: %v", err)
		}
		table.Close()
	})
	return n
}

// call is one HTTP request.
type call struct {
	method string
	url    string
	body   string
	header map[string]string
}

// do makes a call and returns the answer with its body. It records error codes as provoked.
func (n *node) do(c call) (*http.Response, string) {
	n.t.Helper()
	req, err := http.NewRequest(c.method, c.url, strings.NewReader(c.body))
	if err != nil {
		n.t.Fatal(err)
	}
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	resp, err := n.client.Do(req)
	if err != nil {
		n.t.Fatalf("%s %s: %v", c.method, c.url, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatalf("%s %s: %v", c.method, c.url, err)
	}
	noteCode(body)
	return resp, string(body)
}

// noteCode records the code of an error as provoked, and those within a batch's results.
func noteCode(body []byte) Code {
	var p struct {
		Code    Code
		Results []struct{ Error struct{ Code Code } }
	}
	if json.Unmarshal(body, &p) != nil {
		return ""
	}
	if p.Code != "" {
		provoked.Store(p.Code, true)
	}
	for _, r := range p.Results {
		if r.Error.Code != "" {
			provoked.Store(r.Error.Code, true)
		}
	}
	return p.Code
}

// check calls POST /v1/check and returns the status and the answer's fields.
func (n *node) check(body string) (int, map[string]any) {
	n.t.Helper()
	resp, text := n.do(call{method: "POST", url: n.data + "/v1/check", body: body})
	return resp.StatusCode, fieldsOf(n.t, text)
}

func fieldsOf(t testing.TB, text string) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	return m
}

// until polls a condition that must soon become true.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		<-tick.C
	}
}
