package httpd

import (
	"bufio"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/testca"
)

// A request that can be read in two ways is refused, or is the last on its
// connection. What follows it is never read as a request.
func TestFraming(t *testing.T) {
	n := startNode(t, nil)
	certFile, keyFile := testca.WritePair(t, t.TempDir(), "one")
	safe := startNode(t, func(c *apitest.Config) { c.CertFile, c.KeyFile = certFile, keyFile })
	for _, tt := range apitest.FramingCases {
		t.Run(tt.Name, func(t *testing.T) {
			t.Parallel()
			for _, pieces := range []int{1, 7, len(tt.Send) + len(apitest.Behind)} {
				if pieces == 7 || len(tt.Send) < 2000 {
					apitest.TryFraming(t, n.dial(t), tt, pieces)
				}
			}
			apitest.TryFraming(t, safe.dialTLS(t), tt, 1)
		})
	}
}

// readRequest is a request as a server has parsed it.
type readRequest struct{ method, target, body string }

// readers are two servers that record the requests that they parse: ours, and
// that of net/http as the reference.
type readers struct {
	data *Server
	std  *http.Server
	ln   *pipes
	mu   sync.Mutex // guards seen
	seen []readRequest
}

func newReaders(t testing.TB) *readers {
	r := &readers{data: startData(t, newFixed()), ln: newPipes()}
	r.data.fast = nil
	r.data.server.Handler = func(ctx *fasthttp.RequestCtx) {
		x := &exchange{}
		if e := r.data.readBody(ctx, x, 1<<16); e != nil {
			r.data.closeAfterAnswer(ctx)
			return
		}
		r.note(string(ctx.Method()), string(ctx.RequestURI()), x.request.body)
	}
	r.std = &http.Server{ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(nil, q.Body, 1<<16))
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			r.note(q.Method, q.RequestURI, body)
		})}
	done := make(chan error, 1)
	go func() { done <- r.std.Serve(r.ln) }()
	t.Cleanup(func() { r.std.Close(); <-done })
	return r
}

func (r *readers) note(method, target string, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, readRequest{method, target, string(body)})
}

// takeSeen returns what was recorded since the last call.
func (r *readers) takeSeen() []readRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

// readOurs returns the requests that the data plane's server reads in text.
func (r *readers) readOurs(t testing.TB, text string) []readRequest {
	one := r.data.wrap(track(t, r.data.conns, &canned{reads: []string{text}}))
	r.data.serve(one)
	return r.takeSeen()
}

// cannedOnce is a connection for net/http that signals when it is closed.
type cannedOnce struct {
	canned
	once   sync.Once
	closed chan struct{}
}

func (c *cannedOnce) Close() error                { c.once.Do(func() { close(c.closed) }); return nil }
func (c *cannedOnce) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing: net/http calls it from two goroutines.
func (c *cannedOnce) SetReadDeadline(time.Time) error { return nil }

// readTheirs returns the requests that net/http reads.
func (r *readers) readTheirs(text string) []readRequest {
	c := &cannedOnce{canned: canned{reads: []string{text}}, closed: make(chan struct{})}
	r.ln.ends <- c
	<-c.closed
	return r.takeSeen()
}

// checkAgreement fails unless net/http reads the same requests as our server.
func (r *readers) checkAgreement(t testing.TB, text string) {
	t.Helper()
	have, want := r.readOurs(t, text), r.readTheirs(text)
	if len(have) > len(want) || !slices.Equal(have, want[:len(have)]) {
		t.Errorf("%.2000q:\nours %.500q\nnet/http's %.500q", text, have, want)
	}
}

// Every request that our server reads, net/http reads as the same request: no
// bytes are a request to one and a body to the other.
func TestFramingAgreesWithNetHTTP(t *testing.T) {
	r := newReaders(t)
	for _, tt := range apitest.FramingCases {
		if strings.Contains(tt.Name, "asterisk") || strings.Contains(tt.Name, "more lines") {
			continue // net/http answers these itself
		}
		r.checkAgreement(t, tt.Send+apitest.Behind)
	}
}

// A chunked body whose last chunk never comes is incomplete.
func TestBodyThatIsCut(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, body := range []string{"", "e\r\n" + good[:5], "e\r\n" + good, "e\r\n" + good + "\r\n",
		"e\r\n" + good + "\r\n0\r\n", "e\r\n" + good + "\r\n0\r\nX: y\r\n"} {
		c := n.dial(t)
		if _, err := io.WriteString(c, post("/v1/check", body, "Transfer-Encoding: chunked")); err != nil {
			t.Fatal(err)
		}
		expect.NoError(t, c.(*net.TCPConn).CloseWrite())
		if status, text, closes := answer(t, bufio.NewReader(c)); status != 400 || !closes ||
			apitest.NoteCode([]byte(text)) != api.BadRequest {
			t.Errorf("%q: have %d %s, closes %v", body, status, text, closes)
		}
	}
}

func FuzzFraming(f *testing.F) {
	for _, tt := range apitest.FramingCases {
		f.Add(tt.Send + apitest.Behind)
	}
	f.Add("POST / HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
	r := newReaders(f)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "* HTTP/1") || strings.Contains(text, "Expect") {
			t.Skip("net/http answers these itself")
		}
		r.checkAgreement(t, text)
	})
}

// dialTLS opens a TLS connection to the data plane.
func (n *node) dialTLS(t testing.TB) net.Conn {
	return tls.Client(n.dial(t), &tls.Config{InsecureSkipVerify: true})
}
