package httpd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
)

func TestSlots(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.MaxConnections = 64; apitest.TheirTokens(c) })
	apitest.CheckSlots(t, n.Data.Addr().String(), post("/v1/check", good), n.server.conns)
}

func TestStrangersGiveWay(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(c *apitest.Config) { c.MaxConnections = 64; apitest.TheirTokens(c) })
	apitest.CheckStrangers(t, n.Data.Addr().String(), post("/v1/check", good), n.server.conns)
}

// failing is a listener whose first Accepts fail.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
	}
	return f.Listener.Accept()
}

// The node keeps listening if the process temporarily can't open more files.
func TestListensOnWithoutFiles(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	s := start(handlersOf(newFixed()),
		&failing{ln, []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.EMFILE}},
		0)
	if status, _ := apitest.AskFrom(t, "127.0.0.1", ln.Addr().String(), opening); status != 200 {
		t.Errorf("have %d", status)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	s = start(handlersOf(newFixed()), &failing{ln, []error{errors.New("for a test")}}, 0)
	if err := s.Close(t.Context()); err == nil || !strings.Contains(err.Error(), "for a test") {
		t.Errorf("have %v", err)
	}
}

// drip sends text byte by byte until the connection ends, and discards the answer.
func drip(t testing.TB, c net.Conn, text string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, c); close(ended) }()
	for i := 0; ; i++ {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		if _, err := c.Write([]byte{text[i%len(text)]}); err != nil {
			<-ended
			return
		}
	}
}

// flood sends text again and again and reads a byte now and then, until the connection ends.
func flood(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Error(err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			_, _ = c.Read(make([]byte, 1)) // the writing side notices a closed connection
		}
	}
}

// The connection of every kind of slow caller is closed in bounded time.
func TestSlowCallersAreEnded(t *testing.T) {
	t.Parallel()
	const bound = 400 * time.Millisecond
	certFile, keyFile := testca.WritePair(t, t.TempDir(), "one")
	plain := func(c *apitest.Config) { c.ReadTimeout, c.Timeout = bound, bound }
	nodes := map[string]*node{
		"plain": startNode(t, plain),
		"TLS": startNode(t, func(c *apitest.Config) {
			c.ReadTimeout, c.Timeout, c.CertFile, c.KeyFile = bound, bound, certFile, keyFile
		}),
	}
	slowHead, slowBody := "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x",
		10_000), "POST /v1/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
	hello := "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
	many := strings.Repeat("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 1000)
	tests := []struct {
		name, node string
		admin      bool
		slow       func(net.Conn)
	}{
		{"says nothing", "plain", false, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
		{"head", "plain", false, func(c net.Conn) { drip(t, c, slowHead) }},
		{"body", "plain", false, func(c net.Conn) {
			_, _ = fmt.Fprintf(c, slowBody, "check")
			drip(t, c, " ")
		}},
		{"chunks", "plain", false, func(c net.Conn) {
			_, _ = io.WriteString(c, post("/v1/check", "", "Transfer-Encoding: chunked"))
			drip(t, c, "1\r\n \r\n")
		}},
		{"large body", "plain", false, func(c net.Conn) {
			_, _ = fmt.Fprintf(c, slowBody, "check/batch")
			drip(t, c, " ")
		}},
		{"body that is refused", "plain", false, func(c net.Conn) {
			_, _ = io.WriteString(c, "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n")
			drip(t, c, " ")
		}},
		{"idle", "plain", false, func(c net.Conn) { _, _ = io.WriteString(c, opening); _, _ = io.Copy(io.Discard, c) }},
		{"idle after a quick check", "plain", false, func(c net.Conn) {
			r := bufio.NewReader(c)
			for _, one := range []string{opening, fastPost(good)} {
				_, _ = io.WriteString(c, one)
				answer(t, r)
			}
			_, _ = io.Copy(io.Discard, c)
		}},
		{"no hello", "TLS", false, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
		{"slow hello", "TLS", false, func(c net.Conn) { drip(t, c, hello+strings.Repeat("\x00", 600)) }},

		{"says nothing", "plain", true, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
		{"head", "plain", true, func(c net.Conn) { drip(t, c, slowHead) }},
		{"body", "plain", true, func(c net.Conn) {
			_, _ = fmt.Fprintf(c, slowBody, "try")
			drip(t, c, " ")
		}},
		{"idle", "plain", true, func(c net.Conn) { _, _ = io.WriteString(c, opening); _, _ = io.Copy(io.Discard, c) }},
		{"reads nothing", "plain", true, func(c net.Conn) { flood(t, c, many) }},
		{"no hello", "TLS", true, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
		{"slow hello", "TLS", true, func(c net.Conn) { drip(t, c, hello+strings.Repeat("\x00", 600)) }},
	}
	// Only the node knows when it closed the connection of a caller that reads
	// nothing: the caller's kernel may never notice.
	for name, text := range map[string]string{
		"reads nothing": post("/v1/check/batch", longBatch(300)), "reads no fast answers": fastPost(good),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, plain)
			c := apitest.DialFrom(t, "127.0.0.1", n.Data.Addr().String())
			_ = c.SetDeadline(time.Time{})
			flooded := make(chan struct{})
			go func() { flood(t, c, text); close(flooded) }()
			apitest.Until(t, "the node serves the caller", func() bool { return n.open() > 0 })
			apitest.UntilWithin(t, time.Minute, "the caller is ended", func() bool { return n.open() == 0 })
			c.Close()
			<-flooded
		})
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.name, " ", tt.node, " ", tt.admin), func(t *testing.T) {
			t.Parallel()
			n := nodes[tt.node]
			addr := n.Data.Addr().String()
			if tt.admin {
				addr = n.Admin.Addr().String()
			}
			c := apitest.DialFrom(t, "127.0.0.1", addr)
			began := time.Now()
			_ = c.SetDeadline(began.Add(time.Minute))
			tt.slow(c)
			// A connection may linger for five seconds. The caller counts as slow only once
			// a flood has filled the kernel's buffers, which takes some more time on a busy
			// machine.
			if took := time.Since(began); took > 3*bound+25*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}
