package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/golden"
	"github.com/rlnode/rlnode/internal/process"
	"github.com/rlnode/rlnode/rules"
)

const clientRules = `version: 1
rules:
  - {name: login, key: [ip], limits: [{limit: 3, per: 8760h, algorithm: fixed-window}]}
  - {name: chat, key: [tenant, endpoint], limits: [{limit: 100, per: 8760h, algorithm: fixed-window, unit: tokens}]}
  - {name: all, match: {plan: x}, key: [], limits: [{limit: 50, per: 8760h, algorithm: fixed-window}]}
`

const clientTiers = `tiers:
  free: {limits: [{limit: 9, per: 1h}, {limit: 2, per: day, unit: tokens, tz: Asia/Tokyo}]}
  paid: {limits: [{limit: 99, per: 1h, algorithm: token-bucket, burst: 3}]}
`

// TestClientCommands types the commands in testdata/client.txt at one node, and
// compares what they print and their exit codes. After a change that is meant,
// go test -run TestClientCommands -args -update writes the file.
func TestClientCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{
		"client.yaml":  clientRules,
		"new.yaml":     strings.Replace(clientRules, "limit: 3", "limit: 4", 1),
		"bad.yaml":     clientRules + "  - {name: login, key: [ip, ip], limits: []}\n",
		"broken.yaml":  "rules: [}",
		"tiers.yaml":   clientRules + clientTiers,
		"other.json":   `{"format":"x"}`,
		"damaged.json": `{"format":"rlnode-backup-1","rules":"x","sha256":"00"}`,
		"renamed.json": fmt.Sprintf(`{"format":"rlnode-backup-1","versionx":1,"rules":"x","sha256":%q}`, checksum("x")),
		"undated.json": fmt.Sprintf(`{"format":"rlnode-backup-1","rules":"x","sha256":%q}`, checksum("x")),
		"backup.json":  "", "entries.json": "", "empty.yaml": " \n",
	}
	for name, text := range files {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	s := start(t, t.TempDir(), "--name", "n1", "--rules", filepath.Join(dir, "client.yaml"))
	golden.Transcript(t, "testdata/client.txt", func(command string) string {
		command, stdin, _ := strings.Cut(command, " < ")
		args := strings.Fields(command)
		for i, arg := range args {
			if _, ok := files[arg]; ok {
				args[i] = filepath.Join(dir, arg)
			}
		}

		code, stdout, stderr := tool(t, files[stdin], atPlanes(s, args)...)
		printed := stdout
		for line := range strings.Lines(stderr) {
			printed += "! " + line
		}
		if code != 0 {
			printed += fmt.Sprintf("exit %d\n", code)
		}
		return steady(strings.ReplaceAll(printed, dir+"/", ""))
	})

	for _, test := range []struct {
		args string
		code int
		want []string // parts of standard output or error
	}{
		{"load", 0, []string{"SOURCE", "db ", "0.5"}},
		{"members", 0, []string{"n1", "4096", "leader", "connected"}},
		{"members --json", 0, []string{`"members"`}},
		{"level", 0, []string{fmt.Sprint("feature level ", cluster.Newest), "n1", "2025c"}},
		{"level --raise", 0, []string{fmt.Sprint("the feature level is ", cluster.Newest)}},
		{fmt.Sprint("level --raise --to ", cluster.Newest+1), 1, []string{"level-refused"}},
		{"level --to 2", 2, []string{"--to"}},
		{"--version", 0, []string{"rlnode ", "go1."}},
		{"--version --json", 0, []string{`"platform"`}},
		{"bench --duration 100ms --connections 2 --keys 10", 0, []string{"checks/s", "p99.9", "0 errors"}},
		{"bench --duration 100ms --connections 2 --rule login --batch 50 --json", 0, []string{`"errors":0`, `"p50"`}},
		{"bench --duration 100ms --rate 200", 0, []string{"0 errors"}},
		{"bench --rule nosuch", 1, []string{"unknown-rule"}},
		{"bench --connections 0", 2, []string{"--connections"}},
		{"bench --addr 127.0.0.1:1", 1, []string{"can't reach"}},
	} {
		code, stdout, stderr := tool(t, "", atPlanes(s, strings.Fields(test.args))...)
		expect.Equal(t, code, test.code, "%s: %s%s: exit code", test.args, stdout, stderr)
		for _, want := range test.want {
			if !strings.Contains(stdout+stderr, want) {
				t.Errorf("%s: got %q, want it to have %q", test.args, stdout+stderr, want)
			}
		}
	}
	s.stop()
}

// steady returns what a command printed without what differs from run to run:
// times, addresses, and the widths of columns.
func steady(text string) string {
	for _, one := range varying {
		text = one.what.ReplaceAllString(text, one.to)
	}
	return text
}

var varying = []struct {
	what *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z`), "TIME"},
	{regexp.MustCompile(`[0-9a-f]{32}`), "ID"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:…"},
	{regexp.MustCompile(`(after |retry in )[\d.]+( s|[\d.dhms]*)`), "$1…"},
	{regexp.MustCompile(`("\w+_after_ms":|\bt=|Reset":"|partition"?[: ])\d+`), "$1…"},
	{regexp.MustCompile(`(?m)  [\d.]+(d|h|m|s|ms)[\d.dhms]*$`), "  …"},
	{regexp.MustCompile(` {3,}`), "  "},
	{regexp.MustCompile(`(?m) +$`), ""},
}

// atPlanes adds the addresses of the planes that a command asks, unless it has some.
func atPlanes(s *runningNode, args []string) []string {
	data, admin := []string{"--addr", s.data}, []string{"--admin", s.admin}
	has := func(flag string) bool { return slices.Contains(args, flag) }
	switch args[0] {
	case "--version":
	case "deny", "allow":
		if len(args) > 1 { // alone, it has no flags
			args = append(args, admin...)
		}
	case "check", "bench", "adjust", "reset":
		if !has("--addr") {
			args = append(args, data...)
		}
	case "slots":
		args = slices.Concat(args, data, admin)
	case "subject":
		if has("set") || has("unset") {
			args = append(args, admin...)
		} else {
			args = slices.Concat(args, data, admin)
		}
	default:
		if !has("--admin") {
			args = append(args, admin...)
		}
	}
	return args
}

// A version that deleted something has no text, which is not the same as an empty one.
func TestVersionWithoutText(t *testing.T) {
	var out strings.Builder
	expect.NoError(t,
		printVersions(&out,
			&admin.Versions{Versions: []rules.Version{{Number: 2, What: "rule login"},
				{Number: 1, What: "document", Size: 40}}}))
	if !regexp.MustCompile(`(?s)2 +0001\S+ +- .*1 +0001\S+ +40 `).MatchString(out.String()) {
		t.Errorf("got %s", &out)
	}
}

// TestBackupRoundTrip: restoring a backup yields the same document, byte for byte.
func TestBackupRoundTrip(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", "# a remark <&> é\n"+clientRules))
	_, before, _ := tool(t, "", "rules", "--admin", s.admin)
	code, saved, stderr := tool(t, "", "backup", "--admin", s.admin)
	var b backup
	if err := json.Unmarshal([]byte(saved), &b); code != 0 || err != nil || b.Version != 1 ||
		time.Since(b.TakenAt) > time.Hour {
		t.Fatalf("backup: %d, %v, %s%s", code, err, saved, stderr)
	}
	if code, _, stderr := tool(t, yearRules(3), "apply", "-f", "-", "--force", "--admin", s.admin); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := tool(t, saved, "restore", "-", "--admin", s.admin); code != 0 {
		t.Fatal(stderr)
	}
	if _, after, _ := tool(t, "", "rules", "--admin", s.admin); after != before {
		t.Errorf("after restore: have %q, want %q", after, before)
	}
}

// TestTokensAndTLS: over HTTPS, both planes require their token, and the tools send it.
func TestTokensAndTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	s := start(t, t.TempDir(), "--http-cert", cert, "--http-key", key, "--admin-token", "admin-secret",
		"--api-token-file", file(t, "token", "api-secret\n"), "--rules", file(t, "rules.yaml", yearRules(1000)))
	if !strings.HasPrefix(s.data, "https://") || !strings.HasPrefix(s.admin, "https://") {
		t.Fatalf("have %s and %s, want https", s.data, s.admin)
	}
	for _, test := range []struct {
		method, url, token, body string
		want                     int
	}{
		{"POST", s.data + "/v1/check", "", oneCheck, 401},
		{"POST", s.data + "/v1/check", "admin-secret", oneCheck, 200},
		{"POST", s.data + "/v1/check", "api-secret", oneCheck, 200},
		{"GET", s.data + "/readyz", "", "", 200},
		{"GET", s.admin + "/v1/rules", "", "", 401},
		{"GET", s.admin + "/v1/rules", "api-secret", "", 403},
		{"GET", s.admin + "/v1/rules", "admin-secret", "", 200},
		{"GET", s.admin + "/metrics", "", "", 200},
		{"PUT", s.admin + "/v1/rules", "", yearRules(5), 401},
		{"PUT", s.admin + "/v1/rules", "api-secret", yearRules(5), 403},
		{"PUT", s.admin + "/v1/rules", "admin-secret", yearRules(5), 200},
	} {
		if have, text, err := s.call(test.method, test.url, test.token, test.body); have != test.want {
			t.Errorf("%s %s with token %q: have %d (%s, %v), want %d", test.method, test.url,
				test.token, have, text, err, test.want)
		}
	}
	check := []string{"check", "--rule", "year", "--key", "a", "--addr", s.data}
	for _, test := range []struct {
		name string
		env  []string
		args []string
		code int
		want string
	}{
		{"unknown authority", []string{"RLNODE_API_TOKEN=api-secret"}, check, 2, "certificate"},
		{"no token", nil, append(check, "--ca", cert), 2, "401"},
		{"token by environment", []string{"RLNODE_API_TOKEN=api-secret", "RLNODE_CA=" + cert}, check, 0, "allowed"},
		{"token by flag", nil, append(check, "--ca", cert, "--token", "api-secret"), 0, "allowed"},
		{"apply without token", []string{"RLNODE_CA=" + cert},
			[]string{"apply", "-f", "-", "--admin", s.admin}, 1, "401"},
		{"apply", []string{"RLNODE_CA=" + cert, "RLNODE_ADMIN_TOKEN=admin-secret"},
			[]string{"apply", "-f", "-", "--admin", s.admin}, 0, "in force"},
		{"bench", []string{"RLNODE_CA=" + cert, "RLNODE_API_TOKEN=api-secret"},
			[]string{"bench", "--addr", s.data, "-d", "200ms", "--rule", "year"}, 0, " 0 errors"},
		{"no certificates in file", nil, append(check, "--ca", key), 2, "--ca"},
	} {
		code, stdout, stderr := toolEnv(t, test.env, yearRules(9), test.args...)
		if code != test.code || !strings.Contains(stdout+stderr, test.want) {
			t.Errorf("%s: have %d %s%s, want %d %q", test.name, code, stdout, stderr, test.code, test.want)
		}
	}
	s.stop()
}

// TestTopWatch: top prints repeatedly until it is interrupted, and ends without an error.
func TestTopWatch(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		fmt.Fprint(w, `{"subjects":[{"rule":"r","key":["a","\u001b[31m"],"refused":2,"checks":3}]}`)
	}))
	defer node.Close()
	var connections atomic.Int64
	node.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	out := &process.Output{}
	cmd := runTool(t, out, "top", "--watch", "--interval", "100ms", "--admin", node.URL)
	for range 3 {
		select {
		case <-asked:
		case <-time.After(process.Timeout):
			t.Fatal("the node is not asked again")
		}
	}
	expect.NoError(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("have %v, want no error", err)
	}
	if text := out.String(); !strings.Contains(text, `r: a, "\x1b[31m"`) || strings.Contains(text, "\x1b") {
		t.Errorf("have %q, want the key quoted", text)
	}
	expect.Equal(t, connections.Load(), 1, "connections")
}

// A redirect is an error: a write that follows one would become a read, and succeed.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.RedirectHandler("/elsewhere", http.StatusMovedPermanently))
	defer proxy.Close()
	for _, command := range []string{"level --raise", "load database 0.9", "usage --csv", "backup"} {
		code, stdout, stderr := tool(t, "", append(strings.Fields(command), "--admin", proxy.URL)...)
		if code == 0 || !strings.Contains(stderr, `redirects to \"/elsewhere\"`) && !strings.Contains(stderr, `redirects to "/elsewhere"`) {
			t.Errorf("%s: got %d %s%s", command, code, stdout, stderr)
		}
	}
}

// The answer to usage may take long, but its beginning may not.
func TestUsageWaitsAsLongAsToldForAnAnswer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer silent.Close()
	code, stdout, stderr := tool(t, "", "usage", "--csv", "--timeout", "200ms", "--admin", silent.Addr().String())
	if code == 0 || !strings.Contains(stderr, "within 200ms") {
		t.Errorf("got %d %s%s", code, stdout, stderr)
	}
}

// A command that waits for its input can be interrupted.
func TestInterruptedInput(t *testing.T) {
	t.Parallel()
	out := &process.Output{}
	cmd := exec.Command(binary, "validate", "-")
	cmd.Env, cmd.Stdout, cmd.Stderr = cleanEnv(), out, out
	input, err := cmd.StdinPipe()
	expect.NoError(t, err)
	defer input.Close()
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })

	// Once a first piece is read, the command handles signals.
	_, err = input.Write(bytes.Repeat([]byte("# a comment\n"), 20_000))
	expect.NoError(t, err)
	expect.NoError(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "<stdin>") {
		t.Errorf("got %v, %s", err, out.String())
	}
}

// Any name but a subject's two keys may be an attribute of an entry.
func TestReadRow(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		`{"attribute":"user","value":"ann","tier":"gold"}`: "user=ann tier=gold",
		`{"value":"5"}`:                  "value=5",
		`{"ip":"192.0.2.1","value":"5"}`: "ip=192.0.2.1 value=5",
		`{"attribute":"5"}`:              "attribute=5",
	} {
		expect.Equal(t, readRow("deny", json.RawMessage(entry)).text, want, "%s", entry)
	}
}

// TestStaleAnswersAreSaid: a node that does not reach the leader answers what
// it knows. Each command says so, and goes on.
func TestStaleAnswersAreSaid(t *testing.T) {
	t.Parallel()
	for _, stale := range []string{"", "true"} {
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if stale != "" {
				w.Header().Set("Rlnode-Stale", stale)
			}
			w.Header().Set("ETag", `"7"`)
			fmt.Fprint(w, map[string]string{
				"/v1/rules": "version: 1\n", "/v1/lists/deny": "[]",
				"/v1/entries": `{"entries":[]}`, "/v1/rules/versions": `{"versions":[]}`,
				"/v1/rules/diff": `{"from":7,"summary":[],"changes":[]}`, "/v1/entries/log": `{"changes":[]}`,
			}[r.URL.Path])
		}))
		for _, command := range []string{"rules", "rules --json", "versions", "backup", "entries",
			"deny list", "entries log", "diff -", "apply -f -"} {
			code, stdout, stderr := tool(t, "version: 1\n", append(strings.Fields(command), "--admin", node.URL)...)
			if code != 0 || strings.Contains(stderr, "may lack the latest changes") != (stale != "") {
				t.Errorf("%s, stale %q: got exit code %d, %s%s", command, stale, code, stdout, stderr)
			}
		}
		node.Close()
	}
}

// TestOddNodes: if something other than a healthy node answers, the tools say
// in one line what is wrong.
func TestOddNodes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		answer  func(w http.ResponseWriter)
		want    string
		command []string
	}{
		{"not rlnode", func(w http.ResponseWriter) { w.WriteHeader(404); fmt.Fprint(w, "<html>") },
			"is this a node of rlnode", nil},
		{"no JSON", func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }, "read the node's answer", nil},
		{"problem", func(w http.ResponseWriter) {
			w.WriteHeader(503)
			fmt.Fprint(w, `{"title":"Unavailable","code":"not-ready","detail":"loading"}`)
		}, "503 not-ready: loading", nil},
		{"hangs up", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "can't reach", nil},
		{"never answers", nil, "no answer", []string{"check", "--rule", "a", "--key", "b", "--timeout", "100ms"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			over := make(chan struct{})
			node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if test.answer == nil {
					<-over
					return
				}
				test.answer(w)
			}))
			defer node.Close()
			defer close(over)
			command := test.command
			if command == nil {
				command = []string{"check", "--rule", "a", "--key", "b"}
			}
			code, stdout, stderr := tool(t, "", append(command, "--addr", node.URL)...)
			if code != 2 || !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("have %d %s%q, want 2 and %q", code, stdout, stderr, test.want)
			}
		})
	}
}
