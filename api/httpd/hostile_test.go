package httpd

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
)

// documented lists the statuses that may answer a hostile request; 0 is a closed connection.
var documented = map[int]bool{0: true, 200: true, 400: true, 401: true, 403: true, 404: true,
	405: true, 408: true, 413: true, 429: true, 431: true}

// hostileRequests is the number of requests that TestHostile sends; `make hostile` sends a million.
var hostileRequests = flag.Int("hostile", 0, "requests that TestHostile sends; 0: 4,000, or 2,000 in short runs")

// hostile generates bytes to send. For each piece it returns the maximum number
// of answers that a node may give.
type hostile struct {
	r *rand.Rand
}

var hostilePaths = []string{"/v1/check", "/v1/check", "/v1/check", "/v1/check/batch", "/v1/adjust",
	"/v1/acquire", "/v1/renew", "/v1/release", "/v1/settle", "/v1/reset", "/v1/usage", "/healthz",
	"/readyz", "/v1/reserve", "/v1/auth/web", "/v1/auth/", "/v1/auth/web/../%zz?deny_status=4", "/",
	"/%00", "//v1//check", "*"}

func (h hostile) pick(list ...string) string { return list[h.r.IntN(len(list))] }

// jsonValue returns JSON, or almost JSON.
func (h hostile) jsonValue(depth int) string {
	if depth <= 0 || h.r.IntN(3) > 0 {
		return h.pick("0", "1", "-1", "1.5", "1e309", "-0", "9007199254740992",
			strings.Repeat("9", h.r.IntN(5000)+1), "true", "false", "null", "nul", `"x"`, `""`,
			`"\u0000"`, `"\ud800"`, "\"\xff\xfe\"", `"login"`, `"all"`, `"198.51.100.7"`, `"`+
				strings.Repeat("y", h.r.IntN(3000))+`"`, "", "01", "+1", "NaN", "'x'")
	}
	var parts []string
	for range h.r.IntN(4) {
		parts = append(parts, h.jsonValue(depth-1))
	}
	if h.r.IntN(2) == 0 {
		return "[" + strings.Join(parts, ",") + "]"
	}
	for i := range parts {
		parts[i] = h.pick(`"a"`, `"ip"`, `"user"`, `"a"`, `"requests"`, `5`, `""`) + h.pick(":",
			":", ":", "", " : ") + parts[i]
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// body returns a check, possibly damaged.
func (h hostile) body() string {
	switch h.r.IntN(8) {
	case 0:
		deep := h.r.IntN(30_000)
		return strings.Repeat(h.pick("[", `{"a":`, `{"checks":[`), deep)
	case 1:
		return h.jsonValue(5)
	case 2:
		b := make([]byte, h.r.IntN(2000))
		for i := range b {
			b[i] = byte(h.r.Uint32())
		}
		return string(b)
	case 3: // a valid check with some bytes changed
		b := []byte(h.check())
		for range 1 + h.r.IntN(3) {
			b[h.r.IntN(len(b))] = byte(h.r.Uint32())
		}
		return string(b)
	case 4:
		return `{"checks":[` + strings.TrimSuffix(strings.Repeat(h.check()+",", h.r.IntN(200)), ",") + `]}`
	}
	return h.check()
}

func (h hostile) check() string {
	var fields []string
	usual := []string{"rule", "key", "attributes", "cost", "costs", "peek", "detail", "wat"}
	rare := []string{"namespace", "limits", "mode", "subjects", "n", "who", "ttl_ms", "slot",
		"request_id", "reservation", "limit_name", "on_expiry"}
	for i, f := range append(usual, rare...) {
		if h.r.IntN(2) == 0 || i >= len(usual) && h.r.IntN(4) > 0 {
			continue
		}
		v := h.jsonValue(2)
		if h.r.IntN(3) > 0 {
			v = map[string]string{"rule": h.pick(`"login"`, `"all"`, `"a"`, `"nope"`),
				"key": h.pick(`"k"`, `["a","b"]`, `[]`),
				"attributes": h.pick(`{"ip":"1.2.3.4","user":"u"}`,
					`{"ip":"`+strings.ToValidUTF8(h.address(), "?")+`"}`),
				"cost": "1", "costs": `{"tokens":1}`, "peek": "true", "detail": "true", "wat": "1",
				"namespace": `"n"`,
				"limits": h.pick(`[{"limit":5,"per":"1h"}]`,
					`[{"limit":1000000,"ttl":"24h","algorithm":"concurrency"}]`),
				"mode":     h.pick(`"count"`, `"at-most"`),
				"subjects": `[{"key":"k","limits":[{"limit":5,"ttl":"1s","algorithm":"concurrency"}]}]`,
				"n":        h.pick("1", "1000000"), "who": `"me"`, "ttl_ms": h.pick("10", "86400000"),
				"slot": h.pick(`"x"`, `"AQ"`), "request_id": `"r"`,
				"reservation": `"x"`, "limit_name": `"a"`, "on_expiry": h.pick(`"keep"`, `"cancel"`)}[f]
		}
		fields = append(fields, `"`+f+`":`+v)
	}
	return "{" + strings.Join(fields, ",") + "}"
}

// request returns one request in wire format.
func (h hostile) request() string {
	path, body := hostilePaths[h.r.IntN(len(hostilePaths))], h.body()
	switch h.r.IntN(16) {
	case 0: // chunks, some of them invalid
		var b strings.Builder
		for len(body) > 0 {
			n := min(len(body), 1+h.r.IntN(3000))
			fmt.Fprintf(&b, "%x%s\r\n%s%s", n+h.r.IntN(20)/19, h.pick("", "", ";x=y", " "),
				body[:n], h.pick("\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", ""))
			body = body[n:]
		}
		return post(path,
			b.String()+h.pick("0\r\n\r\n", "0\r\n\r\n", "0\r\nX: y\r\n\r\n", "", "-1\r\n"),
			"Transfer-Encoding: chunked")
	case 1: // floods of headers
		return post(path, body,
			strings.Repeat(h.pick("X: y\r\n", "Cookie: "+strings.Repeat("c", 900)+"\r\n", ":\r\n",
				"\x00: \xff\r\n"), h.r.IntN(2000))+"X: y")
	case 2: // not HTTP
		return h.pick("", "\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
			"POST /v1/check HTTP/1.1\r\n\r\n", "\x16\x03\x01\x00\xff",
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", body+"\r\n\r\n")
	case 3: // a wrong length
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: n\r\nContent-Length: %s\r\n\r\n%s", path,
			h.pick("5", "1000000", "-1", "18446744073709551616", "0x10", "", "7, 7", "99999999999"), body)
	case 4:
		return post(path, body,
			h.pick("Expect: 100-continue", "Expect: x", "Connection: close",
				"Connection: upgrade\r\nUpgrade: h2c", "Content-Encoding: gzip",
				"Content-Type: multipart/form-data; boundary=x", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked\r\nContent-Length: 3"))
	case 6: // ambiguous framing
		one := apitest.FramingCases[h.r.IntN(len(apitest.FramingCases))].Send
		return one[:min(len(one), 20_000)]
	case 7: // a control character, or any other byte, anywhere in the head
		text := []byte(post(path, body, h.oddHeader(), h.oddHeader()))
		at := h.r.IntN(len(text) - len(body))
		text[at] = []byte{0, 1, 8, '\t', '\n', '\v', '\r', 0x1b, 0x7f, 0x80, 0xff, ' ', ':', ','}[h.r.IntN(14)]
		return string(text)
	case 8, 9:
		return post(path, body, h.oddHeader(), h.oddHeader(), h.oddHeader())
	case 5:
		return h.pick("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PATCH", "get",
			"FOO") + post(path, body)[4:]
	}
	return post(path, body)
}

// address returns a caller's address, or something similar.
func (h hostile) address() string {
	return h.pick("198.51.100.7", "198.51.100.7:1234", "[2001:db8::1]:99999", "2001:db8::1",
		"[2001:db8::1]", "fe80::1%eth0", "[fe80::1%25eth0]:80", " 198.51.100.7 ",
		"198.51.100.7, 10.0.0.1",
		"::ffff:198.51.100.7", "198.51.100.07", "0x7f.1", "3325256711", "unknown", "_hidden", "\xff", "", ",,,", "1.2.3.4:", ":80", strings.Repeat("1.2.3.4,", h.r.IntN(800)), "fe80::1%"+strings.Repeat("z", h.r.IntN(2000)))
}

// oddHeader returns a header line that some servers treat specially.
func (h hostile) oddHeader() string {
	return h.pick("Origin: ", "Origin: null", "Origin: http://evil.example",
		"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-origin", "Host: evil.example",
		"Authorization: ", "Authorization: Bearer", "Authorization: Bearer \x80\xff",
		"Authorization: Basic Og==", "Authorization: Bearer "+strings.Repeat("t", h.r.IntN(9000)),
		"authorization: bearer a\r\nAuthorization: Bearer b",
		"X-Forwarded-For: "+h.address(), "X-Real-IP: "+h.address(), "Forwarded: for="+h.address(),
		"X-Forwarded-For: "+h.address()+"\r\nX-Forwarded-For: "+h.address(),
		"Connection: "+
			strings.Join([]string{h.pick("close", "keep-alive", "content-length", "", "te"),
				h.pick("close", "Upgrade", "host", "x", " ")},
				h.pick(",", ", ", " ")),
		"Content-Length: "+h.pick("0", "14", "007", "-1", "1e3", "٣"),
		"Transfer-Encoding: "+h.pick("chunked", "Chunked", "identity", "chunked, chunked", "\x0bchunked", ""),
		"Traceparent: "+h.pick("", "00-0-0-0",
			strings.Repeat("0", 300)), "Expect: 100-Continue", "Trailer: Content-Length", "X-"+
			strings.Repeat("h", h.r.IntN(3000))+": y")
}

// attack sends n requests on one connection and reads the answers.
func (h hostile) attack(t *testing.T, node *node, n int) (answers int) {
	c, err := net.Dial("tcp", node.Data.Addr().String())
	if err != nil {
		t.Error(err)
		return 0
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Error(err)
		return 0
	}
	var send strings.Builder
	for range n {
		send.WriteString(h.request())
	}
	text, slow := send.String(), h.r.IntN(40) == 0
	if slow { // cut off, with no further answer
		text = text[:h.r.IntN(len(text)+1)]
		if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Error(err)
		}
	}
	var sender sync.WaitGroup
	sender.Go(func() {
		if _, err := io.WriteString(c, text); err == nil && !slow {
			_ = c.(*net.TCPConn).CloseWrite() // the node may already have hung up
		}
	})
	r := bufio.NewReader(c)
	for {
		status, body, closes := answer(t, r)
		// Who sends nothing more may have gone, so nobody would release a slot.
		hungUp := status == 503 && strings.Contains(body, "the caller hung up")
		if !documented[status] && status != 100 && !hungUp {
			t.Errorf("have %d %s to %.300q", status, body, text)
		}
		if status == 0 && strings.Contains(body, "timeout") && !slow {
			t.Errorf("no answer to %.300q", text)
		}
		if status >= 500 && !hungUp { // no input may be reported as the node's fault
			t.Errorf("have %d %s to %.300q", status, body, text)
		}
		if status != 100 {
			answers++ // or a closed connection
		}
		if closes {
			break
		}
	}
	c.Close()
	sender.Wait()
	return answers
}

// Random and hostile requests over real connections: each gets a documented
// status or a closed connection, the node keeps answering, and goroutines and
// memory return to their earlier levels.
func TestHostile(t *testing.T) {
	requests := cmp.Or(*hostileRequests, 2_000) // make hostile sends a million
	n := startNode(t, func(c *apitest.Config) { c.ReadTimeout = 250 * time.Millisecond })
	n.Check(good)
	n.attacks(t, 1000, 1<<32) // fills pools, buffers and counters
	n.Client.CloseIdleConnections()
	apitest.Until(t, "the connections are closed", func() bool { return n.open() == 0 })
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	began := time.Now()
	answers := n.attacks(t, requests, 0)
	t.Logf("%d requests, %d answers, %v", requests, answers, time.Since(began).Round(time.Millisecond))

	if status, f := n.Check(good); status != 200 {
		t.Errorf("afterwards: have %d %v", status, f)
	}
	expect.Equal(t, n.server.handlers.Panics.Load(), 0, "panics")
	n.Client.CloseIdleConnections()
	apitest.Until(t, "all connections are closed", func() bool { return n.open() == 0 })
	apitest.Until(t, "the bodies are given back", func() bool { return n.server.handlers.Budget.Used() == 0 })
	// The test's own errors and logs take up to 256 KiB.
	apitest.Until(t, "memory has returned", func() bool { return heapInUse() < heap+heap/10+(256<<10) })
	// The library keeps idle workers for some seconds.
	apitest.Until(t, "goroutines have ended",
		func() bool { return runtime.NumGoroutine() <= goroutines+goroutines/10+2 })
	t.Logf("goroutines: %d before, %d after; heap %d KiB before, %d after", goroutines,
		runtime.NumGoroutine(), heap>>10, heapInUse()>>10)
}

// attacks sends requests, and large bodies, over sixteen connections at a time,
// and returns how many were answered.
func (n *node) attacks(t *testing.T, requests int, seed uint64) int64 {
	var left, answers atomic.Int64
	left.Store(int64(requests))
	var workers sync.WaitGroup
	for w := range 16 {
		workers.Go(func() {
			h := hostile{rand.New(rand.NewPCG(seed+uint64(w), 1))}
			for left.Load() > 0 {
				k := 1 + h.r.IntN(8)
				k = h.attack(t, n, k)
				left.Add(-int64(k))
				answers.Add(int64(k))
			}
		})
	}
	workers.Go(func() { n.sendLarge(t) })
	workers.Wait()
	return answers.Load()
}

// sendLarge sends bodies of 20 MB, or of 100 MB if the test has the machine to
// itself. It reads the answer while it sends, as the connection lingers only
// for a while: on a busy machine it is cut off before the body is out.
func (n *node) sendLarge(t *testing.T) {
	size := 20
	if *hostileRequests > 0 {
		size = 100
	}
	piece := bytes.Repeat([]byte(" "), 1<<20)
	for path, want := range map[string]int{"/v1/check": 413, "/v1/check/batch": 413, "/nowhere": 404} {
		c := n.dial(t)
		if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: n\r\nContent-Length: %d\r\n\r\n",
			path, size<<20); err != nil {
			t.Error(err)
		}

		var sending sync.WaitGroup
		sending.Go(func() {
			for range size {
				_, err := c.Write(piece)
				if err != nil {
					return
				}
			}
		})
		status, body, _ := answer(t, bufio.NewReader(c))
		if status != want && status != 408 { // the time for a head, on a busy machine
			t.Errorf("%s: have %d %s, want %d", path, status, body, want)
		}

		sending.Wait()
		c.Close()
	}
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first run only marks the pools' contents as old
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
