package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// hostileRequests returns requests of a caller over its limit, by what they
// try. None may reach the application: no request may make the proxy conclude
// that rlnode is down.
func hostileRequests() map[string]string {
	all := map[string]string{}
	request := func(name, line string, headers ...string) {
		all[name] = line + "\r\nHost: app\r\nConnection: close\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
	}
	get := func(name string, headers ...string) { request(name, "GET /a HTTP/1.1", headers...) }
	for _, c := range []byte{0x00, 0x01, '\t', 0x0b, 0x1b, 0x1f, ' ', '"', '\\', '{', 0x7f, 0x80, 0xff} {
		raw, encoded := string([]byte{c}), fmt.Sprintf("%%%02x", c)
		for what, s := range map[string]string{"raw": raw, "encoded": encoded} {
			name := fmt.Sprintf("%#02x %s in ", c, what)
			request(name+"the path", "GET /a"+s+"b HTTP/1.1")
			request(name+"the query", "GET /a?b="+s+"c HTTP/1.1")
			for _, header := range []string{"X-Api-Key", "User-Agent", "X-Forwarded-For",
				"X-Forwarded-Uri", "Traceparent", "X-Other"} {
				get(name+header, header+": a"+s+"b")
			}
			get(name+"a header's name", "X-A"+s+"b: c")
		}
	}
	for _, s := range []string{"%0d%0aX-Forwarded-For:%20203.0.113.1", "%0a",
		"%2e%2e/%2e%2e/healthz", "../../healthz", "%00", "%zz", "%u0041"} {
		request("a path of "+s, "GET /"+s+" HTTP/1.1")
	}
	for _, n := range []int{1 << 10, 2 << 10, 4 << 10, 7 << 10, 12 << 10, 15 << 10, 16<<10 - 200,
		17 << 10, 40 << 10, 200 << 10} {
		long := strings.Repeat("k", n)
		request(fmt.Sprintf("%d bytes of path", n), "GET /"+long+" HTTP/1.1")
		request(fmt.Sprintf("%d bytes of path to encode", n), "GET /"+strings.Repeat("\"", n)+" HTTP/1.1")
		request(fmt.Sprintf("%d bytes of query", n), "GET /a?"+long+" HTTP/1.1")
		request(fmt.Sprintf("%d bytes of method", n), strings.ToUpper(long)+" /a HTTP/1.1")
		for _, header := range []string{"X-Api-Key", "X-Forwarded-For", "User-Agent", "Cookie",
			"Authorization", "X-Other"} {
			get(fmt.Sprintf("%d bytes of %s", n, header), header+": "+long)
		}
		get(fmt.Sprintf("%d bytes of short headers", n),
			strings.Split(strings.TrimSuffix(strings.Repeat("X-O: y\n", n/6), "\n"), "\n")...)
		get(fmt.Sprintf("%d bytes of keys", n),
			strings.Split(strings.TrimSuffix(strings.Repeat("X-Api-Key: y\n", n/12), "\n"), "\n")...)
		get(fmt.Sprintf("%d bytes of addresses", n),
			"X-Forwarded-For: "+strings.Repeat("203.0.113.1, ", n/13)+"203.0.113.1")
	}
	for _, key := range []string{"", " ", "\t", "k1, k2", "=?utf-8?q?k?=", "\"k", "k1\r\n folded"} {
		get(fmt.Sprintf("the key %q", key), "X-Api-Key: "+key)
		get(fmt.Sprintf("the key %q, twice", key), "X-Api-Key: "+key, "x-api-key: k2")
	}
	for _, a := range []string{"", "unknown", "_hidden", "203.0.113.1:http", "[::1",
		"203.0.113.1%eth0", ",,,", "\"", "::ffff:203.0.113.1", "0x7f.1",
		"203.0.113.1;203.0.113.2"} {
		get(fmt.Sprintf("the address %q", a), "X-Forwarded-For: "+a, "X-Real-IP: "+a, "Forwarded: for="+a)
		get(fmt.Sprintf("the address %q, twice", a), "X-Forwarded-For: "+a, "X-Forwarded-For: 203.0.113.1")
	}
	for _, h := range []string{
		"Connection: X-Forwarded-For, X-Forwarded-Uri, X-Forwarded-Method, X-Api-Key, Authorization, Host", "Connection: close, \x01", "Connection: upgrade",
		"Upgrade: websocket", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__",
		"Expect: 100-continue", "Expect: nonsense", "Transfer-Encoding: chunked",
		"Transfer-Encoding: gzip", "Transfer-Encoding: chunked, identity", "Content-Length: 5",
		"Content-Length: -1", "Content-Length: 99999999999999999999",
		"Content-Length: 1\r\nTransfer-Encoding: chunked", "Max-Forwards: 0", "TE: trailers",
		"Trailer: X-Forwarded-For", "Range: bytes=0-0", "If-None-Match: *",
		"X-Original-Url: /b", "X-Rewrite-Url: /b", "X-Http-Method-Override: HEAD",
		"Accept-Encoding: \x01", "Authorization: Bearer x", "Proxy-Authorization: x",
		"X-Forwarded-Proto: \x01", "X-Forwarded-Host: \x01", "Host: \x01", "Host: other", ": empty",
		"no colon", "X-Api-Key : k", " X-Api-Key: k",
	} {
		get(fmt.Sprintf("%q", h), h)
	}
	for _, line := range []string{
		"GET http://app/a HTTP/1.1", "GET http://other/a HTTP/1.1", "OPTIONS * HTTP/1.1",
		"OPTIONS /a HTTP/1.1", "TRACE /a HTTP/1.1", "CONNECT app:80 HTTP/1.1", "get /a HTTP/1.1",
		"GET /a HTTP/1.0", "GET /a HTTP/0.9", "GET /a", "GET /a HTTP/2.0", "GET /a HTTP/9.9",
		"GET  /a HTTP/1.1", "GET a HTTP/1.1", "GET ?a HTTP/1.1", "GET #a HTTP/1.1",
		"GET //a HTTP/1.1", "GET /a#b HTTP/1.1", "GET /a?deny_status=200 HTTP/1.1",
		"GET /v1/auth/none HTTP/1.1", "GET /_rlnode HTTP/1.1", "GET /_rlnode_or_pass HTTP/1.1",
		"PROPFIND /a HTTP/1.1", "A!#$%&'*+-.^_`|~ /a HTTP/1.1", "PRI * HTTP/2.0",
	} {
		request(line, line)
		request(line+" with a body", line, "Content-Length: 5", "", "12345")
	}
	return all
}

// TestProxiesRefuseHostileRequests: no request makes the proxy conclude that rlnode is down, which would let requests
// through.
func TestProxiesRefuseHostileRequests(t *testing.T) {
	t.Parallel()
	for _, e := range proxies() {
		t.Run(e.program, func(t *testing.T) {
			t.Parallel()
			e.skipUnlessInstalled(t)
			e.ip = strings.Replace(e.ip, ".62.1", ".62.2", 1)
			s := newProxiedApp(t, e)
			proxy := s.proxy(true)
			const attacker, bystander = 101, 102
			for _, caller := range []int{attacker, bystander} {
				for range 10 {
					s.expect("within the limit", caller, "GET", "/a", 200)
				}
				s.expect("over the limit", caller, "GET", "/a", 429)
			}
			s.received.Store(0)
			answers := map[int]int{}
			requests := hostileRequests()
			for _, name := range slices.Sorted(maps.Keys(requests)) {
				status := s.sendRaw(attacker, requests[name])
				answers[status]++
				if have := s.received.Swap(0); have > 0 {
					t.Errorf("%s: the application got %d bytes, and the caller %d", name, have, status)
				}
				expect.Equal(t, s.requestFrom(bystander, "GET", "/a", "").StatusCode, 429,
					"after %s: another caller is answered", name)
			}
			t.Logf("answers by status: %v", answers)
			s.expect("another caller", 103, "GET", "/a", 200)
			proxy.stop()
		})
	}
}

// sendRaw sends bytes and returns the status of the answer, or 0 without one.
func (pr *proxiedApp) sendRaw(last int, text string) int {
	pr.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 62, byte(last))}}
	c, err := d.Dial("tcp", pr.ip+":8000")
	expect.NoError(pr.t, err)
	defer c.Close()
	// Some requests have no end. For the others, a second is ample; anything later still shows at the application.
	expect.NoError(pr.t, c.SetDeadline(time.Now().Add(time.Second)))
	io.WriteString(c, text) // the proxy may hang up before the end
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode
}

// TestProxiesRefuseByOtherAnswers: on rlnode's errors, requests pass if the example says so. Any other answer than 200
// refuses them.
func TestProxiesRefuseByOtherAnswers(t *testing.T) {
	t.Parallel()
	for _, e := range proxies() {
		t.Run(e.program, func(t *testing.T) {
			t.Parallel()
			e.skipUnlessInstalled(t)
			e.ip = strings.Replace(e.ip, ".62.1", ".62.3", 1)
			s := newProxiedApp(t, e)
			s.node.stop()
			node := s.serveFakeNode()
			proxy := s.proxy(true)
			node.answer(200)
			process.Eventually(t, "the proxy asks",
				func() bool { return s.requestFrom(111, "GET", "/a", "").StatusCode == 200 })
			for _, status := range []int{302, 400, 401, 403, 404, 405, 413, 418, 429, 431} {
				node.answer(status)
				s.checkPasses(fmt.Sprintf("rlnode answers %d", status), false, false)
			}
			node.answer(denies)
			s.checkPasses("rlnode denies", false, false)
			s.checkDenial(s.expect("denied", 112, "GET", "/a", 403))
			s.checkDenial(s.expect("denied", 112, "POST", "/login", 403))
			node.answer(200)
			s.checkPasses("rlnode answers 200", true, true)
			for _, status := range []int{500, 502, 503, 504} {
				node.answer(status)
				s.checkPasses(fmt.Sprintf("rlnode answers %d", status), true, false)
			}
			node.answer(hangsUp)
			s.checkPasses("rlnode hangs up", true, false)
			node.answer(talksNonsense) // nginx treats it as an answer
			s.checkPasses("rlnode talks nonsense", e.program != "nginx", false)
			proxy.stop()
			proxy = s.proxy(false)
			node.answer(doesNotAnswer)
			s.checkPasses("rlnode does not answer", true, false)
			proxy.stop()
		})
	}
}

// checkPasses checks whether requests reach the application, and whether those for /login do.
func (pr *proxiedApp) checkPasses(what string, others, logins bool) {
	pr.t.Helper()
	for target, want := range map[string]bool{"/a": others, "/login": logins} {
		pr.received.Store(0)
		resp := pr.requestFrom(112, "POST", target, "")
		if have := pr.received.Load() > 0; have != want || want != (resp.StatusCode == 200) {
			pr.t.Errorf("%s: %s is answered %d, and reaches the application: %t, want %t", what,
				target, resp.StatusCode, have, want)
		}
	}
}

// Ways in which a fake node fails to answer.
const (
	hangsUp = -1 - iota
	talksNonsense
	doesNotAnswer
	denies
)

// denialBody is the answer to a check that the deny list refuses, with status 403.
const denialBody = `{"type":"about:blank","title":"The rules deny this","status":403,"code":"denied","detail":"The deny list refuses this.",` +
	`"allowed":false,"rule":"","retry_after_ms":-1,"delay_ms":0,"decided_by":"list","node":"n1","rules_version":3}`

// checkDenial checks what a caller sees of a 403 that a proxy makes of denialBody.
func (pr *proxiedApp) checkDenial(resp *http.Response) {
	pr.t.Helper()
	var problem struct {
		Status int
		Code   string
	}
	if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil || problem.Status != 403 ||
		problem.Code != "denied" ||
		resp.Header.Get("Content-Type") != "application/problem+json" ||
		resp.Header.Get("Retry-After") != "" || resp.Header.Get("RateLimit") != "" {
		pr.t.Errorf("denied: have %v %v, %v", resp.Header, problem, err)
	}
}

// fakeNode answers proxies as configured.
type fakeNode struct {
	mu  sync.Mutex // guards how
	how int
	end chan struct{}
}

func (f *fakeNode) answer(how int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.how = how
}

// serveFakeNode serves a fake node at the real node's address.
func (pr *proxiedApp) serveFakeNode() *fakeNode {
	f := &fakeNode{end: make(chan struct{})}
	ln, err := net.Listen("tcp", pr.ip+":8080")
	expect.NoError(pr.t, err)
	server := &http.Server{Handler: f}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(ln) })
	pr.t.Cleanup(func() {
		close(f.end)
		server.Close()
		serving.Wait()
	})
	return f
}

// ServeHTTP answers.
func (f *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	how := f.how
	f.mu.Unlock()
	switch {
	case r.URL.Path == "/readyz":
	case how > 0:
		w.WriteHeader(how)
	case how == denies:
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, denialBody)
	case how == doesNotAnswer:
		select {
		case <-f.end:
		case <-r.Context().Done():
		}
	default:
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		if how == talksNonsense {
			io.WriteString(c, "nonsense\r\n\r\n")
		}
		c.Close()
	}
}
