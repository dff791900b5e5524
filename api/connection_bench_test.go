//go:build linux && !race

package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rlnode/rlnode/rules"
)

const plentyRules = `
version: 1
rules:
  - name: plenty
    key: [user]
    limits: [{limit: 10000, per: 1h, algorithm: token-bucket, burst: 1000000000}]
`

// endless is a connection that delivers the same requests again and again and discards the answers. The kernel is not
// involved.
type endless struct {
	canned
	requests [][]byte
	left     int
	sent     int64
}

func (c *endless) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	c.left--
	return copy(b, c.requests[c.left%len(c.requests)]), nil
}

func (c *endless) Write(b []byte) (int, error) {
	c.sent += int64(len(b))
	return len(b), nil
}

func (c *endless) SetReadDeadline(time.Time) error { return nil }

// endlessChecks returns checks of a thousand subjects, and a node that refuses none.
func endlessChecks(tb testing.TB) (*node, [][]byte) {
	n := startNode(tb, nil)
	doc, err := rules.Parse([]byte(plentyRules))
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := n.rules.use(doc); err != nil {
		tb.Fatal(err)
	}
	requests := make([][]byte, 1000)
	for i := range requests {
		requests[i] = []byte(post("/v1/check", fmt.Sprintf(`{"attributes":{"user":"key-%07d"}}`, i), "Content-Type: application/json"))
	}
	return n, requests
}

// serveEndless serves c.
func (s *dataServer) serveEndless(c *endless) error {
	one := s.conns.add(c)
	return errors.Join(s.server.ServeConn(one), one.Close())
}

func TestConnectionAllocatesNothing(t *testing.T) {
	n, requests := endlessChecks(t)
	const checks = 20_000
	set, header := manyTokens(maxTokens)
	n.API.tokens.set.Store(set)
	for i, r := range requests {
		requests[i] = bytes.Replace(r, []byte("Host:"), []byte("Authorization: "+header+"\r\nHost:"), 1)
	}
	for _, way := range []string{"quick", "the library's"} {
		if way != "quick" {
			n.API.data.conns.quick = nil
		}
		c := &endless{requests: requests, left: checks}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := n.API.data.serveEndless(c); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		// Allowed: the counters themselves, buffers, the date each second, and other activity of the process.
		if have := after.Mallocs - before.Mallocs; have > checks/4 {
			t.Errorf("%s: %d allocations for %d checks", way, have, checks)
		}
		if c.sent < 100*checks {
			t.Errorf("%s: only %d bytes were answered", way, c.sent)
		}
	}
}

// BenchmarkConnection measures what a check costs a server besides the kernel's part, next to a server on the same
// library that answers the same bytes without looking at the request. The processor time is that of the whole process.
func BenchmarkConnection(b *testing.B) {
	n, requests := endlessChecks(b)
	data := n.API.data
	resp, body := n.do(call{method: "POST", url: n.data + "/v1/check", body: string(bytes.SplitN(requests[0], []byte("\r\n\r\n"), 2)[1])})
	empty := emptyServer(resp.Header, body)
	empty.NoDefaultContentType = true
	quick := data.conns.quick
	set, header := manyTokens(maxTokens)
	carrying := make([][]byte, len(requests))
	for i, r := range requests {
		carrying[i] = bytes.Replace(r, []byte("Host:"), []byte("Authorization: "+header+"\r\nHost:"), 1)
	}
	for _, one := range []struct {
		name  string
		quick func(*connection, []byte) (bool, error)
		set   *tokenSet
		serve func(*endless) error
	}{
		{"empty", nil, nil, func(c *endless) error { return empty.ServeConn(net.Conn(c)) }},
		{"check by the library", nil, nil, data.serveEndless},
		{"check by the library, one of 10,000 tokens", nil, set, data.serveEndless},
		{"check", quick, nil, data.serveEndless},
		{"check, one of 10,000 tokens", quick, set, data.serveEndless},
	} {
		b.Run(one.name, func(b *testing.B) {
			data.conns.quick = one.quick
			c := &endless{requests: requests, left: b.N}
			n.API.tokens.set.Store(one.set)
			if one.set != nil {
				c.requests = carrying
			}
			b.ReportAllocs()
			used := processorTime(b)
			if err := one.serve(c); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(processorTime(b)-used)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(c.sent)/float64(b.N), "B-sent/op")
		})
	}
}

func processorTime(tb testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkQuickHead parses a request the quick way: one with an unknown head, and one with the same head as the last.
func BenchmarkQuickHead(b *testing.B) {
	one := []byte(post("/v1/check", plainCheck, "Content-Type: application/json", "User-Agent: me/1.0", "Accept: */*"))
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			if _, ok := parseQuick(one); !ok {
				b.Fatal("not taken")
			}
		}
	})
	b.Run("known", func(b *testing.B) {
		var h quickHead
		for b.Loop() {
			if _, ok := h.read(one); !ok {
				b.Fatal("not taken")
			}
		}
	})
}
