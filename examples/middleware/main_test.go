package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/process"
)

// example runs the server in front of nodes. It returns the server's address
// and a function that stops it.
func example(t *testing.T, nodes string, more ...string) (address string, stop func() error) {
	t.Helper()
	out := &process.Output{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, append([]string{"-listen", "127.0.0.1:0", "-nodes", nodes}, more...), out) }()
	t.Cleanup(cancel)
	serving := regexp.MustCompile(`Serving on (http://\S+),`)
	process.Eventually(t, "the example serves", func() bool {
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
		case <-time.After(process.Timeout):
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

// TestWithStarterRules makes the requests that the example suggests.
func TestWithStarterRules(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program")
	}
	program := filepath.Join(t.TempDir(), "rlnode")
	if err := process.Build(program); err != nil {
		t.Fatal(err)
	}
	node := process.Start(t, program)
	address, stop := example(t, node.Data)

	if r, text := get(t, address, ""); r.StatusCode != 200 ||
		!strings.Contains(text, "per-ip has 99 of 100") || r.Header.Get("RateLimit") == "" {
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
	if r, _ := get(t, address, "k1"); r.Header.Get("X-RateLimit-Limit") != "100" ||
		!strings.Contains(r.Header.Get("RateLimit-Policy"), "per-api-key") {
		t.Errorf("with a key: have %v", r.Header)
	}
	for key, want := range map[string]string{client.Fingerprint("k1"): `"used":1,`, "k1": `"used":0,`} {
		if _, text := get(t, node.Admin+"/v1/usage?rule=per-api-key&key="+key, ""); !strings.Contains(text, want) {
			t.Errorf("usage of the key %s: have %s, want %s", key, text, want)
		}
	}
	if r, text := get(t, address+"/healthz", ""); r.StatusCode != 200 || text != "ok\n" ||
		r.Header.Get("RateLimit") != "" {
		t.Errorf("healthz: have %d %s %v", r.StatusCode, text, r.Header)
	}
	node.Stop(os.Kill)
	if r, text := get(t, address, ""); r.StatusCode != 200 || !strings.Contains(text, "error") {
		t.Errorf("without a node: have %d %s", r.StatusCode, text)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestClosed: with -closed nothing passes without a node, and the server stops
// when its context ends.
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
	if err := run(context.Background(), []string{"-nodes", "nonsense"}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "Nodes[0]") {
		t.Errorf("have %v", err)
	}
}
