package main

import (
	"cmp"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// alarmingText matches what must not be in the log of a clean start and stop:
// Go values, warnings, internals.
var alarmingText = regexp.MustCompile(`[{}]|level=(WARN|ERROR)|0x|authority|election|leadership|leader's|raft|memberlist|entry node|primary`)

// logLines returns the log lines in a node's output, and the rest of it.
func logLines(t *testing.T, output, name string) (log []string, beside string) {
	t.Helper()
	for line := range strings.Lines(output) {
		if !strings.HasPrefix(line, "time=") {
			beside += line
			continue
		}
		log = append(log, line)
		if !strings.Contains(line, " self="+name) {
			t.Errorf("the line does not name the node: %s", line)
		}
		expect.Equal(t, alarmingText.FindString(line), "", "alarms a newcomer: %s", line)
	}
	return log, beside
}

// TestFirstMinutes: a node's first start logs little, its addresses, and a
// command that works as printed.
func TestFirstMinutes(t *testing.T) {
	t.Parallel()
	token := file(t, "token", "secret")
	dir := t.TempDir()
	for _, test := range []struct {
		name   string
		env    []string
		args   []string
		option string // of curl
	}{
		{"first", nil, nil, "-s "},
		{"again", nil, nil, "-s "},
		{"all addresses", nil,
			[]string{"--data-dir", t.TempDir(), "--bind", "0.0.0.0", "--insecure-cluster",
				"--gossip-port", "0", "--peer-port", "0", "--wan-port", "0"},
			"-s "},
		{"token in a file", nil, []string{"--data-dir", t.TempDir(), "--api-token-file", token},
			`-s -H "Authorization: Bearer $(cat '` + token + `')" `},
		{"token in the environment", []string{"RLNODE_ADMIN_TOKEN=secret"},
			[]string{"--data-dir", t.TempDir()}, `-s -H "Authorization: Bearer $RLNODE_ADMIN_TOKEN" `},
	} {
		s := launch(t, dir, test.env, append([]string{"--name", "n1"}, test.args...)...)
		s.awaitReady()
		var beside string
		process.Eventually(t, test.name+": a command to try", func() bool {
			_, beside, _ = strings.Cut(s.log.String(), "try it")
			return strings.Contains(beside, "\n\n")
		})
		command := strings.TrimSpace(beside)
		if !strings.HasPrefix(command, "curl "+test.option+"http://127.0.0.1:") {
			t.Errorf("%s: have %s", test.name, command)
		}
		cmd := exec.Command("sh", "-c", command)
		cmd.Env = cleanEnv(test.env...)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), `"allowed":true`) {
			t.Errorf("%s: %s: have %v, %s", test.name, command, err, out)
		}
		dashboard := regexp.MustCompile(`dashboard  (\S+)`).FindStringSubmatch(s.log.String())
		if dashboard == nil {
			t.Fatalf("%s: no dashboard: %s", test.name, s.log)
		}
		if status, text, err := s.call("GET", dashboard[1], "", ""); status != 200 ||
			!strings.Contains(text, "<!doctype html>") {
			t.Errorf("%s: the dashboard: have %d, %v", test.name, status, err)
		}
		s.stop()
		if test.args == nil {
			log, _ := logLines(t, s.log.String(), "n1")
			if most := 8; len(log) > most {
				t.Errorf("%s: have %d lines, want %d at most", test.name, len(log), most)
			}
		}
	}
}

// TestNodesWaitForOthers: three nodes, started one after another, report which
// nodes they wait for, without alarm. (Nodes that stop at once on a slow machine
// may miss each other.)
func TestNodesWaitForOthers(t *testing.T) {
	t.Parallel()
	f := newEmptyFleet(t)
	for i := range 3 {
		m := f.newNode(i+1, 3)
		f.nodes = append(f.nodes, m)
		m.startProcess()
		first := f.nodes[0]
		want := [...]string{
			fmt.Sprintf("waiting for %s.2, %s.3 (1 of 3 found)", f.net, f.net),
			fmt.Sprintf("waiting for %s.3 (2 of 3 found)", f.net), "msg=ready"}[i]
		process.Eventually(t, want, func() bool { return strings.Contains(first.log.String(), want) })
		if i < 2 {
			process.Eventually(t, "/readyz says so", func() bool {
				status, text, _ := first.call("GET", first.data+"/readyz", "", "")
				return status == 503 && strings.Contains(text, want)
			})
		}
	}
	for _, m := range f.nodes {
		m.waitReady()
	}
	for _, m := range f.nodes {
		m.signal(syscall.SIGINT)
	}
	for _, m := range f.nodes {
		expect.Equal(t, m.awaitExit(), 0, "%s: exit code", m.name)
		untilStop, _, _ := strings.Cut(m.log.String(), "msg=stopping")
		whole := untilStop[:strings.LastIndexByte(untilStop, '\n')+1]
		logLines(t, whole, m.name)
	}
}

// TestNodesThatExpectOtherNumbers: a node names the one whose --bootstrap-expect differs.
func TestNodesThatExpectOtherNumbers(t *testing.T) {
	t.Parallel()
	f := newEmptyFleet(t)
	a, b := f.newNode(1, 3), f.newNode(2, 3)
	b.args = append(b.args, "--bootstrap-expect", "5")
	a.startProcess()
	b.startProcess()
	want := fmt.Sprintf("waiting for %s.3 (1 of 3 found; n2 has --bootstrap-expect 5)", f.net)
	process.Eventually(t, want, func() bool { return strings.Contains(a.log.String(), want) })
}

// TestErrorsNameTheirOrigin: an error begins with the origin of the mistake:
// the flag, the variable, or the line in the file.
func TestErrorsNameTheirOrigin(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer busy.Close()
	_, port, _ := net.SplitHostPort(busy.Addr().String())
	used := start(t, t.TempDir())
	folder := filepath.Dir(file(t, "x", ""))
	for _, test := range []struct {
		env    string
		config string
		args   []string
		want   string // the beginning, after the file's name
		not    string
	}{
		{config: "name: x\nhtpp-port: 9", want: `:2:1: unknown setting "htpp-port"`, not: "--name"},
		{config: "name: x\nhttp-port: [9", want: ":2:14: ", not: "--name"},
		{config: "name: x\nhttp-port: nine", want: ":2: --http-port: "},
		{config: "\nlog-level: loud", want: ":2: --log-level must be one of"},
		{config: "bind: here\nhttp-port: 99999\nbootstrap-expect: 3",
			want: `:1: --bind: "here" is not an IP address` + "\n", not: "ports between nodes"},
		{env: "RLNODE_HTTP_PORT=99999", want: "RLNODE_HTTP_PORT: --http-port: 99999 is not in"},
		{args: []string{"--config", "/nowhere.yaml"}, want: "--config: open /nowhere.yaml", not: "--name"},
		{args: []string{"--http-port", port}, want: "--http-port: port " + port + " is in use"},
		{config: "admin-port: " + port, args: []string{"--http-port", "0"},
			want: ":1: --admin-port: port " + port + " is in use"},
		{args: []string{"--http-port", "0", "--admin-port", "0", "--gossip-port", port,
			"--peer-port", "0", "--join", "127.0.0.2"}, want: "--gossip-port: port " + port +
			" is in use"},
		{args: []string{"--http-port", "0", "--admin-port", "0", "--peer-port", port, "--join",
			"127.0.0.2"}, want: "--peer-port: port " + port + " is in use"},
		{args: []string{"--http-port", "0", "--bind", "192.0.2.1", "--admin-token-file",
			file(t, "token", "x")}, want: "--bind: this machine has no address 192.0.2.1"},
		{args: []string{"--data-dir", used.cmd.Args[3]}, want: "--data-dir: "},
	} {
		args, want := []string{"serve", "--data-dir", folder}, "rlnode: "+test.want
		if test.config != "" {
			name := file(t, "config.yaml", test.config)
			args, want = append(args, "--config", name), "rlnode: "+name+test.want
		}
		code, _, stderr := toolEnv(t, []string{cmp.Or(test.env, "X=")}, "", append(args, test.args...)...)
		if code == 0 || !strings.HasPrefix(stderr, want) || test.not != "" && strings.Contains(stderr, test.not) {
			t.Errorf("%q %s %v: have %d, %q, want %q", test.config, test.env, test.args, code, stderr, want)
		}
	}
}

// Two or four voters found no cluster: they survive no more failures than one
// less. A node that has data only warns.
func TestAnEvenNumberFoundsNothing(t *testing.T) {
	t.Parallel()
	for _, n := range []string{"2", "4"} {
		code, _, stderr := tool(t, "", "serve", "--data-dir", filepath.Join(t.TempDir(), "new"),
			"--bootstrap-expect", n, "--join", "127.0.0.2")
		if code != exitUsage ||
			!strings.Contains(stderr, "--bootstrap-expect: a cluster is founded by 1, 3 or 5 voters") {
			t.Errorf("%s voters: got %d %s", n, code, stderr)
		}
	}

	dir := t.TempDir()
	start(t, dir).stop()
	s := launch(t, dir, nil, "--bootstrap-expect", "2", "--join", "127.0.0.2", "--gossip-port", "0", "--peer-port", "0")
	process.Eventually(t, "a warning", func() bool {
		return strings.Contains(s.log.String(), `level=WARN msg="new clusters are founded by 1, 3 or 5 voters`)
	})
	s.signal(syscall.SIGTERM)
	s.awaitExit()
}

// TestTokensAreHintedAt: errors distinguish a missing token from a wrong one,
// and name the flags and variables that set it.
func TestTokensAreHintedAt(t *testing.T) {
	t.Parallel()
	s := launch(t, t.TempDir(), []string{"RLNODE_ADMIN_TOKEN=right"})
	s.awaitReady()
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"check", "--addr", s.data, "--attr", "ip=1"},
			[]string{"send a token", "--token-file", "RLNODE_API_TOKEN"}},
		{[]string{"members", "--admin", s.admin}, []string{"send a token", "--token-file", "RLNODE_ADMIN_TOKEN"}},
		{[]string{"check", "--addr", s.data, "--attr", "ip=1", "--token", "wrong"},
			[]string{"does not know the token", "RLNODE_API_TOKEN"}},
		{[]string{"members", "--admin", s.admin, "--token", "wrong"},
			[]string{"does not know the token", "RLNODE_ADMIN_TOKEN_FILE"}},
		{[]string{"members", "--admin", s.data, "--token", "right"},
			[]string{"there is nothing at", "right plane for --admin?"}},
	} {
		if code, _, stderr := tool(t, "", test.args...); code == 0 || !containsAll(stderr, test.want...) {
			t.Errorf("%v: have %d, %s, want %q", test.args, code, stderr, test.want)
		}
	}
}

func containsAll(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// TestCheckShowsItsUnit: a check with a cost in tokens shows the tokens that
// are left, even if another limit is tighter.
func TestCheckShowsItsUnit(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", `version: 1
rules:
  - {name: key, key: [k], limits: [{limit: 10, per: 1h, algorithm: fixed-window}, {limit: 9000, per: 1h, algorithm: fixed-window, unit: tokens}]}
`))
	ask := func(args ...string) string {
		_, stdout, stderr := tool(t, "", append([]string{"check", "--addr", s.data, "--attr", "k=1"}, args...)...)
		return stdout + stderr
	}
	if have := ask("--unit", "tokens", "--cost", "9"); !containsAll(have, "9 of 10 requests left",
		"8991 of 9000 tokens left") {
		t.Errorf("have %s", have)
	}
	if have := ask(); strings.Contains(have, "tokens") {
		t.Errorf("without --unit: have %s", have)
	}
	// The metric of unmatched checks exists before the first one.
	metric := func() string {
		_, text, _ := s.call("GET", s.admin+"/metrics", "", "")
		return regexp.MustCompile(`(?m)^rlnode_unmatched_total .*$`).FindString(text)
	}
	expect.Equal(t, metric(), "rlnode_unmatched_total 0", "metric()")
	s.check(`{"attributes": {"other": "1"}}`)
	expect.Equal(t, metric(), "rlnode_unmatched_total 1", "metric()")
}
