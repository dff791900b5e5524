package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/metrics"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/usage"
)

func TestMembership(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Membership, c.AdminToken = &apitest.Members{}, "secret" })
	token := map[string]string{"Authorization": "Bearer secret"}
	for _, tt := range []struct {
		method, path string
		header       map[string]string
		status       int
		want         string
	}{
		{"POST", "/v1/leave", nil, 401, "unauthorized"},
		{"GET", "/v1/leave", nil, 405, "takes POST"},
		{"POST", "/v1/leave", token, 200, `{"left":"n1","last":false}`},
		{"POST", "/v1/leave?force=false", token, 409, "only-member"},
		{"POST", "/v1/leave?force=yes", token, 400, "force must be false or true"},
		{"POST", "/v1/leave?force=true", token, 200, `{"left":"n1","last":true}`},
		{"POST", "/v1/leave", token, 503, "no-leader"},
		{"DELETE", "/v1/members/gone", nil, 401, "unauthorized"},
		{"DELETE", "/v1/members/gone", token, 200, `{"removed":"gone"}`},
		{"DELETE", "/v1/members/there", token, 409, "member-there"},
		{"DELETE", "/v1/members/there?force=false", token, 409, "member-there"},
		{"DELETE", "/v1/members/there?force=true", token, 200, `{"removed":"there"}`},
		{"DELETE", "/v1/members/there?force=1", token, 400, "force must be false or true"},
		{"DELETE", "/v1/members/nobody", token, 404, "not-found"},
		{"DELETE", "/v1/members/" + strings.Repeat("x", 1025), token, 400, "bad-value"},
	} {
		resp, body := n.Do(apitest.Call{Method: tt.method, URL: n.AdminURL + tt.path, Header: tt.header})
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s %.30s: have %d %s, want %d %s", tt.method, tt.path, resp.StatusCode, body, tt.status, tt.want)
		}
	}
}

// loaded is a node whose usage nobody takes over.
type loaded struct{ *apitest.Members }

func (loaded) Leave(context.Context, bool, string) (bool, error) {
	return false, fmt.Errorf("%w: n2: the node is unreachable", usage.ErrNotHandedOver)
}

func TestLeaveSaysWhoCannotTakeOver(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Membership = loaded{&apitest.Members{}} })
	resp, body := n.Do(apitest.Call{Method: "POST", URL: n.AdminURL + "/v1/leave"})
	if resp.StatusCode != 503 || !strings.Contains(body, "try-again") ||
		!strings.Contains(body, "n2: the node is unreachable") {
		t.Errorf("have %d %s, want 503 try-again with the reason", resp.StatusCode, body)
	}
}

// bring makes a document version 2 of the rules in force, as if it had been
// written at another node.
func bring(l *limiter.Limiter, text string) error {
	doc, err := l.Rules().Document.Apply(document.Change{Part: document.WholeDocument, Body: []byte(text)})
	if err != nil {
		return err
	}
	set, err := rules.Compile(doc, 2)
	if err == nil {
		l.SetRules(set)
	}
	return err
}

// An entry may name what was just written at another node. Its dry run, too,
// and a message that names a line of the document.
func TestEntriesCatchUp(t *testing.T) {
	t.Parallel()
	const later = yamlRules + "tiers: {vip: {limits: [{limit: 9, per: 1m}]}}\nlists: {deny: [{ip: 203.0.113.9}]}\n"
	for _, c := range []call{
		{"PUT", "/v1/subjects/user/ann", `{"tier":"vip"}`, 200, `"entries_version":1`},
		{"PUT", "/v1/subjects/user/ann?dry_run=true", `{"tier":"vip"}`, 200, `"tier":"vip"`},
		{"PUT", "/v1/subjects/user/ann", `{"tier":"gone"}`, 422, "gone"},
		{"POST", "/v1/blocks", `{"rule":"only","key":"k","for":"1h"}`, 200, `"entries_version":1}`},
		{"POST", "/v1/blocks", `{"rule":"gone","key":"k","for":"1h"}`, 404, "gone"},
		{"DELETE", "/v1/lists/deny/entries", `{"ip":"203.0.113.9"}`, 409, `"line":7`},
	} {
		c.check(t, startNode(t, func(config *apitest.Config) {
			l := config.Decider.(*limiter.Limiter)
			config.CatchUp = func(context.Context) error { return bring(l, later) }
		}), "")
	}
}

// A read of the rules includes writes made at other nodes, or says that it may not.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	var mode atomic.Int64
	n := startNode(t, func(c *apitest.Config) {
		l := c.Decider.(*limiter.Limiter)
		c.CatchUp = func(ctx context.Context) error {
			switch mode.Load() {
			case 0:
				return bring(l, yamlRules)
			case 1:
				return cluster.ErrLeaderUnavailable
			}
			<-ctx.Done()
			return ctx.Err()
		}
	})
	get := func(path string) *http.Response {
		resp, _ := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + path})
		return resp
	}
	if resp := get("/v1/rules"); resp.Header.Get("ETag") != `"2"` || resp.Header.Get("Rlnode-Stale") != "" {
		t.Errorf("have %v", resp.Header)
	}
	mode.Store(1)
	for _, path := range []string{"/v1/rules", "/v1/rules/only", "/v1/rules/versions"} {
		if resp := get(path); resp.StatusCode != 200 || resp.Header.Get("Rlnode-Stale") != "true" {
			t.Errorf("%s: have %d %v", path, resp.StatusCode, resp.Header)
		}
	}
	mode.Store(2)
	began := time.Now()
	if resp := get("/v1/rules/only"); resp.StatusCode != 200 ||
		resp.Header.Get("Rlnode-Stale") != "true" || time.Since(began) < admin.CatchTime {
		t.Errorf("have %d %v after %v", resp.StatusCode, resp.Header, time.Since(began))
	}
}

// A node that stops being ready says so, and still decides checks.
func TestCondition(t *testing.T) {
	t.Parallel()
	var why atomic.Pointer[error]
	n := startNode(t, func(c *apitest.Config) {
		c.CheckReady = func() error {
			if err := why.Load(); err != nil {
				return *err
			}
			return nil
		}
	})
	status := func(url string) (int, string) {
		resp, body := n.Do(apitest.Call{Method: "GET", URL: url + "/readyz"})
		return resp.StatusCode, body
	}
	if code, body := status(n.DataURL); code != 200 {
		t.Errorf("have %d %s", code, body)
	}
	err := errors.New("no ring is known")
	why.Store(&err)
	for _, url := range []string{n.DataURL, n.AdminURL} {
		if code, body := status(url); code != 503 || !strings.Contains(body, "no ring is known") {
			t.Errorf("have %d %s", code, body)
		}
	}
	if code, f := n.Check(`{"rule":"login","key":"198.51.100.1"}`); code != 200 {
		t.Errorf("have %d %v", code, f)
	}

	// Without an agreement, the reason may be this node.
	for _, failure := range []error{cluster.ErrOutcomeUnknown, cluster.ErrLeaderUnavailable} {
		n.Rules.Fail.Store(&failure)
		resp, body := n.Do(apitest.Call{Method: "PUT", URL: n.AdminURL + "/v1/rules", Body: yamlRules})
		if resp.StatusCode < 400 || !strings.Contains(body, "this node: not ready: no ring is known") {
			t.Errorf("a write that fails with %v: have %d %s, want this node's reason", failure, resp.StatusCode, body)
		}
	}
}

// unreachableOwners is an admin.Subjects whose owners can't be reached.
type unreachableOwners struct{ admin.Subjects }

func (l unreachableOwners) Usage(*limiter.Query) (*limiter.Usage, error) {
	return nil, fmt.Errorf("usage: %w", limiter.ErrNoOwner)
}

func TestNoOwner(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Subjects = unreachableOwners{c.Subjects} })
	for path, want := range map[string]int{"/v1/usage?rule=login&key=198.51.100.1": 503,
		"/v1/owner?rule=login&key=198.51.100.1": 200} {
		if resp, body := n.Do(apitest.Call{Method: "GET",
			URL: n.AdminURL + path}); resp.StatusCode != want || want == 503 && !strings.Contains(body, "no-owner") {
			t.Errorf("%s: have %d %s", path, resp.StatusCode, body)
		}
	}
}

func TestClusterMetrics(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) {
		c.Metrics = append(c.Metrics, func(s metrics.Sink) {
			s.Histogram("forward_seconds", "help", []float64{25e-6, 1}, []int64{2, 0, 1}, 2)
			s.Count("fallback_total", "help", 5, "on_partition", "full")
			s.Count("standby_decisions_total", "help", 7)
		})
	})
	_, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/metrics"})
	for _, want := range []string{
		`rlnode_forward_seconds_bucket{le="2.5e-05"} 2`, "rlnode_forward_seconds_count 3",
		"rlnode_forward_seconds_sum 2",
		`rlnode_fallback_total{on_partition="full"} 5`, "rlnode_standby_decisions_total 7",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

// Metrics of each kind are exported, except those with labels that are not
// UTF-8, which Prometheus rejects.
func TestNodeMetrics(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) {
		c.Metrics = append(c.Metrics, func(s metrics.Sink) {
			s.Flag("on", "help", true)
			s.Level("up", "help", 7, "region", "eu")
			s.Level("up", "help", 9, "region", "no\xfftext")
			s.Count("all_total", "help", 3, "a", "x", "b", "y")
			s.Histogram("took_seconds", "help", []float64{1, 2}, []int64{5, 0, 2}, 30)
			s.Summary("frozen_seconds", "help", 4, 0.25)
		})
	})
	_, body := n.Do(apitest.Call{Method: "GET", URL: n.AdminURL + "/metrics"})
	for _, want := range []string{
		"rlnode_on 1", `rlnode_up{region="eu"} 7`, `rlnode_all_total{a="x",b="y"} 3`,
		`rlnode_took_seconds_bucket{le="1"} 5`,
		`rlnode_took_seconds_bucket{le="2"} 5`, `rlnode_took_seconds_bucket{le="+Inf"} 7`, "rlnode_took_seconds_sum 30",
		"rlnode_frozen_seconds_sum 0.25", "rlnode_frozen_seconds_count 4",
		"# TYPE rlnode_all_total counter", "# HELP rlnode_on help",
	} {
		if !strings.Contains(body, "\n"+want+"\n") && !strings.HasPrefix(body, want+"\n") {
			t.Errorf("%s is missing", want)
		}
	}
	if strings.Contains(body, "text\"") {
		t.Error("the metrics have a label that is not UTF-8")
	}
}

// A node that can't take part in the cluster reports that, and is still ready,
// because it decides checks.
func TestClusterHealth(t *testing.T) {
	t.Parallel()
	well := api.ClusterHealth{Connected: true, LeaderKnown: true}
	tests := map[string]struct {
		harm func(*api.ClusterHealth)
		want string
	}{
		"well": {func(*api.ClusterHealth) {}, `{"view":"connected","leader_known":true,"raft_store":"ok"}`},
		"cut off": {func(f *api.ClusterHealth) { f.Connected = false },
			`{"view":"cut-off","leader_known":true,"raft_store":"ok"}`},
		"no leader": {func(f *api.ClusterHealth) { f.LeaderKnown = false },
			`{"view":"connected","leader_known":false,"raft_store":"ok"}`},
		"hung": {func(f *api.ClusterHealth) { f.StoreHung = true }, `"raft_store":"hung","error":"the disk`},
		"full": {func(f *api.ClusterHealth) { f.StoreFull, f.StoreErr = true, errors.New("no space left") },
			`"raft_store":"failing","error":"no space left"}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			have := well
			test.harm(&have)
			n := startNode(t, func(c *apitest.Config) { c.Health = func() api.ClusterHealth { return have } })
			status := `"status":"degraded"`
			if name == "well" {
				status = `"status":"ok"`
			}
			for _, url := range []string{n.DataURL + "/healthz", n.AdminURL + "/healthz",
				n.DataURL + "/readyz", n.AdminURL + "/readyz"} {
				resp, body := n.Do(apitest.Call{Method: "GET", URL: url})
				if resp.StatusCode != 200 || !strings.Contains(body, status) || !strings.Contains(body, test.want) {
					t.Errorf("%s: have %d %s, want %s", url, resp.StatusCode, body, test.want)
				}
			}
		})
	}
}

// A batch longer than a chunk is answered in order.
func TestLongBatch(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	var b strings.Builder
	for i := range 1000 {
		switch i % 100 {
		case 7:
			b.WriteString(`,{"rule":"nope","key":"k"}`)
		case 8:
			fmt.Fprintf(&b, `,{"rule":"a","key":"d\u00e9%d","detail":true}`, i)
		default:
			fmt.Fprintf(&b, `,{"rule":"a","key":"u\u00e9%d"}`, i%50)
		}
	}
	resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: `{"checks":[` + b.String()[1:] + `]}`})
	if resp.StatusCode != 200 {
		t.Fatalf("have %d %s", resp.StatusCode, body)
	}
	results := apitest.Fields(t, body)["results"].([]any)
	if len(results) != 1000 {
		t.Fatalf("have %d results", len(results))
	}
	seen := map[int]int{}
	for i, r := range results {
		f := r.(map[string]any)
		switch i % 100 {
		case 7:
			if f["error"] == nil {
				t.Fatalf("result %d: have %v", i, f)
			}
		case 8:
			if f["limits"] == nil || fmt.Sprint(f["remaining"]) != "4" {
				t.Fatalf("result %d: have %v", i, f)
			}
		default:
			seen[i%50]++
			if want := seen[i%50] <= 5; f["allowed"] != want {
				t.Fatalf("result %d: have %v, want %v", i, f, want)
			}
		}
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.Levels, c.AdminToken = apitest.Levels{}, "secret" })
	token := map[string]string{"Authorization": "Bearer secret"}
	for _, tt := range []struct {
		method, path string
		header       map[string]string
		status       int
		want         string
	}{
		{"GET", "/v1/level", nil, 401, "unauthorized"},
		{"GET", "/v1/level", token, 200,
			`{"level":2,"highest":3,"members":[{"name":"n1","id":"07000000000000000000000000000000","knows":3,"release":"v3","zones":"2031a"}]}`},
		{"POST", "/v1/level", nil, 401, "unauthorized"},
		{"POST", "/v1/level", token, 200, `{"level":3}`},
		{"POST", "/v1/level?to=4", token, 409, "level-refused"},
		{"POST", "/v1/level?to=0", token, 400, "bad-value"},
		{"POST", "/v1/level?to=x", token, 400, "bad-value"},
	} {
		resp, body := n.Do(apitest.Call{Method: tt.method, URL: n.AdminURL + tt.path, Header: tt.header})
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: have %d %s, want %d %s", tt.method, tt.path, resp.StatusCode, body, tt.status, tt.want)
		}
	}
}
