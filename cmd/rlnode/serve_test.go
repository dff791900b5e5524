package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/client"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// TestG7_CleanStopForgetsNothing: counters and the refusal itself survive SIGTERM and a restart.
func TestG7_CleanStopForgetsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rules := file(t, "rules.yaml", yearRules(5))
	s := start(t, dir, "--rules", rules)
	for i := range 5 {
		if status := s.check(oneCheck); status != http.StatusOK {
			t.Fatalf("check %d: have %d, want 200", i+1, status)
		}
	}
	if status := s.check(oneCheck); status != http.StatusTooManyRequests {
		t.Fatalf("check 6: have %d, want 429", status)
	}
	s.stop()

	s = start(t, dir)
	expect.Equal(t, s.used("year", "198.51.100.7"), 5, "used after the restart")
	if status := s.check(oneCheck); status != http.StatusTooManyRequests {
		t.Errorf("after the restart: have %d, want 429", status)
	}
	s.stop()
}

// TestG7_StopUnderTraffic: everything admitted until the connections closed is
// there after a restart.
func TestG7_StopUnderTraffic(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir, "--rules", file(t, "rules.yaml", yearRules(100_000_000)))
	var mu sync.Mutex // guards admitted
	admitted := int64(0)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for {
				status, _, err := s.call("POST", s.data+"/v1/check", "", oneCheck)
				if err != nil {
					return
				}
				if status != http.StatusOK {
					t.Errorf("a check while stopping: have %d, want 200", status)
					return
				}
				mu.Lock()
				admitted++
				mu.Unlock()
				time.Sleep(time.Millisecond) // more would only take the processor from other tests
			}
		})
	}
	process.Eventually(t, "traffic flows", func() bool { mu.Lock(); defer mu.Unlock(); return admitted > 500 })
	s.stop()
	group.Wait()

	s = start(t, dir)
	// Each connection may have lost one answer, but not the hit.
	if used := s.used("year", "198.51.100.7"); used < admitted || used > admitted+4 {
		t.Errorf("used after the restart: have %d, want %d to %d", used, admitted, admitted+4)
	}
	s.stop()
}

// TestDamagedCounters: a node with a damaged counters.db starts and answers.
func TestDamagedCounters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rules := file(t, "rules.yaml", yearRules(5))
	s := start(t, dir, "--rules", rules)
	for range 6 {
		s.check(oneCheck)
	}
	s.stop()
	path := filepath.Join(dir, "counters.db")
	whole, err := os.ReadFile(path)
	expect.NoError(t, err)
	scribbled := append([]byte(nil), whole...)
	for i := range scribbled {
		scribbled[i] ^= byte(i*7 + 1)
	}
	for name, content := range map[string][]byte{"scribbled": scribbled,
		"cut": whole[:len(whole)/2], "empty": {}, "text": []byte("hello\n")} {
		expect.NoError(t, os.WriteFile(path, content, 0o600))
		s := start(t, dir)
		if status := s.check(oneCheck); status != http.StatusOK {
			t.Errorf("%s: have %d, want 200 with fresh counters", name, status)
		}
		s.kill()
	}
	if aside, _ := filepath.Glob(path + ".corrupt-*"); len(aside) == 0 {
		t.Error("no damaged file was set aside")
	}
}

func TestSecondProcessRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, dir)
	second := launch(t, dir, nil)
	expect.Equal(t, second.awaitExit(), 1, "exit code")
	if log := second.log.String(); !strings.Contains(log, dir) || !strings.Contains(log, "another process") {
		t.Errorf("the error does not say what is wrong: %s", log)
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	defer busy.Close()
	_, port, _ := net.SplitHostPort(busy.Addr().String())
	junk := file(t, "junk.pem", "junk")
	bad := file(t, "bad.yaml",
		"version: 1\nrules:\n  - {name: a, key: [ip], limits: [{limit: -1, per: 1m}]}\n  - {name: a, colour: red}\n")
	for _, test := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"data port in use", []string{"--http-port", port}, 1, []string{port, "in use"}},
		{"admin port in use", []string{"--admin-port", port}, 1, []string{port, "in use"}},
		{"bad certificate", []string{"--http-cert", junk, "--http-key", junk}, 1, []string{"junk.pem"}},
		{"no certificate", []string{"--http-cert", "/nowhere.pem", "--http-key", junk}, 1, []string{"/nowhere.pem"}},
		{"half a certificate", []string{"--http-cert", junk}, 2, []string{"--http-key"}},
		{"rules with mistakes", []string{"--rules", bad}, 1, []string{"bad.yaml:3:", "bad.yaml:4:", "colour"}},
		{"no rules file", []string{"--rules", "/nowhere.yaml"}, 1, []string{"/nowhere.yaml"}},
		{"one wrong setting of two", []string{"--usage-subjects", "0"}, 2,
			[]string{"rlnode: --usage-subjects: it must not be 0"}},
		{"several wrong settings",
			[]string{"--admin-bind", "here", "--max-counters", "0", "--api-token", "a b"}, 2,
			[]string{"--admin-bind", "--max-counters", "--api-token"}},
		{"no such address", []string{"--bind", "203.0.113.77"}, 1, []string{"203.0.113.77"}},
		{"unknown flag", []string{"--ruels", "x"}, 2, []string{"--rules"}},
		{"empty token file", []string{"--admin-token-file", file(t, "token", "\n")}, 2, []string{"--admin-token-file"}},
		{"data directory is a file", []string{"--data-dir", junk}, 1, []string{"junk.pem"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := launch(t, t.TempDir(), nil, test.args...)
			if code := s.awaitExit(); code != test.code {
				t.Errorf("exit code: have %d, want %d", code, test.code)
			}
			log := s.log.String()
			for _, want := range test.want {
				if !strings.Contains(log, want) {
					t.Errorf("have %q, want it to name %q", log, want)
				}
			}
			if strings.Contains(log, "goroutine ") || strings.Contains(log, "msg=ready") {
				t.Errorf("a crash, or ready: %s", log)
			}
		})
	}
}

// TestSecondSignal: a second signal ends a stopping node at once, and what it has saved is intact.
func TestSecondSignal(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir, "--rules", file(t, "rules.yaml", yearRules(5)))
	s.check(oneCheck)
	s.signal(syscall.SIGTERM)
	process.Eventually(t, "the node begins to stop",
		func() bool { return strings.Contains(s.log.String(), "msg=stopping") })
	began := time.Now()
	s.signal(syscall.SIGINT)
	if code := s.awaitExit(); code == 0 {
		t.Error("exit code after the second signal: have 0")
	}
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("the second signal took %v", took)
	}
	start(t, dir) // and nothing is broken
}

// TestSignalWhileStarting: a signal ends the node at any point of its start,
// and the next start succeeds.
func TestSignalWhileStarting(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{"", "node.json", "raft.db", "counters.db"} {
		dir := t.TempDir()
		s := launch(t, dir, nil)
		process.Eventually(t, "the start gets to "+stage, func() bool {
			_, err := os.Stat(filepath.Join(dir, stage))
			return err == nil
		})
		s.signal(syscall.SIGTERM)
		s.awaitExit()
		start(t, dir)
	}
}

// TestDrain: after SIGTERM the node is not ready, but still serves open connections.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", yearRules(1000)))
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.data, "http://"))
	expect.NoError(t, err)
	defer conn.Close()
	reader := bufio.NewReader(conn)
	ask := func(request string) int {
		conn.SetDeadline(time.Now().Add(process.Timeout))
		if _, err := conn.Write([]byte(request)); err != nil {
			return 0
		}
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			return 0
		}
		if _, err := reader.Discard(int(resp.ContentLength)); err != nil {
			return 0
		}
		return resp.StatusCode
	}
	check := fmt.Sprintf("POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(oneCheck), oneCheck)
	const ready = "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
	if a, b := ask(check), ask(ready); a != 200 || b != 200 {
		t.Fatalf("before the signal: have %d and %d, want 200", a, b)
	}
	s.signal(syscall.SIGTERM)
	process.Eventually(t, "the node begins to stop",
		func() bool { return strings.Contains(s.log.String(), "msg=stopping") })
	if a, b := ask(ready), ask(check); a != 503 || b != 200 {
		t.Errorf("after the signal: have readiness %d and a check %d, want 503 and 200", a, b)
	}
	began := time.Now()
	expect.Equal(t, s.awaitExit(), 0, "exit code")
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("stopping took %v", took)
	}
}

// TestStopDespiteSlowClient: a request that never ends does not keep the node from stopping.
func TestStopDespiteSlowClient(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes seconds")
	}
	s := start(t, t.TempDir())
	for _, plane := range []string{s.data, s.admin} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(plane, "http://"))
		expect.NoError(t, err)
		defer conn.Close()
		fmt.Fprint(conn, "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	}
	began := time.Now()
	s.signal(syscall.SIGTERM)
	s.awaitExit()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("stopping took %v, more than 10 s", took)
	}
}

// TestRulesSurvive: rules written through the API are there after a kill, and
// --rules is then ignored.
func TestRulesSurvive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	status, text, err := s.call("PUT", s.admin+"/v1/rules", "", yearRules(3))
	if err != nil || status != 200 || !strings.Contains(text, `"version":2`) {
		t.Fatalf("write rules: %d %s, %v", status, text, err)
	}
	s.kill()
	s = start(t, dir, "--rules", file(t, "other.yaml", yearRules(77)))
	if log := s.log.String(); !strings.Contains(log, "is ignored") {
		t.Errorf("no log line says that --rules is ignored: %s", log)
	}
	_, text, err = s.call("POST", s.data+"/v1/check", "", oneCheck)
	if err != nil || !strings.Contains(text, `"limit":3`) || !strings.Contains(text, `"rules_version":2`) {
		t.Errorf("after the restart: %s, %v", text, err)
	}
}

// TestReloadUnderLoad writes rules while checks run: none fails, and each is
// decided by one whole version.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", yearRules(1_000_001)))
	done := make(chan struct{})
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			last := int64(0)
			for {
				select {
				case <-done:
					return
				default:
				}
				var a client.Decision
				status, text, err := s.call("POST", s.data+"/v1/check", "", oneCheck)
				if err == nil {
					err = json.Unmarshal([]byte(text), &a)
				}
				if err != nil || status != 200 || a.Limit != 1_000_000+a.RulesVersion || a.RulesVersion < last {
					t.Errorf("a check: %d %s, %v; the version before was %d", status, text, err, last)
					return
				}
				last = a.RulesVersion
				time.Sleep(time.Millisecond) // more would only take the processor from other tests
			}
		})
	}
	for v := 2; v <= 25; v++ {
		status, text, err := s.call("PUT", s.admin+"/v1/rules", "", yearRules(1_000_000+v))
		if want := fmt.Sprintf(`"version":%d`, v); err != nil || status != 200 || !strings.Contains(text, want) {
			t.Errorf("write version %d: %d %s, %v", v, status, text, err)
		}
	}
	close(done)
	group.Wait()
}
