package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
)

// members is a Membership.
type members struct{ left atomic.Int64 }

func (m *members) Leave(context.Context) error {
	if m.left.Add(1) > 1 {
		return fmt.Errorf("leave: %w", ErrNoLeader)
	}
	return nil
}

func (m *members) Remove(_ context.Context, name string) error {
	switch name {
	case "gone":
		return nil
	case "there":
		return fmt.Errorf("remove: %w", ErrMemberThere)
	}
	return fmt.Errorf("remove: %w", ErrNoMember)
}

func TestMembership(t *testing.T) {
	n := startNode(t, func(c *Config) { c.Membership, c.AdminToken = &members{}, "secret" })
	token := map[string]string{"Authorization": "Bearer secret"}
	for _, tt := range []struct {
		method, path string
		header       map[string]string
		status       int
		want         string
	}{
		{"POST", "/v1/leave", nil, 401, "unauthorized"},
		{"GET", "/v1/leave", nil, 405, "takes POST"},
		{"POST", "/v1/leave", token, 200, `{"left":"n1"}`},
		{"POST", "/v1/leave", token, 503, "no-leader"},
		{"DELETE", "/v1/members/gone", nil, 401, "unauthorized"},
		{"DELETE", "/v1/members/gone", token, 200, `{"removed":"gone"}`},
		{"DELETE", "/v1/members/there", token, 409, "member-there"},
		{"DELETE", "/v1/members/nobody", token, 404, "not-found"},
		{"DELETE", "/v1/members/" + strings.Repeat("x", 1025), token, 400, "bad-value"},
	} {
		resp, body := n.do(call{method: tt.method, url: n.adm + tt.path, header: tt.header})
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s %.30s: have %d %s, want %d %s", tt.method, tt.path, resp.StatusCode, body, tt.status, tt.want)
		}
	}
}

func TestMembershipOfNone(t *testing.T) {
	n := startNode(t, nil)
	for method, path := range map[string]string{"POST": "/v1/leave", "DELETE": "/v1/members/x"} {
		if resp, body := n.do(call{method: method, url: n.adm + path}); resp.StatusCode != 404 {
			t.Errorf("%s %s: have %d %s", method, path, resp.StatusCode, body)
		}
	}
}

// A read of the rules follows writes made elsewhere, or says that it may not.
func TestCatch(t *testing.T) {
	var mode atomic.Int64
	n := startNode(t, func(c *Config) {
		l := c.Decider.(*limiter.Limiter)
		c.Catch = func(ctx context.Context) error {
			switch mode.Load() {
			case 0:
				doc, err := l.Rules().Document.Apply(rules.Change{Part: rules.WholeDocument, Body: []byte(yamlRules)})
				if err != nil {
					return err
				}
				set, err := rules.Compile(doc, 2)
				if err != nil {
					return err
				}
				l.Use(set)
				return nil
			case 1:
				return ErrNoLeader
			}
			<-ctx.Done()
			return ctx.Err()
		}
	})
	get := func(path string) *http.Response {
		resp, _ := n.do(call{method: "GET", url: n.adm + path})
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
	if resp := get("/v1/rules/only"); resp.StatusCode != 200 || resp.Header.Get("Rlnode-Stale") != "true" || time.Since(began) < catchTime {
		t.Errorf("have %d %v after %v", resp.StatusCode, resp.Header, time.Since(began))
	}
}

// A node that was ready tells when it is not any more, and still decides checks.
func TestCondition(t *testing.T) {
	var why atomic.Pointer[error]
	n := startNode(t, func(c *Config) {
		c.Condition = func() error {
			if err := why.Load(); err != nil {
				return *err
			}
			return nil
		}
	})
	status := func(url string) (int, string) {
		resp, body := n.do(call{method: "GET", url: url + "/readyz"})
		return resp.StatusCode, body
	}
	if code, body := status(n.data); code != 200 {
		t.Errorf("have %d %s", code, body)
	}
	err := errors.New("no ring is known")
	why.Store(&err)
	for _, url := range []string{n.data, n.adm} {
		if code, body := status(url); code != 503 || !strings.Contains(body, "no ring is known") {
			t.Errorf("have %d %s", code, body)
		}
	}
	if code, f := n.check(`{"rule":"login","key":"198.51.100.1"}`); code != 200 {
		t.Errorf("have %d %v", code, f)
	}
}

// lost is subjects whose owner can't be reached.
type lost struct{ Subjects }

func (l lost) Usage(string, []string) (*limiter.Usage, error) {
	return nil, fmt.Errorf("usage: %w", limiter.ErrNoOwner)
}

func TestNoOwner(t *testing.T) {
	n := startNode(t, func(c *Config) { c.Subjects = lost{c.Subjects} })
	for path, want := range map[string]int{"/v1/usage?rule=login&key=198.51.100.1": 503, "/v1/owner?rule=login&key=198.51.100.1": 200} {
		if resp, body := n.do(call{method: "GET", url: n.adm + path}); resp.StatusCode != want || want == 503 && !strings.Contains(body, "no-owner") {
			t.Errorf("%s: have %d %s", path, resp.StatusCode, body)
		}
	}
}

func TestClusterMetrics(t *testing.T) {
	n := startNode(t, func(c *Config) {
		c.ClusterStats = func() limiter.ClusterStats {
			s := limiter.ClusterStats{Forwards: 3, Sum: 2 * time.Second, Acted: 7}
			s.Seconds[0], s.Seconds[len(s.Seconds)-1], s.Fallback[rules.Full] = 2, 1, 5
			return s
		}
	})
	_, body := n.do(call{method: "GET", url: n.adm + "/metrics"})
	for _, want := range []string{
		`rlnode_forward_seconds_bucket{le="2.5e-05"} 2`, "rlnode_forward_seconds_count 3", "rlnode_forward_seconds_sum 2",
		`rlnode_fallback_total{on_partition="full"} 5`, "rlnode_standby_decisions_total 7",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

// A batch longer than a chunk is answered in order.
func TestLongBatch(t *testing.T) {
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
	resp, body := n.do(call{method: "POST", url: n.data + "/v1/check/batch", body: `{"checks":[` + b.String()[1:] + `]}`})
	if resp.StatusCode != 200 {
		t.Fatalf("have %d %s", resp.StatusCode, body)
	}
	results := fieldsOf(t, body)["results"].([]any)
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
