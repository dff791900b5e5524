package main

import (
	"encoding/json"
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

const proxyExamples = "../../examples/proxies"

// example is a proxy with its example configuration.
type example struct {
	program          string
	ip               string            // of all listeners, instead of 127.0.0.1
	files            map[string]string // their paths in the examples, by where they are written
	extra            map[string]string // text to put before an example's, or a file of its own
	args             []string
	statusWhileDown  []int // possible answers to /login while rlnode is down
	reportsRemaining bool  // reports the remaining requests in every answer
	guardsForwarded  bool  // answers 400 to a request whose Connection names X-Forwarded-For
}

func proxies() []example {
	return []example{
		{
			program: "nginx", ip: "127.0.62.11", reportsRemaining: true, statusWhileDown: []int{503},
			files: map[string]string{"conf.d/rlnode.conf": "nginx/rlnode.conf",
				"conf.d/rlnode.ask": "nginx/rlnode.ask"},
			extra: map[string]string{"nginx.conf": `
pid nginx.pid; error_log stderr; daemon off; worker_processes 1;
events {}
http {
	access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
	include conf.d/*.conf;
}`},
			args: []string{"-p", ".", "-c", "nginx.conf", "-e", "stderr"},
		},
		{
			program: "caddy", ip: "127.0.62.12", statusWhileDown: []int{502, 503, 504},
			files: map[string]string{"Caddyfile": "caddy/Caddyfile"},
			extra: map[string]string{"Caddyfile": "{\n\tadmin off\n}\n"},
			args:  []string{"run", "--adapter", "caddyfile", "--config", "Caddyfile"},
		},
		{
			program: "haproxy", ip: "127.0.62.13", reportsRemaining: true, statusWhileDown: []int{503},
			files: map[string]string{"haproxy.cfg": "haproxy/haproxy.cfg", "rlnode.lua": "haproxy/rlnode.lua"},
			args:  []string{"-db", "-f", "haproxy.cfg"},
		},
		{
			program: "envoy", ip: "127.0.62.14", reportsRemaining: true, guardsForwarded: true,
			statusWhileDown: []int{503},
			files:           map[string]string{"envoy.yaml": "envoy/envoy.yaml"},
			args:            envoyArgs,
		},
	}
}

// envoyArgs are the arguments with which tests run Envoy. Without its hot
// restarts, several run at once.
var envoyArgs = []string{"-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"}

// The proxies let ten requests pass and refuse the eleventh. If rlnode hangs or
// is stopped, they act as configured. Only while rlnode hangs, their timeouts
// are those of the examples. Otherwise they are longer, so that a slow machine
// does not look like a dead node.
func TestProxies(t *testing.T) {
	t.Parallel()
	for _, e := range proxies() {
		t.Run(e.program, func(t *testing.T) {
			t.Parallel()
			e.skipUnlessInstalled(t)
			s := newProxiedApp(t, e)
			proxy := s.proxy(false)
			s.testHang()
			proxy.stop()
			proxy = s.proxy(true)
			s.testLimits()
			s.testUnchanged()
			s.testStop()
			proxy.stop()
		})
	}
}

// skipUnlessInstalled skips the test if the proxy is missing.
func (e *example) skipUnlessInstalled(t *testing.T) {
	t.Helper()
	findProgram(t, e.program)
}

// findProgram returns the path of a program that is installed, or that make has
// put into bin. It skips the test if there is none.
func findProgram(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs(filepath.Join("../../bin", name))
	if _, missing := os.Stat(path); err != nil || missing != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not installed, and this is CI", name)
		}
		t.Skipf("%s is not installed", name)
	}
	return path
}

// proxiedApp is an application behind a proxy that asks a node.
type proxiedApp struct {
	example
	t    *testing.T
	dir  string
	node *runningNode

	mu   sync.Mutex // guards seen
	seen []string   // requests that the application received: method, target, body

	received atomic.Int64 // bytes that the application received
}

// countedListener counts what its connections receive, because the application
// also refuses what it can't read.
type countedListener struct {
	net.Listener
	received *atomic.Int64
}

func (l countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countedConn{c, l.received}, err
}

type countedConn struct {
	net.Conn
	received *atomic.Int64
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}

func newProxiedApp(t *testing.T, e example) *proxiedApp {
	s := &proxiedApp{example: e, t: t, dir: t.TempDir()}
	s.start()
	ln, err := net.Listen("tcp", e.ip+":9000")
	expect.NoError(t, err)
	app := &http.Server{Handler: http.HandlerFunc(s.app)}
	var serving sync.WaitGroup
	serving.Go(func() { app.Serve(countedListener{ln, &s.received}) })
	t.Cleanup(func() {
		app.Close()
		serving.Wait()
	})
	return s
}

// start starts the node.
func (pr *proxiedApp) start() {
	src, err := os.ReadFile(filepath.Join(proxyExamples, "rules.yaml"))
	expect.NoError(pr.t, err)
	// Use the example's rules, but with windows that don't turn during a test.
	text := strings.NewReplacer("{limit: 10, per: 1m}",
		"{limit: 10, per: 8760h, algorithm: fixed-window}").Replace(string(src))
	if text == string(src) {
		pr.t.Fatal("the example's rule per-address has changed")
	}
	text += "\nlists: {deny: [{ip: 127.0.62.97}]}\n"
	pr.node = start(pr.t, filepath.Join(pr.dir, "node"), "--rules", file(pr.t, "rules.yaml", text),
		"--bind", pr.ip, "--http-port", "8080", "--admin-port", "8081", "--name", "n1")
}

// app is the application.
func (pr *proxiedApp) app(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	pr.mu.Lock()
	pr.seen = append(pr.seen, fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, body))
	pr.mu.Unlock()
	w.Header().Set("X-App", r.Header.Get("X-Forwarded-For"))
	if status, err := strconv.Atoi(strings.Trim(r.URL.Path, "/")); err == nil {
		w.WriteHeader(status)
	}
	fmt.Fprint(w, "app")
}

// reached returns what the application received since the last call.
func (pr *proxiedApp) reached() []string {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	defer func() { pr.seen = nil }()
	return pr.seen
}

// runningProxy is a running proxy.
type runningProxy struct {
	t      *testing.T
	cmd    *exec.Cmd
	exited chan struct{}
}

// proxy starts the proxy with the example's configuration.
func (pr *proxiedApp) proxy(patient bool) *runningProxy {
	t := pr.t
	dir := t.TempDir()
	write := func(name, text string) {
		text = strings.NewReplacer("127.0.0.1", pr.ip, "/etc/haproxy", dir).Replace(text)
		if patient {
			text = strings.NewReplacer("100ms", "15s", "200ms", "15s", "timeout = 400",
				"timeout = 15000", "timeout: 1s", "timeout: 15s").Replace(text)
		}
		path := filepath.Join(dir, name)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	for name, text := range pr.extra {
		write(name, text)
	}
	for name, from := range pr.files {
		text, err := os.ReadFile(filepath.Join(proxyExamples, from))
		expect.NoError(t, err)
		write(name, pr.extra[name]+string(text))
	}
	log := &process.Output{}
	p := &runningProxy{t: t, cmd: exec.Command(findProgram(t, pr.program), pr.args...), exited: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	p.cmd.Env = append(cleanEnv(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	expect.NoError(t, p.cmd.Start())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer close(p.exited)
		p.cmd.Wait()
	})
	t.Cleanup(func() {
		p.stop()
		waiting.Wait()
		if t.Failed() {
			t.Logf("log of %s:\n%s", pr.program, log)
		}
	})
	process.Eventually(t, pr.program+" listens", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("%s ended:\n%s", pr.program, log)
		default:
		}
		c, err := net.Dial("tcp", pr.ip+":8000")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return p
}

// stop ends the proxy. Its workers end with it only on SIGTERM.
func (r *runningProxy) stop() {
	r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.exited:
	case <-time.After(process.Timeout):
		r.cmd.Process.Kill()
		r.t.Errorf("%v has not ended in time", r.cmd.Args)
	}
}

// requestFrom makes a request as a caller with the address 127.0.62.last, which
// forges everything it can.
func (pr *proxiedApp) requestFrom(last int, method, target, body string) *http.Response {
	pr.t.Helper()
	r, err := http.NewRequest(method, "http://"+pr.ip+":8000", strings.NewReader(body))
	expect.NoError(pr.t, err)
	path, query, _ := strings.Cut(target, "?")
	r.URL.Opaque, r.URL.RawQuery = "//"+pr.ip+":8000"+path, query
	if !strings.HasPrefix(path, "//") {
		r.URL.Opaque = path
	}
	for name, value := range map[string]string{
		"X-Forwarded-For": fmt.Sprintf("203.0.113.%d", time.Now().UnixNano()%250),
		"X-Real-Ip":       "203.0.113.1", "Forwarded": "for=203.0.113.1",
		"X-Forwarded-Uri": "/forged", "X-Forwarded-Method": "FORGED", "Cookie": strings.Repeat("x", 6000),
	} {
		r.Header.Set(name, value)
	}
	if !pr.guardsForwarded {
		r.Header.Set("Connection", "X-Forwarded-For")
	}
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 62, byte(last))}
	client := &http.Client{Timeout: process.Timeout,
		Transport: &http.Transport{DialContext: (&net.Dialer{LocalAddr: local}).DialContext, DisableKeepAlives: true}}
	resp, err := client.Do(r)
	expect.NoError(pr.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	expect.NoError(pr.t, err)
	resp.Body = io.NopCloser(strings.NewReader(string(text)))
	return resp
}

// expect makes a request and checks that the answer's status is one of want.
func (pr *proxiedApp) expect(what string, last int, method, target string, want ...int) *http.Response {
	pr.t.Helper()
	resp := pr.requestFrom(last, method, target, "")
	for _, status := range want {
		if resp.StatusCode == status {
			return resp
		}
	}
	pr.t.Errorf("%s: %s %s: have %d, want %v", what, method, target, resp.StatusCode, want)
	return resp
}

// testHang: a node that does not answer delays no request for long.
func (pr *proxiedApp) testHang() {
	pr.node.signal(syscall.SIGSTOP)
	process.Eventually(pr.t, "the node has stopped", pr.node.paused)
	began := time.Now()
	pr.expect("rlnode hangs", 90, "GET", "/", 200)
	pr.expect("rlnode hangs", 90, "POST", "/login", pr.statusWhileDown...)
	if took := time.Since(began); took > process.Timeout/4 {
		pr.t.Errorf("rlnode hangs: two requests took %v", took)
	}
	pr.node.signal(syscall.SIGCONT)
	process.Eventually(pr.t, "rlnode is asked again", func() bool {
		return pr.requestFrom(90, "POST", "/login", "").StatusCode == 200
	})
	pr.reached()
}

// paused reports whether all threads of the process have stopped after SIGSTOP,
// if the system shows that.
func (s *runningNode) paused() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid))
	for _, name := range threads {
		text, err := os.ReadFile(name)
		if _, state, _ := strings.Cut(string(text), ") "); err == nil && !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// testLimits: ten requests pass and the eleventh is refused, whatever identity the caller claims.
func (pr *proxiedApp) testLimits() {
	for i := range 10 {
		resp := pr.expect("within the limit", 91, "GET", fmt.Sprintf("/a?%d", i), 200)
		if have, want := resp.Header.Get("X-RateLimit-Remaining"), fmt.Sprint(9-i); pr.reportsRemaining && have != want {
			pr.t.Errorf("request %d: %q remain, want %s", i, have, want)
		}
		if forwarded := resp.Header.Get("X-App"); !strings.HasSuffix(forwarded, "127.0.62.91") {
			pr.t.Errorf("the application sees %q as the caller", forwarded)
		}
	}
	resp := pr.expect("over the limit", 91, "GET", "/a", 429)
	pr.checkRefusal(resp)
	if have := resp.Header.Get("RateLimit"); !strings.HasPrefix(have, `"per-address";r=0;t=`) {
		pr.t.Errorf("over the limit: RateLimit %q", have)
	}
	pr.checkRefusal(pr.expect("over the limit", 91, "HEAD", "/a", 429))
	pr.checkRefusal(pr.expect("over the limit", 91, "POST", "/a", 429))
	pr.checkDenial(pr.expect("on the deny list", 97, "GET", "/a", 403))
	pr.checkDenial(pr.expect("on the deny list", 97, "POST", "/login", 403))
	pr.expect("another caller", 92, "GET", "/a", 200)
	expect.Equal(pr.t, len(pr.reached()), 11, "the application, requests")
	for i, spelling := range []string{"/login", "//login", "/%6Cogin", "/login?next=/", "/login"} {
		pr.expect(fmt.Sprintf("login %d", i), 93, "POST", spelling, 200)
	}
	pr.checkRefusal(pr.expect("sixth login", 93, "POST", "//login", 429))
	pr.expect("no login", 93, "GET", "/a", 200)
	pr.reached()
}

// checkRefusal checks what a caller sees of a refusal.
func (pr *proxiedApp) checkRefusal(resp *http.Response) {
	pr.t.Helper()
	if after, err := strconv.Atoi(resp.Header.Get("Retry-After")); err != nil || after < 1 {
		pr.t.Errorf("refused: Retry-After %q", resp.Header.Get("Retry-After"))
	}
	body, _ := io.ReadAll(resp.Body)
	var problem struct{ Status int }
	if resp.Request.Method == "HEAD" {
		return
	}
	if err := json.Unmarshal(body, &problem); err != nil || problem.Status != 429 ||
		resp.Header.Get("Content-Type") != "application/problem+json" {
		pr.t.Errorf("refused: have %s %q", resp.Header.Get("Content-Type"), body)
	}
}

// testUnchanged: the proxy doesn't change what the application receives and answers.
func (pr *proxiedApp) testUnchanged() {
	for _, status := range []int{403, 404, 429, 500, 503} {
		if resp := pr.expect("the application's own", 94, "GET", fmt.Sprintf("/%d", status),
			status); resp.Header.Get("Retry-After") != "" {
			pr.t.Errorf("%d: Retry-After %q", status, resp.Header.Get("Retry-After"))
		}
	}
	pr.reached()
	body := strings.Repeat("b", 100_000)
	if resp := pr.requestFrom(94, "PUT", "/x?y=z", body); resp.StatusCode != 200 {
		pr.t.Errorf("have %d", resp.StatusCode)
	}
	if have := pr.reached(); len(have) != 1 || have[0] != "PUT /x?y=z "+body {
		pr.t.Errorf("the application got %.100q", have)
	}
}

// testStop: without rlnode, all requests but logins pass. After its restart,
// the limit is still used up.
func (pr *proxiedApp) testStop() {
	pr.node.stop()
	resp := pr.expect("rlnode is stopped", 91, "GET", "/a", 200)
	expect.Equal(pr.t, resp.Header.Get("RateLimit"), "", "rlnode is stopped: RateLimit")
	pr.expect("rlnode is stopped", 95, "POST", "/a", 200)
	expect.Equal(pr.t, len(pr.reached()), 2, "the application, requests")
	pr.expect("rlnode is stopped", 95, "POST", "/login", pr.statusWhileDown...)
	pr.expect("rlnode is stopped", 95, "GET", "//login", pr.statusWhileDown...)
	if have := pr.reached(); len(have) > 0 {
		pr.t.Errorf("the application got %q", have)
	}
	pr.start()
	process.Eventually(pr.t, "rlnode is asked again",
		func() bool { return pr.requestFrom(91, "GET", "/a", "").StatusCode == 429 })
}
