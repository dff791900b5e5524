package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

const patience = 20 * time.Second

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if ok() {
			return
		}
		timer := time.NewTimer(2 * time.Millisecond)
		<-timer.C
	}
	t.Fatalf("%s: not within %v", what, patience)
}

// output collects what is printed; it may be read meanwhile.
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

// example runs the server before nodes and returns its address, and a function that ends it.
func example(t *testing.T, nodes string, more ...string) (address string, stop func() error) {
	t.Helper()
	out := &output{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, append([]string{"-listen", "127.0.0.1:0", "-nodes", nodes}, more...), out) }()
	t.Cleanup(cancel)
	serving := regexp.MustCompile(`Serving on (http://\S+),`)
	eventually(t, "the example serves", func() bool {
		m := serving.FindStringSubmatch(out.String())
		if m != nil {
			address = m[1]
		}
		return m != nil
	})
	return address, func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return fmt.Errorf("it does not end:\n%s", out)
		}
	}
}

func get(t *testing.T, address, key string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	if key != "" {
		r.Header.Set("X-Api-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}

// TestWithStarterRules does what the example says to type.
func TestWithStarterRules(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "rlnode")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/rlnode").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	log := &output{}
	cmd := exec.Command(program, "serve", "--data-dir", filepath.Join(dir, "data"), "--bind", "127.0.0.1", "--http-port", "0",
		"--admin-port", "0", "--gossip-port", "0", "--peer-port", "0")
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait() // how it ended shows in its log
	})
	t.Cleanup(end)
	node := ""
	eventually(t, "the node is ready", func() bool {
		if m := regexp.MustCompile(`msg=ready .*data=(\S+)`).FindStringSubmatch(log.String()); m != nil {
			node = m[1]
		}
		return node != ""
	})
	address, stop := example(t, node)

	if r, text := get(t, address, ""); r.StatusCode != 200 || !strings.Contains(text, "per-ip has 99 of 100") || r.Header.Get("RateLimit") == "" {
		t.Errorf("have %d %s %v", r.StatusCode, text, r.Header)
	}
	for i := range 6 {
		want := http.StatusUnauthorized
		if i == 5 {
			want = http.StatusTooManyRequests
		}
		r, text := get(t, address+"/login", "")
		if r.StatusCode != want || i == 5 && (r.Header.Get("Retry-After") == "" || !strings.Contains(text, `"login"`)) {
			t.Errorf("login %d: have %d %s %v", i, r.StatusCode, text, r.Header)
		}
	}
	if r, _ := get(t, address, "k1"); r.Header.Get("X-RateLimit-Limit") != "100" || !strings.Contains(r.Header.Get("RateLimit-Policy"), "per-api-key") {
		t.Errorf("with a key: have %v", r.Header)
	}
	if r, text := get(t, address+"/healthz", ""); r.StatusCode != 200 || text != "ok\n" || r.Header.Get("RateLimit") != "" {
		t.Errorf("healthz: have %d %s %v", r.StatusCode, text, r.Header)
	}
	end()
	if r, text := get(t, address, ""); r.StatusCode != 200 || !strings.Contains(text, "error") {
		t.Errorf("without a node: have %d %s", r.StatusCode, text)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestClosed lets nothing pass without a node, and ends when it is told to.
func TestClosed(t *testing.T) {
	address, stop := example(t, "http://127.0.0.1:1", "-closed")
	if r, _ := get(t, address, ""); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("have %d", r.StatusCode)
	}
	if r, _ := get(t, address+"/healthz", ""); r.StatusCode != http.StatusOK {
		t.Errorf("healthz: have %d", r.StatusCode)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := run(context.Background(), []string{"-nodes", "nonsense"}, io.Discard); err == nil || !strings.Contains(err.Error(), "Nodes[0]") {
		t.Errorf("have %v", err)
	}
}
