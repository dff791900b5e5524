package main

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

var longToo = flag.Bool("long", false,
	"run the tests that take long or tolerate little beside them, too; make long does")

// long skips a test unless those are wanted.
func long(t *testing.T) {
	t.Helper()
	if !strings.HasSuffix(t.Name(), "_long") {
		t.Fatal("make long runs only tests whose names end with _long")
	}
	if !*longToo {
		t.Skip("takes long, or tolerates little beside it: see make long")
	}
}

var binary string // path of the program, built once for all tests

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rlnode-test-*")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "rlnode")
	var flags []string
	if raceDetector {
		flags = append(flags, "-race")
	}
	if err := process.Build(binary, flags...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, e := range os.Environ() { // settings of commands that tests run in this process
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "RLNODE_") {
			os.Unsetenv(name)
		}
	}
	flag.Parse()
	if !isSet("test.parallel") {
		_ = flag.Set("test.parallel", "10") // the tests mostly wait for processes
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func isSet(name string) (set bool) {
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// cleanEnv returns the environment without any setting of rlnode.
func cleanEnv(more ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "RLNODE_") {
			env = append(env, e)
		}
	}
	return append(env, more...)
}

// runningNode is a running node.
type runningNode struct {
	t           *testing.T
	cmd         *exec.Cmd
	log         *process.Output
	data, admin string        // URLs
	token       string        // that get sends; empty if none is needed
	exited      chan struct{} // closed when it ends
	client      *http.Client
	program     string // empty for the one that all tests share
}

// launch starts a node on free ports of 127.0.0.1 without waiting for it.
func launch(t *testing.T, dir string, env []string, args ...string) *runningNode {
	t.Helper()
	return newRunningNode(t).launch(env,
		append([]string{"serve", "--data-dir", dir, "--http-port", "0", "--admin-port", "0"}, args...))
}

// launchBare starts the program with only these arguments.
func launchBare(t *testing.T, args ...string) *runningNode {
	t.Helper()
	return newRunningNode(t).launch(nil, args)
}

func newRunningNode(t *testing.T) *runningNode {
	s := &runningNode{t: t, program: *otherProgram, log: &process.Output{}, exited: make(chan struct{})}
	s.client = &http.Client{Timeout: process.Timeout, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 32,
	}}
	return s
}

// launch starts the process.
func (s *runningNode) launch(env, args []string) *runningNode {
	t := s.t
	s.cmd = exec.Command(cmp.Or(s.program, binary), args...)
	s.cmd.Env = cleanEnv(env...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	expect.NoError(t, s.cmd.Start())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer close(s.exited)
		s.cmd.Wait() // callers read the state themselves
	})
	t.Cleanup(func() {
		s.cmd.Process.Kill() // if it still runs
		waiting.Wait()
		s.client.CloseIdleConnections()
		if t.Failed() {
			t.Logf("log of %v:\n%s", s.cmd.Args, s.log)
		}
	})
	return s
}

// start starts a node and waits until it is ready.
func start(t *testing.T, dir string, args ...string) *runningNode {
	t.Helper()
	s := launch(t, dir, nil, args...)
	s.awaitReady()
	return s
}

func (s *runningNode) awaitReady() {
	s.t.Helper()
	process.Eventually(s.t, "the node is ready", func() bool {
		select {
		case <-s.exited:
			s.t.Fatalf("the node ended: %v\n%s", s.cmd.ProcessState, s.log)
		default:
		}
		var ok bool
		s.data, s.admin, ok = s.log.Ready()
		return ok
	})
}

// awaitExit waits for the process and returns its exit code; −1 after a signal.
func (s *runningNode) awaitExit() int {
	s.t.Helper()
	select {
	case <-s.exited:
	case <-time.After(process.Timeout):
		s.t.Fatal("the node has not ended in time")
	}
	return s.cmd.ProcessState.ExitCode()
}

// stop ends the node gracefully.
func (s *runningNode) stop() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	expect.Equal(s.t, s.awaitExit(), 0, "exit code after SIGTERM")
}

// kill ends the node without a chance to save anything.
func (s *runningNode) kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	s.awaitExit()
}

func (s *runningNode) signal(sig syscall.Signal) {
	s.t.Helper()
	expect.NoError(s.t, s.cmd.Process.Signal(sig))
}

// call makes a request and returns the status and the body.
func (s *runningNode) call(method, url, token, body string) (int, string, error) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// get reads the admin plane's answer at a path into v, and returns its text.
func (s *runningNode) get(path string, v any) (text string, err error) {
	status, text, err := s.call("GET", s.admin+path, s.token, "")
	if err == nil && status != 200 {
		err = fmt.Errorf("status %d", status)
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), v)
	}
	return text, err
}

// check makes a check and returns the status.
func (s *runningNode) check(body string) int {
	s.t.Helper()
	status, _, err := s.call("POST", s.data+"/v1/check", "", body)
	expect.NoError(s.t, err)
	return status
}

// used returns how much a subject has used of the first limit of a rule.
func (s *runningNode) used(rule, key string) int64 {
	s.t.Helper()
	var usage struct {
		Limits []struct {
			Used int64 `json:"used"`
		} `json:"limits"`
	}
	text, err := s.get("/v1/usage?rule="+rule+"&key="+key, &usage)
	if err != nil || len(usage.Limits) == 0 {
		s.t.Fatalf("usage: %v: %s", err, text)
	}
	return usage.Limits[0].Used
}

// tool runs a command to its end: all of the program but main, without the cost of a process.
func tool(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err strings.Builder
	code = run(t.Context(), args, strings.NewReader(stdin), &out, &err)
	return code, out.String(), err.String()
}

// toolEnv runs a command to its end in a process, with settings from its environment.
func toolEnv(t *testing.T, env []string, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = cleanEnv(env...), strings.NewReader(stdin), &out, &err
	if e := cmd.Run(); e != nil && cmd.ProcessState == nil {
		t.Fatal(e)
	}
	return cmd.ProcessState.ExitCode(), out.String(), err.String()
}

// file writes a file for one test.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	expect.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// yearRules has one rule, whose window of 365 days does not turn during a test.
func yearRules(limit int) string {
	return fmt.Sprintf("version: 1\nrules:\n  - {name: year, key: [ip], limits: [{limit: %d, per: 8760h, algorithm: fixed-window}]}\n", limit)
}

const oneCheck = `{"rule": "year", "key": "198.51.100.7"}`
