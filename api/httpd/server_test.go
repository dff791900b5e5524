package httpd

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
)

// dial opens a connection to the data plane.
func (n *node) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.Data.Addr().String())
	expect.NoError(t, err)
	expect.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	t.Cleanup(func() { c.Close() })
	return c
}

// post returns a request in wire format.
func post(path, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: n\r\n", path)
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	if !strings.Contains(strings.Join(headers, ""), "Transfer-Encoding") {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	return b.String() + "\r\n" + body
}

// answer reads one answer; if the connection ends without one, status is 0.
func answer(t testing.TB, r *bufio.Reader) (status int, body string, closes bool) {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return 0, err.Error(), true
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), true
	}
	apitest.NoteCode(b)
	return resp.StatusCode, string(b), resp.Close
}

const good = `{"rule":"all"}`

func TestWire(t *testing.T) {
	n := startNode(t, func(c *apitest.Config) { c.ReadTimeout = 300 * time.Millisecond })
	big := strings.Repeat("x", 1<<20)
	tests := []struct {
		name   string
		send   string
		status []int    // of the answers, in order
		code   api.Code // of the last
		closes bool     // after the last
	}{
		{"pipelined",
			post("/v1/check", good) + post("/v1/check", `{}`) + post("/v1/check/batch",
				`{"checks":[]}`) + post("/v1/check", good),
			[]int{200, 400, 200, 200}, "", false},
		{"chunked",
			post("/v1/check", "e\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked") + post("/v1/check", good),
			[]int{200, 200}, "", false},
		{"chunked in bytes",
			post("/v1/check", "1\r\n{\r\n1;x=y\r\n}\r\n0\r\nX-Last: x\r\n\r\n", "Transfer-Encoding: chunked"),
			[]int{400}, api.MissingKey, false},
		{"bad chunk", post("/v1/check", "zz\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
			[]int{400}, api.BadRequest, true},
		{"chunk without end", post("/v1/check", "2\r\n{}xx0\r\n\r\n", "Transfer-Encoding: chunked"),
			[]int{400}, api.BadRequest, true},
		{"huge chunk", post("/v1/check", "ffffffff\r\n"+big, "Transfer-Encoding: chunked"),
			[]int{413}, api.TooLarge, true},
		{"chunk of more than there are numbers",
			post("/v1/check", "fffffffffffffffffff\r\n", "Transfer-Encoding: chunked"), []int{400},
			api.BadRequest, true},
		{"body on a probe",
			"GET /healthz HTTP/1.1\r\nHost: n\r\nContent-Length: 5\r\n\r\nhello" + post("/v1/check", good),
			[]int{200, 200}, "", false},
		{"too large for a probe",
			"GET /healthz HTTP/1.1\r\nHost: n\r\nContent-Length: 1000000\r\n\r\n" + big[:100_000],
			[]int{413}, api.TooLarge, true},
		{"too large", post("/v1/check", big), []int{413}, api.TooLarge, true},
		{"too large, only announced",
			"POST /v1/check HTTP/1.1\r\nHost: n\r\nContent-Length: 100000000\r\nExpect: 100-continue\r\n\r\n",
			[]int{413}, api.TooLarge, true},
		{"asked for",
			"POST /v1/check HTTP/1.1\r\nHost: n\r\nContent-Length: 14\r\nExpect: 100-continue\r\n\r\n" + good,
			[]int{100, 200}, "", false},
		{"slow body", "POST /v1/check HTTP/1.1\r\nHost: n\r\nContent-Length: 14\r\n\r\n{\"rule\"",
			[]int{408}, api.Timeout, true},
		{"slow chunk", post("/v1/check", "5\r\n{\"ru", "Transfer-Encoding: chunked"), []int{408}, api.Timeout, true},
		{"slow large body",
			"POST /v1/check/batch HTTP/1.1\r\nHost: n\r\nContent-Length: 8000000\r\n\r\n" + big,
			[]int{408}, api.Timeout, true},
		{"slow headers", "POST /v1/check HTTP/1.1\r\nHost:", []int{408}, api.Timeout, true},
		{"headers too large", "POST /v1/check HTTP/1.1\r\nHost: n\r\nX: " + big + "\r\n\r\n",
			[]int{431}, api.HeadersTooLarge, true},
		{"many headers",
			"POST /v1/check HTTP/1.1\r\nHost: n\r\n" + strings.Repeat("X: y\r\n", 100_000) + "\r\n",
			[]int{431}, api.HeadersTooLarge, true},
		{"line too long", "POST /" + big + " HTTP/1.1\r\nHost: n\r\n\r\n", []int{431}, api.HeadersTooLarge, true},
		{"not HTTP", "hello\r\n\r\n", []int{400}, api.BadRequest, true},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", []int{400}, api.BadRequest, true},
		{"length twice", post("/v1/check", good, "Content-Length: 5"), []int{400}, api.BadRequest, true},
		{"length not a number", "POST /v1/check HTTP/1.1\r\nHost: n\r\nContent-Length: -5\r\n\r\n",
			[]int{400}, api.BadRequest, true},
		{"HTTP/1.0", "POST /v1/check HTTP/1.0\r\nContent-Length: 14\r\n\r\n" + good, []int{200}, "", true},
		{"no version of HTTP",
			"POST /v1/check HTTP/9.9\r\nHost: n\r\nContent-Length: 14\r\n\r\n" + good, []int{400},
			api.BadRequest, true},
		{"no length", "POST /v1/check HTTP/1.1\r\nHost: n\r\n\r\n", []int{400}, api.BadJSON, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := n.dial(t)
			sent := make(chan error, 1)
			go func() { _, err := io.WriteString(c, tt.send); sent <- err }()
			r := bufio.NewReader(c)
			var body string
			var closes bool
			for i, want := range tt.status {
				var have int
				have, body, closes = answer(t, r)
				if have != want {
					t.Fatalf("answer %d: have %d %s, want %d", i, have, body, want)
				}
			}
			if code := apitest.NoteCode([]byte(body)); code != tt.code {
				t.Errorf("have %s, want %q", body, tt.code)
			}
			expect.Equal(t, closes, tt.closes, "closes")
			if tt.closes {
				if _, err := r.ReadByte(); err == nil {
					t.Error("there is more after the last answer")
				}
			}
			c.Close()
			<-sent // an error shows in the answer
		})
	}
}

// Connections that end anywhere within a request leave nothing behind.
func TestHalfClosed(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	whole := post("/v1/check", good)
	for cut := range len(whole) {
		c := n.dial(t)
		if _, err := io.WriteString(c, whole[:cut]); err != nil {
			t.Fatal(err)
		}
		expect.NoError(t, c.(*net.TCPConn).CloseWrite())
		status, body, _ := answer(t, bufio.NewReader(c))
		if status != 0 && status != 400 {
			t.Errorf("cut at %d: have %d %s", cut, status, body)
		}
		c.Close()
	}
	apitest.Until(t, "no connection is open", func() bool { return n.open() == 0 })
}

// A body that was only announced costs what serving its request takes, and the
// bytes that have arrived are bounded in total.
func TestHeldBodiesAreBounded(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	n.server.handlers.Budget.Capacity = 4 << 20
	announced := "POST /v1/check/batch HTTP/1.1\r\nHost: n\r\nContent-Length: 8000000\r\n\r\n{"
	for range 50 {
		if _, err := io.WriteString(n.dial(t), announced); err != nil {
			t.Fatal(err)
		}
	}
	apitest.Until(t, "all connections are open", func() bool { return n.open() == 50 })
	apitest.Until(t, "all are charged for what serving them takes", func() bool {
		return n.server.handlers.Budget.Used() == 50*libraryConnMemory
	})
	resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: `{"checks":[` + strings.Repeat(" ", 6<<20) + `]}`})
	if resp.StatusCode != 503 || apitest.NoteCode([]byte(body)) != api.Overloaded {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
	apitest.Until(t, "the whole charge is given back", func() bool { return n.server.handlers.Budget.Used() == 0 })
	if resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check/batch",
		Body: `{"checks":[` + strings.Repeat(" ", 200<<10) + `]}`}); resp.StatusCode != 200 {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
}

func TestDrainingDecidesOnOpenConnections(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	c := n.dial(t)
	r := bufio.NewReader(c)
	ask := func() (int, bool) {
		if _, err := io.WriteString(c, post("/v1/check", good)); err != nil {
			t.Fatal(err)
		}
		status, _, closes := answer(t, r)
		return status, closes
	}
	ask()
	n.Drain()
	if status, closes := ask(); status != 200 || closes {
		t.Errorf("have %d, closes %v", status, closes)
	}
	// After a while answers close their connections.
	apitest.Until(t, "an answer closes its connection", func() bool {
		status, closes := ask()
		if status != 200 {
			t.Fatalf("have %d", status)
		}
		return closes
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	idle, silent, half := n.dial(t), n.dial(t), n.dial(t)
	if _, err := io.WriteString(idle, post("/v1/check", good)); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := answer(t, bufio.NewReader(idle)); status != 200 {
		t.Fatalf("have %d %s", status, body)
	}
	if _, err := io.WriteString(half, "POST /v1/check HTTP/1.1\r\nHost: n\r\nContent-Length: 5\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	apitest.Until(t, "half of the request has arrived", func() bool {
		_, heard := n.server.conns.Count()
		return heard == 2
	})
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	expect.ErrorIs(t, n.Close(ctx), context.DeadlineExceeded, "with a request under way")
	expect.ErrorIs(t, n.Close(context.Background()), context.DeadlineExceeded, "the second time")
	n.Closed = nil // for the cleanup
	for _, c := range []net.Conn{idle, silent, half} {
		if b, err := io.ReadAll(c); err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("have %q, %v", b, err)
		}
	}
	if _, err := net.Dial("tcp", n.Data.Addr().String()); err == nil {
		t.Error("the data plane still listens")
	}
	if _, err := net.Dial("tcp", n.Admin.Addr().String()); err == nil {
		t.Error("the admin plane still listens")
	}
}

// A node that was only opened closes at once.
func TestCloseAtOnce(t *testing.T) {
	t.Parallel()
	for range 20 {
		n := startNode(t, nil)
		began := time.Now()
		expect.NoError(t, n.Close(context.Background()))
		if took := time.Since(began); took > 2*time.Second {
			t.Fatalf("took %v", took)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for want, config := range map[string]Config{
		"open data plane: listen": {Addr: n.Data.Addr().String()},
		"ReadTimeout":             {Addr: "127.0.0.1:0", ReadTimeout: -1},
	} {
		if s, err := Open(n.Doors, config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, %v, want %q", s, err, want)
		}
	}
}

// A caller whose body is too large gets the answer, even if it reads only after sending everything.
func TestTooLargeIsReadable(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	const size = 100 << 20
	for _, tt := range []struct {
		name string
		head string
	}{
		{"announced", "Content-Length: " + strconv.Itoa(size)},
		{"chunked", "Transfer-Encoding: chunked"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := n.dial(t)
			if _, err := fmt.Fprintf(c, "POST /v1/check HTTP/1.1\r\nHost: n\r\n%s\r\n\r\n", tt.head); err != nil {
				t.Fatal(err)
			}
			piece := bytes.Repeat([]byte("x"), 1<<16)
			if tt.name == "chunked" {
				piece = append([]byte("10000\r\n"), append(piece, "\r\n"...)...)
			}
			for sent := 0; sent < size; sent += 1 << 16 {
				if _, err := c.Write(piece); err != nil {
					t.Fatalf("after %d bytes: %v", sent, err)
				}
			}
			if status, body, _ := answer(t, bufio.NewReader(c)); status != 413 {
				t.Errorf("have %d %s", status, body)
			}
		})
	}
}

func TestTLSOnBothPlanes(t *testing.T) {
	t.Parallel()
	certFile, keyFile := testca.WritePair(t, t.TempDir(), "one")
	n := startNode(t, func(c *apitest.Config) { c.CertFile, c.KeyFile = certFile, keyFile })
	n.Client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	for _, c := range []apitest.Call{
		{Method: "POST", URL: n.DataURL + "/v1/check", Body: good},
		{Method: "GET", URL: n.AdminURL + "/healthz"}, {Method: "GET", URL: n.DataURL + "/readyz"},
	} {
		if resp, body := n.Do(c); resp.StatusCode != 200 || resp.ProtoMajor != 1 {
			t.Errorf("%s: have %d %s: %s", c.URL, resp.StatusCode, resp.Proto, body)
		}
	}
	if resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check",
		Body: strings.Repeat(" ", 20<<20)}); resp.StatusCode != 413 {
		t.Errorf("have %d %s", resp.StatusCode, body)
	}
	// Neither plain HTTP nor a caller that never sends a ClientHello may hang the node.
	c := n.dial(t)
	if _, err := io.WriteString(c, post("/v1/check", good)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("plain HTTP: %v", err)
	}
	n.dial(t)
}

// A caller that sends far ahead takes turns with others.
func TestAheadTakesTurns(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	apitest.TakesTurns(t, n.server, n.dial(t), "GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n")
}
