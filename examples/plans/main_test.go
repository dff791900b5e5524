package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/process"
)

// example runs the server in front of a node, and returns its address.
func example(t *testing.T, node string) (address string) {
	t.Helper()
	out := &process.Output{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"-listen", "127.0.0.1:0", "-nodes", node}, out) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(process.Timeout):
			t.Errorf("the server does not stop:\n%s", out)
		}
	})
	serving := regexp.MustCompile(`Serving on (http://\S+),`)
	process.Eventually(t, "the example serves", func() bool {
		m := serving.FindStringSubmatch(out.String())
		if m != nil {
			address = m[1]
		}
		return m != nil
	})
	return address
}

func get(t *testing.T, address, user string) (status int, text string, header http.Header) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	if user != "" {
		r.SetBasicAuth(user, "")
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body), response.Header
}

// TestPlans makes the requests that the example suggests, and then stops the node.
func TestPlans(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program")
	}
	program := filepath.Join(t.TempDir(), "rlnode")
	if err := process.Build(program); err != nil {
		t.Fatal(err)
	}
	node := process.Start(t, program)
	address := example(t, node.Data)

	for i, want := range []int{200, 200, 429} {
		status, text, header := get(t, address+"/report", "ada")
		if status != want || !strings.Contains(header.Get("RateLimit-Policy"), `"reports";q=2;qu="reports"`) {
			t.Errorf("report %d: have %d %s %v", i, status, text, header)
		}
	}
	for i := range 4 {
		want := 200
		if i == 3 {
			want = 429
		}
		status, text, header := get(t, address, "ada")
		if status != want || i == 3 && header.Get("Retry-After") == "" {
			t.Errorf("call %d: have %d %s %v", i, status, text, header)
		}
	}
	if status, text, _ := get(t, address, "grace"); status != 200 || !strings.Contains(text, "1 of 100 requests") {
		t.Errorf("grace: have %d %s", status, text)
	}
	if status, _, _ := get(t, address, "eve"); status != 401 {
		t.Errorf("eve: have %d", status)
	}
	// grace's limits have the same windows, so only with ada's own does a node know
	// what is left to her.
	printed := regexp.MustCompile(`(?m)^  rlnode (subject .*?)$`).FindStringSubmatch(welcome)
	if printed == nil {
		t.Fatal("the example prints no command")
	}
	left, err := exec.Command(program, append(strings.Fields(printed[1]), "--addr", node.Data)...).CombinedOutput()
	if want := regexp.MustCompile(`5 +5 +0 [^\n]*requests[^\n]*\n[^\n]* 2 +2 +0 [^\n]*reports`); err != nil || !want.Match(left) {
		t.Errorf("%s: have %v\n%s", printed[1], err, left)
	}
	node.Stop(os.Kill)
	for i := range 6 {
		want := 200
		if i == 5 {
			want = 429
		}
		if status, text, _ := get(t, address, "ada"); status != want || i < 5 &&
			!strings.Contains(text, fmt.Sprintf("%d of 5 requests are used (decided by local)", i+1)) {
			t.Errorf("without a node, call %d: have %d %s", i, status, text)
		}
	}
}
