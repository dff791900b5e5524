package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// output collects what a process prints; it may be read meanwhile.
type output struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

var readyLine = regexp.MustCompile(`msg=ready .*data=(\S+) admin=(\S+)`)

// folder is where the program is built.
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

// program is the real node, built once.
var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(folder, "rlnode")
	if out, err := exec.Command("go", "build", "-o", path, "../../cmd/rlnode").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// realNode starts a node and returns the addresses of its planes.
func realNode(t *testing.T, rules string) (data, admin string) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "serve", "--data-dir", t.TempDir(), "--bind", "127.0.0.1", "--http-port", "0",
		"--admin-port", "0", "--gossip-port", "0", "--peer-port", "0", "--rules", rules)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	log := &output{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait() // how it ended shows in its log
		if t.Failed() {
			t.Logf("the node's log:\n%s", log)
		}
	})
	eventually(t, "the node is ready", func() bool {
		m := readyLine.FindStringSubmatch(log.String())
		if m != nil {
			data, admin = m[1], m[2]
		}
		return m != nil
	})
	return data, admin
}

// post returns status and body of a request to a node.
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

// used asks a node what an API key has used, by unit.
func used(t *testing.T, admin, key string) map[string]int64 {
	t.Helper()
	r, err := http.Get(admin + "/v1/usage?" + url.Values{"rule": {"llm"}, "key": {fingerprint(key)}}.Encode())
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

// TestWithRealNode: many calls at once, some streaming, some hanging up; when all is over the node has counted what the
// model says, to the token.
func TestWithRealNode(t *testing.T) {
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
			case r.StatusCode == 200 && r.Header.Get("x-ratelimit-limit-tokens") == "5000" && r.Header.Get("x-ratelimit-limit-requests") == "30":
				admitted.Add(1)
				total.Add(totalOf(string(text)))
			default:
				t.Errorf("have %d %v %s", r.StatusCode, r.Header, text)
			}
		})
	}
	all.Wait()
	if wrong.Load() > 0 || admitted.Load() == 0 || admitted.Load()+refused.Load() != 40 || admitted.Load() > 30 || total.Load() == 0 {
		t.Errorf("%d admitted, %d refused, %d wrong", admitted.Load(), refused.Load(), wrong.Load())
	}
	eventually(t, "what the model says is what is counted", func() bool {
		u := used(t, admin, "k1")
		return u[tokens] == total.Load() && u[requests] == admitted.Load()
	})

	// Who hangs up pays for what has come.
	ctx, cancel := context.WithCancel(context.Background())
	slow := serve(t, data, stub{pause: patience})
	r := ask(t, ctx, slow, "k2", streaming)
	if _, err := io.ReadFull(r.Body, make([]byte, 50)); err != nil {
		t.Error(err)
	}
	cancel()
	eventually(t, "the prompt and one word are counted", func() bool {
		u := used(t, admin, "k2")
		return u[tokens] == prompt+2 && u[requests] == 1
	})
}

var totalTokens = regexp.MustCompile(`"total_tokens":(\d+)`)

// totalOf is the usage that an answer or a stream tells.
func totalOf(answer string) (n int64) {
	if m := totalTokens.FindStringSubmatch(answer); m != nil {
		json.Unmarshal([]byte(m[1]), &n)
	}
	return n
}

// TestRulesFile: a real node takes the example's rules.
func TestRulesFile(t *testing.T) {
	data, _ := realNode(t, "rules.yaml")
	check := `{"attributes":{"api_key":"x","endpoint":"/v1/chat/completions"},"costs":{"tokens":1999},"detail":true}`
	if status, body := post(t, data+"/v1/check", check); status != 200 || !strings.Contains(body, `"tokens-per-minute"`) || !strings.Contains(body, `"requests-per-minute"`) {
		t.Errorf("have %d %s", status, body)
	}
	if status, body := post(t, data+"/v1/check", check); status != 429 || !strings.Contains(body, `"remaining":`) {
		t.Errorf("the second one: have %d %s", status, body)
	}
}
