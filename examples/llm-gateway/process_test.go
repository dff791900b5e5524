package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/process"
)

// folder is the directory in which the program is built.
var folder string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rlnode-gateway-*")
	if err != nil {
		panic(err)
	}
	folder = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// program returns the path of the real node, built once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(folder, "rlnode")
	return path, process.Build(path)
})

// realNode starts a node and returns the addresses of its planes.
func realNode(t *testing.T, rules string) (data, admin string) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	n := process.Start(t, path, "--rules", rules)
	return n.Data, n.Admin
}

// post returns the status and the body of a request to a node.
func post(t *testing.T, address, body string) (int, string) {
	t.Helper()
	r, err := http.Post(address, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// used returns what a node reports that an API key has used, by unit.
func used(t *testing.T, admin, key string) map[string]int64 {
	t.Helper()
	r, err := http.Get(admin + "/v1/usage?" + url.Values{"rule": {"llm"}, "key": {client.Fingerprint(key)}}.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var u struct {
		Limits []struct {
			Unit string `json:"unit"`
			Used int64  `json:"used"`
		} `json:"limits"`
	}
	if err := json.NewDecoder(r.Body).Decode(&u); err != nil {
		t.Fatal(err)
	}
	by := map[string]int64{}
	for _, l := range u.Limits {
		by[l.Unit] = l.Used
	}
	return by
}

const longRules = `version: 1
rules:
  - name: llm
    match: {endpoint: /v1/chat/completions}
    key: [api_key]
    limits:
      - {limit: 30,   per: 8760h, algorithm: fixed-window}
      - {limit: 5000, per: 8760h, algorithm: fixed-window, unit: tokens}
`

// TestWithRealNode makes many concurrent calls: some stream, some hang up. In
// the end the node has counted exactly the tokens that the model reports.
func TestWithRealNode(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte(longRules), 0o600); err != nil {
		t.Fatal(err)
	}
	data, admin := realNode(t, rules)
	g := serve(t, data, stub{})
	var admitted, refused, wrong, total atomic.Int64
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			r := ask(t, context.Background(), g, "k1", []string{plain, withUsage}[i%2])
			text, err := io.ReadAll(r.Body)
			switch {
			case err != nil:
				wrong.Add(1)
			case r.StatusCode == 429 && r.Header.Get("Retry-After") != "":
				refused.Add(1)
			case r.StatusCode == 200 && r.Header.Get("x-ratelimit-limit-tokens") == "5000" &&
				r.Header.Get("x-ratelimit-limit-requests") == "30":
				admitted.Add(1)
				total.Add(totalOf(string(text)))
			default:
				t.Errorf("have %d %v %s", r.StatusCode, r.Header, text)
			}
		})
	}
	all.Wait()
	if wrong.Load() > 0 || admitted.Load() == 0 || admitted.Load()+refused.Load() != 40 ||
		admitted.Load() > 30 || total.Load() == 0 {
		t.Errorf("%d admitted, %d refused, %d wrong", admitted.Load(), refused.Load(), wrong.Load())
	}
	process.Eventually(t, "what the model says is what is counted", func() bool {
		u := used(t, admin, "k1")
		return u[tokens] == total.Load() && u[requests] == admitted.Load()
	})

	// A caller that hangs up pays for what has arrived.
	ctx, cancel := context.WithCancel(context.Background())
	slow := serve(t, data, stub{pause: process.Timeout})
	r := ask(t, ctx, slow, "k2", streaming)
	if _, err := io.ReadFull(r.Body, make([]byte, 50)); err != nil {
		t.Error(err)
	}
	cancel()
	process.Eventually(t, "the prompt and one word are counted", func() bool {
		u := used(t, admin, "k2")
		return u[tokens] == prompt+2 && u[requests] == 1
	})
}

var totalTokens = regexp.MustCompile(`"total_tokens":(\d+)`)

// totalOf returns the usage that an answer or a stream reports.
func totalOf(answer string) (n int64) {
	if m := totalTokens.FindStringSubmatch(answer); m != nil {
		json.Unmarshal([]byte(m[1]), &n)
	}
	return n
}

// TestRulesFile: a real node accepts the example's rules.
func TestRulesFile(t *testing.T) {
	t.Parallel()
	data, _ := realNode(t, "rules.yaml")
	check := `{"attributes":{"api_key":"x","endpoint":"/v1/chat/completions"},"costs":{"tokens":1999},"detail":true}`
	if status, body := post(t, data+"/v1/check", check); status != 200 ||
		!strings.Contains(body, `"tokens-per-minute"`) ||
		!strings.Contains(body, `"requests-per-minute"`) {
		t.Errorf("have %d %s", status, body)
	}
	if status, body := post(t, data+"/v1/check", check); status != 429 || !strings.Contains(body, `"remaining":`) {
		t.Errorf("the second one: have %d %s", status, body)
	}
}
