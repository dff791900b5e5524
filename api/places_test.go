package api

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
)

// dialFrom connects from a given loopback address.
func dialFrom(t testing.TB, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// askFrom sends a request on a connection of its own, and returns the answer's status and whether the connection closes
// after it.
func askFrom(t testing.TB, from, to, request string) (status int, closes bool) {
	t.Helper()
	c := dialFrom(t, from, to)
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	status, _, closes = answer(t, bufio.NewReader(c))
	return status, closes
}

// Strangers who hold all places, and keep taking spare ones, can't keep anyone from probing the node, on either plane.
// One address alone leaves a quarter of the places to others.
func TestPlaces(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	check, probe := post("/v1/check", good), "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
	look := "GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for _, plane := range []struct {
		name, addr, usual string
		conns             *connections
	}{
		{"data", n.DataAddr().String(), check, n.API.data.conns}, {"admin", n.AdminAddr().String(), look, n.API.admin.conns},
	} {
		c := plane.conns
		c.mu.Lock()
		c.places = newPlaces(64)
		most := c.places.most
		c.mu.Unlock()
		open := func(n int) func() bool { return func() bool { return c.openCount() == n } }
		gateway := most - most/4
		for range gateway {
			dialFrom(t, "127.0.0.1", plane.addr)
		}
		until(t, "an address has all it may", open(gateway))
		if status, closes := askFrom(t, "127.0.0.1", plane.addr, plane.usual); status != 503 || !closes {
			t.Errorf("%s: one more of the address: have %d, closes %v", plane.name, status, closes)
		}
		if status, closes := askFrom(t, "127.0.0.2", plane.addr, plane.usual); status != 200 || closes {
			t.Errorf("%s: another address: have %d, closes %v", plane.name, status, closes)
		}
		until(t, "those are closed", open(gateway))
		for i := range most - gateway {
			dialFrom(t, fmt.Sprintf("127.0.1.%d", i+1), plane.addr)
		}
		until(t, "all places are taken", open(most))
		for i := range 20 {
			from := fmt.Sprintf("127.0.2.%d", i+1)
			dialFrom(t, from, plane.addr) // it holds a spare place
			if status, closes := askFrom(t, from, plane.addr, probe); status != 200 || !closes {
				t.Errorf("%s: a probe: have %d, closes %v", plane.name, status, closes)
			}
			if status, closes := askFrom(t, from, plane.addr, plane.usual); status != 503 || !closes {
				t.Errorf("%s: what is no probe: have %d, closes %v", plane.name, status, closes)
			}
		}
		if have := c.beyond(); have != 61 {
			t.Errorf("%s: %d connections found no place, want 61", plane.name, have)
		}
		if have := c.openCount(); have > most+2 {
			t.Errorf("%s: %d connections are open, want at most %d", plane.name, have, most+1)
		}
	}
}

// All places are given back.
func TestPlacesComeBack(t *testing.T) {
	t.Parallel()
	p := newPlaces(128)
	var all []*connection
	for i := range 200 {
		c := &connection{address: addressOf(&net.TCPAddr{IP: net.IPv4(10, 0, 0, byte(i%3))})}
		if !p.take(c) {
			p.takeSpare(c)
		}
		all = append(all, c)
	}
	if p.taken != p.most || len(p.spare) != p.spares || p.most+p.spares != 128 {
		t.Errorf("have %d and %d taken of %d and %d", p.taken, len(p.spare), p.most, p.spares)
	}
	for _, c := range all {
		p.leave(c)
		p.leave(c)
	}
	if p.taken != 0 || len(p.spare) != 0 || len(p.of) != 0 {
		t.Errorf("have %d, %d, %v", p.taken, len(p.spare), p.of)
	}
	for have, want := range map[string]string{"2001:db8::1": "2001:db8::/64", "::ffff:192.0.2.1": "192.0.2.1/32", "fe80::1": "fe80::/64"} {
		if got := addressOf(&net.TCPAddr{IP: net.ParseIP(have), Zone: "x"}).String(); got != want {
			t.Errorf("%s: have %s, want %s", have, got, want)
		}
	}
}

// failing is a listener whose first Accepts fail.
type failing struct {
	net.Listener
	errs []error
}

func (l *failing) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
	}
	return l.Listener.Accept()
}

// A process that can't open more files for a while keeps listening.
func TestListensOnWithoutFiles(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serveData(newPlane(newFixed()), &failing{ln, []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.EMFILE}}, nil, 0)
	if status, _ := askFrom(t, "127.0.0.1", ln.Addr().String(), opening); status != 200 {
		t.Errorf("have %d", status)
	}
	if err := s.close(t.Context()); err != nil {
		t.Error(err)
	}
	s = serveData(newPlane(newFixed()), &failing{ln, []error{errors.New("for a test")}}, nil, 0)
	if err := s.close(t.Context()); err == nil || !strings.Contains(err.Error(), "for a test") {
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
			_, _ = c.Read(make([]byte, 1)) // its end shows on the writing side
		}
	}
}

// Every kind of slow caller is ended in bounded time.
func TestSlowCallersAreEnded(t *testing.T) {
	t.Parallel()
	const bound = 400 * time.Millisecond
	certFile, keyFile := writePair(t, t.TempDir(), "one")
	nodes := map[string]*node{
		"plain": startNode(t, func(c *Config) { c.ReadTimeout, c.slow = bound, bound }),
		"TLS":   startNode(t, func(c *Config) { c.ReadTimeout, c.slow, c.CertFile, c.KeyFile = bound, bound, certFile, keyFile }),
	}
	slowHead, slowBody := "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 10_000), "POST /v1/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
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
			for _, one := range []string{opening, quickPost(good)} {
				_, _ = io.WriteString(c, one)
				answer(t, r)
			}
			_, _ = io.Copy(io.Discard, c)
		}},
		{"reads nothing", "plain", false, func(c net.Conn) { flood(t, c, post("/v1/check/batch", longBatch(300))) }},
		{"reads no quick answers", "plain", false, func(c net.Conn) { flood(t, c, quickPost(good)) }},
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
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.name, " ", tt.node, " ", tt.admin), func(t *testing.T) {
			t.Parallel()
			n := nodes[tt.node]
			addr := n.DataAddr().String()
			if tt.admin {
				addr = n.AdminAddr().String()
			}
			c := dialFrom(t, "127.0.0.1", addr) // it gives up after ten seconds
			began := time.Now()
			tt.slow(c)
			// A connection whose body is refused lingers.
			if took := time.Since(began); took > 3*bound+lingerTime {
				t.Errorf("took %v", took)
			}
		})
	}
}
