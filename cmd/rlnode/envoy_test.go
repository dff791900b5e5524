package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// envoyExample is an example of Envoy's configuration.
type envoyExample struct {
	config, rules string // files in the examples
	app           string // port of the application
	counted       string // a header of the answers to requests that a node has decided
	replace       func(nodes []string) *strings.Replacer
}

// The rate limit service as it is shipped, but for the addresses.
var rateLimitExample = envoyExample{
	config: "envoy/envoy.yaml", rules: "envoy/rules.yaml", app: "8001", counted: "X-Ratelimit-Limit",
	replace: func(nodes []string) *strings.Replacer {
		return strings.NewReplacer("127.0.0.11,", nodes[0]+",", "127.0.0.12,", nodes[1]+",",
			"127.0.0.13,", nodes[2]+",")
	},
}

// External authorization, which is shipped with one node, and with a limit of ten a minute.
var authorizationExample = envoyExample{
	config: "proxies/envoy/envoy.yaml", rules: "proxies/rules.yaml", app: "9000", counted: "Ratelimit",
	replace: func(nodes []string) *strings.Replacer {
		const endpoint = "              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8080}}}\n"
		all := ""
		for _, ip := range nodes {
			all += strings.Replace(endpoint, "127.0.0.1,", ip+",", 1)
		}
		return strings.NewReplacer(endpoint, all, "{limit: 10, per: 1m}", "{limit: 1000, per: 1s}")
	},
}

const (
	envoyCallers = 20 // each with an address of its own
	// requests a second of each; the example allows 50, a third of that while a
	// killed node is replaced
	envoyRate = 10
)

// Behind Envoy as the examples configure it, no request passes uncounted while
// the nodes restart one after another. If one is killed, at most what it gets
// in half a second passes so, and nothing when it comes back.
func TestEnvoyLosesNoCheck_long(t *testing.T) {
	long(t)
	testEnvoyExample(t, rateLimitExample)
}

// TestEnvoyAuthorizationLosesNoCheck_long is TestEnvoyLosesNoCheck_long for external authorization.
func TestEnvoyAuthorizationLosesNoCheck_long(t *testing.T) {
	long(t)
	testEnvoyExample(t, authorizationExample)
}

func testEnvoyExample(t *testing.T, e envoyExample) {
	f := e.start(t)
	if e.counted == rateLimitExample.counted {
		checkLogins(t, f)
	}
	l := e.startLoad(f)

	for _, m := range f.nodes {
		m.signal(syscall.SIGTERM)
		m.awaitExit()
		m.startProcess()
		m.waitReady()
	}
	l.expect("while the nodes restarted", 0, false)

	f.nodes[0].kill()
	time.Sleep(4 * time.Second) // under load
	const halfASecondOfOne = envoyCallers * envoyRate / 3 / 2
	l.expect("when a node was killed", halfASecondOfOne, true) // its standby has a share, and leases are lost with it

	f.nodes[0].startProcess()
	f.nodes[0].waitReady()
	time.Sleep(2 * time.Second) // under load, which the node gets its part of again
	l.expect("when it came back", 0, false)
	l.end()
}

// front is the address of Envoy, and of the application behind it.
func front(f *fleet) string { return f.net + ".10" }

// start starts three nodes, an application, and Envoy in front of it.
func (e *envoyExample) start(t *testing.T) *fleet {
	program := findProgram(t, "envoy")
	f := newEmptyFleet(t)
	replace := e.replace([]string{f.net + ".1", f.net + ".2", f.net + ".3"})
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("../../examples", name))
		expect.NoError(t, err)
		return replace.Replace(string(text))
	}

	rules := file(t, "rules.yaml", read(e.rules))
	for i := range 3 {
		f.nodes = append(f.nodes, f.newNode(i+1, 3, "--rules", rules))
	}
	for _, m := range f.nodes {
		m.startProcess()
	}
	f.awaitWhole()

	serveApp(t, front(f)+":"+e.app)
	config := file(t, "envoy.yaml", strings.ReplaceAll(read(e.config), "127.0.0.1,", front(f)+","))
	startEnvoy(t, program, config)
	process.Eventually(t, "Envoy asks the nodes", func() bool {
		resp, err := http.Get("http://" + front(f) + ":8000/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK && resp.Header.Get(e.counted) != ""
	})
	return f
}

// serveApp serves an application that answers everything with 200.
func serveApp(t *testing.T, address string) {
	ln, err := net.Listen("tcp", address)
	expect.NoError(t, err)
	app := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = app.Serve(ln) })
	t.Cleanup(func() {
		app.Close()
		serving.Wait()
	})
}

func startEnvoy(t *testing.T, program, config string) {
	log := &process.Output{}
	cmd := exec.Command(program, envoyArgs...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Dir(config), log, log
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of Envoy:\n%s", log)
		}
	})
}

// checkLogins checks what a caller sees who tries to log in six times: the
// path's limit and the host's both count, and the refusal says when to come
// back.
func checkLogins(t *testing.T, f *fleet) {
	client := callerFrom(f.net + ".99")
	defer client.CloseIdleConnections()
	for i := range 6 {
		resp, err := client.Get("http://" + front(f) + ":8000/login")
		expect.NoError(t, err)
		resp.Body.Close()
		want := http.StatusOK
		if i == 5 {
			want = http.StatusTooManyRequests
		}
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		policy := resp.Header.Get("X-Ratelimit-Limit")
		if resp.StatusCode != want || (want != http.StatusOK) != (after > 0) || after > 60 ||
			!strings.Contains(policy, " 5;w=60") || !strings.Contains(policy, " 50;w=1") {
			t.Errorf("login %d: got %d, Retry-After %q, X-RateLimit-Limit %q; want %d, a time to come back only if it is 429, and both limits",
				i, resp.StatusCode, resp.Header.Get("Retry-After"), policy, want)
		}
	}
}

// callerFrom returns a client with an address of its own.
func callerFrom(ip string) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	return &http.Client{Timeout: process.Timeout, Transport: &http.Transport{DialContext: d.DialContext}}
}

// envoyLoad is a steady load on Envoy.
type envoyLoad struct {
	fleet     *fleet
	counted   string       // see envoyExample
	sent      atomic.Int64 // since the last expect, like the others
	uncounted atomic.Int64 // passed without a node's decision
	refused   atomic.Int64
	failed    atomic.Int64
	stop      chan struct{}
	callers   sync.WaitGroup
}

func (e *envoyExample) startLoad(f *fleet) *envoyLoad {
	l := &envoyLoad{fleet: f, counted: e.counted, stop: make(chan struct{})}
	for i := range envoyCallers {
		l.callers.Go(func() { l.call(fmt.Sprintf("%s.%d", f.net, 100+i)) })
	}
	return l
}

// call makes requests from an address, until the end.
func (l *envoyLoad) call(ip string) {
	client := callerFrom(ip)
	defer client.CloseIdleConnections()
	tick := time.NewTicker(time.Second / envoyRate)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		l.sent.Add(1)
		resp, err := client.Get("http://" + front(l.fleet) + ":8000/")
		if err != nil {
			l.failed.Add(1)
			continue
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		switch {
		case resp.StatusCode == http.StatusTooManyRequests:
			l.refused.Add(1)
		case resp.StatusCode != http.StatusOK:
			l.failed.Add(1)
		case resp.Header.Get(l.counted) == "":
			l.uncounted.Add(1)
		}
	}
}

// expect checks the requests since the last call: at most so many passed
// uncounted, and none failed.
func (l *envoyLoad) expect(when string, most int64, mayRefuse bool) {
	t := l.fleet.t
	t.Helper()
	sent, uncounted := l.sent.Swap(0), l.uncounted.Swap(0)
	refused, failed := l.refused.Swap(0), l.failed.Swap(0)
	t.Logf("%s: %d requests, %d passed uncounted, %d were refused, %d failed", when, sent, uncounted, refused, failed)
	if uncounted > most || failed > 0 || refused > 0 && !mayRefuse {
		t.Errorf("%s: got %d of %d requests uncounted, %d refused, %d failed; want at most %d uncounted, none failed, none refused unless %t",
			when, uncounted, sent, refused, failed, most, mayRefuse)
	}
}

// end stops the load.
func (l *envoyLoad) end() {
	close(l.stop)
	l.callers.Wait()
}
