//go:build linux && !race

package httpd

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/rules/document"
)

const plentyRules = `
version: 1
rules:
  - name: plenty
    key: [user]
    limits: [{limit: 10000, per: 1h, algorithm: token-bucket, burst: 1000000000}]
  - name: none-left
    key: [device]
    limits: [{limit: 1, per: 24h, algorithm: token-bucket}]
`

// endless is an in-memory connection that delivers the same requests over and
// over and discards the answers.
type endless struct {
	canned
	requests [][]byte
	left     int
	sent     int64
}

func (e *endless) Read(b []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	e.left--
	return copy(b, e.requests[e.left%len(e.requests)]), nil
}

func (e *endless) Write(b []byte) (int, error) {
	e.sent += int64(len(b))
	return len(b), nil
}

func (e *endless) SetReadDeadline(time.Time) error { return nil }

// endlessChecks returns checks of a thousand subjects, and a node that allows all of them.
func endlessChecks(tb testing.TB, change func(*apitest.Config)) (*node, [][]byte) {
	n := startNode(tb, change)
	doc, err := document.Parse([]byte(plentyRules))
	expect.NoError(tb, err)
	if _, err := n.Rules.Use(doc); err != nil {
		tb.Fatal(err)
	}
	requests := make([][]byte, 1000)
	for i := range requests {
		requests[i] = []byte(post("/v1/check", fmt.Sprintf(`{"attributes":{"user":"key-%07d"}}`, i),
			"Content-Type: application/json"))
	}
	return n, requests
}

// inlineRequests returns requests like those of endlessChecks, but with inline
// limits instead of a rule.
func inlineRequests(n int) [][]byte {
	requests := make([][]byte, n)
	for i := range requests {
		requests[i] = []byte(post("/v1/check",
			fmt.Sprintf(`{"key":"key-%07d","limits":[{"limit":1000000000,"per":"1h","algorithm":"token-bucket"}]}`, i), "Content-Type: application/json"))
	}
	return requests
}

// replaceInAll returns the requests with one text replaced by another, and Content-Length adjusted.
func replaceInAll(requests [][]byte, from, to string) [][]byte {
	all := make([][]byte, len(requests))
	for i, r := range requests {
		_, body, _ := strings.Cut(string(r), "\r\n\r\n")
		all[i] = []byte(post("/v1/check", strings.Replace(body, from, to, 1), "Content-Type: application/json"))
	}
	return all
}

// batchRequests returns requests for batches of a hundred of these checks each, drawn evenly.
func batchRequests(checks [][]byte) [][]byte {
	random := rand.New(rand.NewPCG(1, 2))
	requests := make([][]byte, 50)
	for i := range requests {
		bodies := make([]string, 100)
		for j := range bodies {
			_, body, _ := strings.Cut(string(checks[random.IntN(len(checks))]), "\r\n\r\n")
			bodies[j] = body
		}
		requests[i] = []byte(post("/v1/check/batch", `{"checks":[`+strings.Join(bodies, ",")+`]}`,
			"Content-Type: application/json"))
	}
	return requests
}

// manyTokens gives a node ten thousand tokens, and returns an Authorization
// header with one of them.
func manyTokens(tb testing.TB) (change func(*apitest.Config), header string) {
	var lines []string
	text := ""
	for i := range 10_000 {
		text = fmt.Sprintf("rlt_%043d", i)
		lines = append(lines, apitest.TokenEntry(fmt.Sprint("t", i), text, "check"))
	}
	file := apitest.TokensFile(tb, lines...)
	return func(c *apitest.Config) { c.TokensFile = file }, "Bearer " + text
}

// serveEndless serves c.
func (s *Server) serveEndless(t testing.TB, c *endless) error {
	one := s.wrap(track(t, s.conns, c))
	s.serve(one)
	return nil
}

// A connection that waits for its next request holds little, whatever it has sent before.
func TestWaitingConnectionsHoldLittle(t *testing.T) {
	const connections, most = 400, 12 << 10 // the caller's end in this process included
	head := "X: " + strings.Repeat("x", 15_000) + "\r\n"
	n := startNode(t, nil)
	for name, request := range map[string]string{
		"small": fastPost(good), "by the library": opening,
		"a large head": strings.Replace(opening, "Host", head+"Host", 1),
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		open := n.open()
		var all []net.Conn
		for range connections {
			c := n.dial(t)
			all = append(all, c)
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
			if status, body, _ := answer(t, bufio.NewReaderSize(c, 512)); status != 200 {
				t.Fatalf("got %d %s", status, body)
			}
		}
		if got := n.open() - open; got != connections {
			t.Fatalf("%s: %d connections are open, want %d", name, got, connections)
		}
		for range 4 { // pools keep what they have for two collections, and stacks shrink by half with each
			runtime.GC()
		}
		runtime.ReadMemStats(&after)
		held := int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)
		t.Logf("%s: %d bytes a connection", name, held/connections)
		if held > connections*most {
			t.Errorf("%s: %d bytes a connection, want at most %d", name, held/connections, most)
		}
		for _, c := range all {
			c.Close()
		}
		apitest.Until(t, "the connections are closed", func() bool { return n.open() == open })
	}
}

func TestConnectionAllocatesNothing(t *testing.T) {
	const checks = 20_000
	change, header := manyTokens(t)
	n, requests := endlessChecks(t, change)
	for i, r := range requests {
		requests[i] = bytes.Replace(r, []byte("Host:"), []byte("Authorization: "+header+"\r\nHost:"), 1)
	}
	for _, way := range []string{"quick", "with its limit", "the library's"} {
		c := &endless{requests: requests, left: checks}
		switch way {
		case "with its limit":
			c.requests = inlineRequests(len(requests))
			for i, r := range c.requests {
				c.requests[i] = bytes.Replace(r, []byte("Host:"), []byte("Authorization: "+header+"\r\nHost:"), 1)
			}
		case "the library's":
			n.server.fast = nil
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		expect.NoError(t, n.server.serveEndless(t, c))
		runtime.ReadMemStats(&after)
		// Some allocations are expected: the counters, buffers, the date each second,
		// and other activity of the process.
		if have := after.Mallocs - before.Mallocs; have > checks/4 {
			t.Errorf("%s: %d allocations for %d checks", way, have, checks)
		}
		if c.sent < 100*checks {
			t.Errorf("%s: the answers have only %d bytes", way, c.sent)
		}
	}
}

// BenchmarkConnection measures what a check costs a server apart from the
// kernel, compared to a server on the same library that answers the same bytes
// without looking at the request. It reports the processor time of the whole
// process.
func BenchmarkConnection(b *testing.B) {
	n, requests := endlessChecks(b, nil)
	change, header := manyTokens(b)
	guarded, _ := endlessChecks(b, change)
	resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check",
		Body: string(bytes.SplitN(requests[0], []byte("\r\n\r\n"), 2)[1])})
	empty := emptyServer(resp.Header, body)
	empty.NoDefaultContentType = true
	carrying := make([][]byte, len(requests))
	for i, r := range requests {
		carrying[i] = bytes.Replace(r, []byte("Host:"), []byte("Authorization: "+header+"\r\nHost:"), 1)
	}
	for _, one := range []struct {
		name     string
		server   *Server // nil: empty
		quick    bool
		requests [][]byte
	}{
		{"empty", nil, false, requests},
		{"check by the library", n.server, false, requests},
		{"check by the library, one of 10,000 tokens", guarded.server, false, carrying},
		{"check", n.server, true, requests},
		{"check, one of 10,000 tokens", guarded.server, true, carrying},
		{"check, refused", n.server, true, replaceInAll(requests, `"user"`, `"device"`)},
		{"check with its limit", n.server, true, inlineRequests(len(requests))},
		{"batch of 100 by the library", n.server, false, batchRequests(requests)},
		{"batch of 100", n.server, true, batchRequests(requests)},
		{"batch of 100 with their limits", n.server, true, batchRequests(inlineRequests(len(requests)))},
	} {
		b.Run(one.name, func(b *testing.B) {
			serve := func(c *endless) error { return empty.ServeConn(net.Conn(c)) }
			if s := one.server; s != nil {
				s.fast = nil
				if one.quick {
					s.fast = s.serveFast
				}
				serve = func(c *endless) error { return s.serveEndless(b, c) }
			}
			c := &endless{requests: one.requests, left: b.N}
			b.ReportAllocs()
			used := processorTime(b)
			expect.NoError(b, serve(c))
			b.ReportMetric(float64(processorTime(b)-used)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(c.sent)/float64(b.N), "B-sent/op")
		})
	}
}

func processorTime(tb testing.TB) time.Duration {
	var u unix.Rusage
	expect.NoError(tb, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFastHead parses a request on the fast path: one with an unknown
// head, and one with the same head as the last.
func BenchmarkFastHead(b *testing.B) {
	one := []byte(post("/v1/check", plainCheck, "Content-Type: application/json", "User-Agent: me/1.0", "Accept: */*"))
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			if _, ok := parseFast(one); !ok {
				b.Fatal("not taken")
			}
		}
	})
	b.Run("known", func(b *testing.B) {
		var h fastHead
		for b.Loop() {
			if _, ok := h.read(one); !ok {
				b.Fatal("not taken")
			}
		}
	})
}
