package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

// unreadRules make a detailed answer long: 24 limits of 200 bytes and more.
func unreadRules() string {
	var b strings.Builder
	b.WriteString("version: 1\nrules:\n")
	for i := range 24 {
		fmt.Fprintf(&b,
			"  - {name: rule-of-many-%d, key: [user], limits: [{limit: 1000000, per: 1h, algorithm: token-bucket}]}\n",
			i)
	}
	return b.String()
}

// Callers that send batches with detail and never read take at most 128 MiB of
// the node's memory, or 64 KiB per connection if there are many. Half of that
// is used; the rest is what a busy machine has yet to collect. Meanwhile the
// node serves other callers and probes.
func TestCallersThatDoNotRead(t *testing.T) {
	t.Parallel()
	if raceDetector {
		t.Skip("measures the memory of the real thing")
	}
	s := start(t, t.TempDir(), "--rules", file(t, "rules.yaml", unreadRules()), "--usage-months", "0")
	ask := func(what, method, path, body string) {
		t.Helper()
		process.Eventually(t, what, func() bool {
			status, _, err := s.call(method, s.data+path, "", body)
			return err == nil && status == http.StatusOK
		})
	}
	small := `{"checks":[` + strings.Repeat(`{"attributes":{"user":"b"}},`, 99) + `{"attributes":{"user":"b"}}]}`
	ask("a batch", "POST", "/v1/check/batch", small)
	before := resident(t, s)
	body := `{"checks":[` + strings.Repeat(`{"attributes":{"user":"a"},"detail":true},`, 9999) + `{"attributes":{"user":"a"},"detail":true}]}`
	request := fmt.Sprintf("POST /v1/check/batch HTTP/1.1\r\nHost: n\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for _, callers := range []int{12, 1000} {
		var sent atomic.Int64
		for len(conns) < callers {
			c, err := net.Dial("tcp", strings.TrimPrefix(s.data, "http://"))
			expect.NoError(t, err)
			conns = append(conns, c)
			c.SetDeadline(time.Now().Add(30 * time.Second))
			go func() {
				io.WriteString(c, request) // the node may hang up
				sent.Add(1)
			}()
		}
		var most int64
		pace := time.NewTicker(50 * time.Millisecond)
		defer pace.Stop()
		for end := time.Now().Add(4 * time.Second); time.Now().Before(end); <-pace.C {
			ask("a probe", "GET", "/healthz", "")
			ask("a check", "POST", "/v1/check", `{"attributes":{"user":"b"}}`)
			ask("a batch", "POST", "/v1/check/batch", small)
			most = max(most, resident(t, s)-before)
		}
		t.Logf("%d callers that don't read: %d MB more", callers, most>>20)
		if bound := int64(128<<20 + callers*64<<10); most > bound {
			t.Errorf("%d callers that don't read take %d MB", callers, most>>20)
		}
	}
}
