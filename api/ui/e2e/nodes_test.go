//go:build browser

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// Three tokens: for everything, for what the page shows, and for checks.
const adminToken, viewerToken, gatewayToken = "the-token-of-the-test", "the-viewer-of-the-test", "the-gateway-of-the-test"

// client sends the admin token.
var client = &http.Client{Timeout: 10 * time.Second, Transport: bearer{}}

type bearer struct{}

func (bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+adminToken)
	return http.DefaultTransport.RoundTrip(r)
}

const someRules = `
version: 1
lists:
  deny: [{ip: 192.0.2.0/24}]
rules:
  - name: per-address
    key: [ip]
    limits: [{limit: 300, per: 1m}]
  - name: login
    match: {endpoint: /login}
    key: [ip]
    consistency: exact
    limits: [{limit: 5, per: 15m, algorithm: sliding-window-log}]
  - name: api-key
    key: [api_key]
    limits:
      - {limit: 10, per: 1s, algorithm: token-bucket, burst: 20}
      - {limit: 10000, per: day, algorithm: fixed-window}
      - {limit: 90000, per: 1m, algorithm: token-bucket, unit: tokens}
  - name: tenant
    key: [tenant]
    tiered: true
  - name: chat
    match: {endpoint: "/chat*"}
    key: [tenant, endpoint]
    limits: [{limit: 2000, per: 1m, algorithm: token-bucket, burst: 100}]
  - name: everything
    key: []
    limits: [{limit: 500000, per: 1s, algorithm: token-bucket}]
  - name: new-idea
    key: [tenant]
    shadow: true
    limits: [{limit: 300, per: 1m}]
tiers:
  free: {limits: [{limit: 1000, per: 1h}]}
  premium: {limits: [{limit: 1000000, per: 1h}]}
default_tier: free
subjects:
  tenant: {acme: {tier: premium}}
`

// cluster is three real nodes on loopback addresses of their own, with the default ports.
type cluster struct {
	t     *testing.T
	dir   string
	net   string         // the first three bytes of the addresses
	links *process.Links // between nodes that can be cut off; nil for none
	nodes [3]*exec.Cmd
	gone  sync.WaitGroup // counts running nodes
}

// newCluster builds the program. No node runs yet.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), net: fmt.Sprintf("127.%d.%d", 1+rand.IntN(250), rand.IntN(250))}
	expect.NoError(t, process.Build(filepath.Join(c.dir, "rlnode")))
	expect.NoError(t, os.WriteFile(filepath.Join(c.dir, "rules.yaml"), []byte(someRules), 0o644))
	tokens := "tokens:\n"
	for name, text := range map[string]string{"viewer": viewerToken, "gateway": gatewayToken} {
		scope := map[string]string{"viewer": "read", "gateway": "check"}[name]
		tokens += fmt.Sprintf("- {name: %s, scopes: [%s], sha256: %x}\n", name, scope, sha256.Sum256([]byte(text)))
	}
	expect.NoError(t, os.WriteFile(filepath.Join(c.dir, "tokens.yaml"), []byte(tokens), 0o600))
	t.Cleanup(func() {
		for i := range c.nodes {
			c.kill(i)
		}
		c.gone.Wait()
		for i := range c.nodes {
			if log, err := os.ReadFile(c.log(i)); err == nil && t.Failed() {
				t.Logf("the end of the log of node %d:\n%s", i+1, log[max(0, len(log)-2000):])
			}
		}
	})
	return c
}

func (c *cluster) ip(i int) string    { return fmt.Sprintf("%s.%d", c.net, i+1) }
func (c *cluster) log(i int) string   { return filepath.Join(c.dir, fmt.Sprintf("n%d.log", i+1)) }
func (c *cluster) admin(i int) string { return "http://" + c.ip(i) + ":8081" }

// link makes it possible to cut nodes off. None runs yet.
func (c *cluster) link() {
	c.links = process.NewLinks(c.t)
	for i := range c.nodes {
		c.links.Add(c.ip(i), c.ip(i+100))
	}
}

// address returns where the others reach node i.
func (c *cluster) address(i int) string {
	if c.links != nil {
		i += 100 // its link's address
	}
	return c.ip(i)
}

func (c *cluster) start(i int) {
	c.t.Helper()
	cmd := exec.Command(filepath.Join(c.dir, "rlnode"), "serve", "--name", fmt.Sprintf("n%d", i+1),
		"--zone", fmt.Sprintf("zone-%c", 'a'+i),
		"--bind", c.ip(i), "--data-dir", filepath.Join(c.dir, fmt.Sprintf("n%d", i+1)), "--bootstrap-expect", "3",
		"--advertise", c.address(i), "--join",
		strings.Join([]string{c.address((i + 1) % 3), c.address((i + 2) % 3)}, ","), "--rules",
		filepath.Join(c.dir, "rules.yaml"),
		"--admin-token", adminToken, "--tokens-file", filepath.Join(c.dir, "tokens.yaml"), "--max-counters", "100000")
	log, err := os.OpenFile(c.log(i), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	expect.NoError(c.t, err)
	defer log.Close()
	cmd.Stderr = log
	expect.NoError(c.t, cmd.Start())
	c.nodes[i] = cmd
	c.gone.Go(func() { _ = cmd.Wait() })
}

func (c *cluster) kill(i int) {
	if c.nodes[i] != nil {
		_ = c.nodes[i].Process.Kill()
	}
}

// serves reports whether node i answers at its admin plane.
func (c *cluster) serves(i int) bool {
	resp, err := http.Get(c.admin(i) + "/healthz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == 200
}

func (c *cluster) awaitReady(i int) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("node %d is ready", i+1), func() bool {
		resp, err := http.Get(c.admin(i) + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
}

// put writes rules.
func (c *cluster) put(text string) {
	c.t.Helper()
	req, err := http.NewRequest(http.MethodPut, c.admin(0)+"/v1/rules", strings.NewReader(text))
	expect.NoError(c.t, err)
	resp, err := client.Do(req)
	expect.NoError(c.t, err)
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 {
		c.t.Fatalf("have %d %s", resp.StatusCode, body)
	}
}

// check asks node i, and returns the status; 0 without an answer.
func (c *cluster) check(i int, body string) int {
	resp, err := client.Post("http://"+c.ip(i)+":8080/v1/check", "", strings.NewReader(body))
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// refuse asks node i so often in one batch whether a key may log in that nearly
// all of the checks are refused.
func (c *cluster) refuse(i int, key string) {
	b := []byte(`{"checks":[`)
	for n := range 200 {
		if n > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"rule":"login","key":%q}`, key)
	}
	resp, err := client.Post("http://"+c.ip(i)+":8080/v1/check/batch", "", bytes.NewReader(append(b, "]}"...)))
	if err != nil {
		return // it is asked again
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}

// load sends some hundred checks a second to all nodes, until the test ends.
func (c *cluster) load() {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	c.t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	client := &http.Client{Timeout: time.Second, Transport: bearer{}}
	for i := range c.nodes {
		done.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				// A node that is down has no clients.
				resp, err := client.Post("http://"+c.ip(i)+":8080/v1/check/batch", "", bytes.NewReader(mixture(n)))
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
		})
	}
}

// mixture is a batch of checks as an API might send them.
func mixture(n int) []byte {
	b := []byte(`{"checks":[`)
	add := func(format string, args ...any) {
		if b[len(b)-1] != '[' {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"attributes":`+format+`}`, args...)
	}
	for range 10 + 6*(n/40%3) {
		add(`{"ip":"198.51.100.%d"}`, rand.IntN(200))
	}
	add(`{"ip":"203.0.113.%d","endpoint":"/login"}`, rand.IntN(4))
	add(`{"ip":"192.0.2.1"}`)
	for _, tenant := range []string{"acme", "globex", "initech"} {
		add(`{"tenant":%q,"endpoint":"/chat/completions"}`, tenant)
	}
	add(`{"api_key":"k%d"}`, rand.IntN(3))
	add(`{"api_key":"k1"}`)
	return append(b, "]}"...)
}
