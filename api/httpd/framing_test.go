package httpd

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
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
	"github.com/rlnode/rlnode/internal/testca"
)

// behind follows test requests. It must not be read as a request of its own.
const behind = "GET /healthz?behind HTTP/1.1\r\nHost: n\r\n\r\n"

const chunkedGood = "e\r\n" + good + "\r\n0\r\n\r\n"

// buildRequest builds a request from its first line, header lines (with their line ends) and body.
func buildRequest(first, lines, body string) string { return first + lines + "\r\n" + body }

// framingTests are requests that two parsers may read differently, and some that are merely odd.
var framingTests = []struct {
	name   string
	send   string
	status []int // of the answers, in order
	closes bool  // after the last
}{
	{"length beside coding", post("/v1/check", "0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 5"), []int{400}, true},
	{"coding beside length", post("/v1/check", "0\r\n\r\n", "Content-Length: 5", "Transfer-Encoding: chunked"), []int{400}, true},
	{"two equal lengths", post("/v1/check", good, "Content-Length: 14"), []int{400}, true},
	{"two lengths", post("/v1/check", good, "Content-Length: 3"), []int{400}, true},
	{"two lengths in a line", post("/v1/check", good, "Transfer-Encoding-: x", "Content-Length: 14, 14"), []int{400}, true},
	{"length with a sign", post("/v1/check", good, "X-Transfer-Encoding: x", "Content-Length: +14"), []int{400}, true},
	{"length in hex", post("/v1/check", good, "X-Transfer-Encoding: x", "Content-Length: 0xe"), []int{400}, true},
	{"length of nothing", post("/v1/check", good, "X-Transfer-Encoding: x", "Content-Length:"), []int{400}, true},
	{"length over all numbers", post("/v1/check", good, "X-Transfer-Encoding: x", "Content-Length: 18446744073709551630"), []int{400}, true},
	{"identity", post("/v1/check", "", "Transfer-Encoding: identity"), []int{400}, true},
	{"gzip, chunked", post("/v1/check", chunkedGood, "Transfer-Encoding: gzip, chunked"), []int{400}, true},
	{"chunked twice", post("/v1/check", chunkedGood, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), []int{400}, true},
	{"xchunked", post("/v1/check", chunkedGood, "Transfer-Encoding: xchunked"), []int{400}, true},
	{"coding with a tab", post("/v1/check", chunkedGood, "Transfer-Encoding:\tchunked"), []int{200}, false},
	{"coding with a vertical tab", post("/v1/check", chunkedGood, "Transfer-Encoding: \x0bchunked"), []int{400}, true},
	{"chunked of HTTP/1.0", strings.Replace(post("/v1/check", chunkedGood, "Transfer-Encoding: chunked", "Connection: keep-alive"), "1.1", "1.0", 1), []int{400}, true},

	// A proxy sends many callers' requests over one connection: one caller's request must not get the next one refused.
	{"the largest head before another", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: "+strings.Repeat("x", dataHeaderBytes-50)+"\r\n", ""), []int{200}, false},

	{"bare LF behind the first line", buildRequest("GET /healthz HTTP/1.1\n", "Host: n\r\n", ""), []int{400}, true},
	{"bare LF behind a header", buildRequest("GET /healthz HTTP/1.1\r\n", "X: y\nHost: n\r\n", ""), []int{400}, true},
	{"bare LF at the end", "GET /healthz HTTP/1.1\r\nHost: n\r\n\n", []int{400}, true},
	{"bare LFs", "GET /healthz HTTP/1.0\n\n", []int{400}, true},
	{"bare CR in a value", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: y\rContent-Length: 5\r\n", ""), []int{400}, true},
	{"bare CR as an end", buildRequest("GET /healthz HTTP/1.1\r", "Host: n\r\n", ""), []int{400}, true},
	{"an empty line between", post("/v1/check", good) + "\r\n" + post("/v1/check", good), []int{200}, true},
	{"an empty line before", "\r\n" + buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\n", ""), nil, true},
	{"obs-fold", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: y\r\n z\r\n", ""), []int{400}, true},
	{"obs-fold of a length", buildRequest("POST /v1/check HTTP/1.1\r\n", "Host: n\r\nContent-Length:\r\n 14\r\n", good), []int{400}, true},
	{"obs-fold at first", buildRequest("GET /healthz HTTP/1.1\r\n", " X: y\r\nHost: n\r\n", ""), []int{400}, true},

	{"NUL in a value", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: a\x00b\r\n", ""), []int{400}, true},
	{"control character in a value", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: a\x01b\r\n", ""), []int{400}, true},
	{"DEL in a value", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: a\x7fb\r\n", ""), []int{400}, true},
	{"no ASCII in a value", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: a\xffb\r\n", ""), []int{200}, false},
	{"blank before a colon", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX : y\r\n", ""), []int{400}, true},
	{"blank before a length's colon", buildRequest("POST /v1/check HTTP/1.1\r\n", "Host: n\r\nContent-Length : 14\r\n", good), []int{400}, true},
	{"blank in a name", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX Y: y\r\n", ""), []int{400}, true},
	{"no name", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\n: y\r\n", ""), []int{400}, true},
	{"no colon", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX\r\n", ""), []int{400}, true},
	{"control character in a name", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX\x01: y\r\n", ""), []int{400}, true},

	{"HTTP/0.9", "GET /healthz\r\n\r\n", []int{400}, true},
	{"HTTP/1.2", buildRequest("GET /healthz HTTP/1.2\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{400}, true},
	{"http/1.1", buildRequest("GET /healthz http/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"two blanks", buildRequest("GET  /healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"blank at the end", buildRequest("GET /healthz HTTP/1.1 \r\n", "Host: n\r\n", ""), []int{400}, true},
	{"tab in the first line", buildRequest("GET\t/healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"blank before the method", buildRequest(" GET /healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"control character in the target", buildRequest("GET /healthz\x01 HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"absolute form", buildRequest("GET http://n/healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{200}, false},
	{"absolute form of something else", buildRequest("GET ftp://n/healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"authority form", buildRequest("CONNECT n:443 HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"a tunnel where any method is taken", buildRequest("CONNECT /v1/auth/web HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"asterisk form", buildRequest("OPTIONS * HTTP/1.1\r\n", "Host: n\r\n", ""), []int{404}, false},
	{"asterisk of another method", buildRequest("GET * HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"no form", buildRequest("GET healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"method in odd case", "post" + post("/v1/check", good)[4:], []int{405}, false},
	{"method of odd characters", "P(ST" + post("/v1/check", good)[4:], []int{400}, true},
	{"no host", "GET /healthz HTTP/1.1\r\n\r\n", []int{400}, true},
	{"two hosts", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nHost: m\r\n", ""), []int{400}, true},
	{"no name of a host", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: a b\r\n", ""), []int{400}, true},
	{"no host of HTTP/1.0", "GET /healthz HTTP/1.0\r\n\r\n", []int{200}, true},
	{"HTTP/1.0 that expects", "POST /v1/check HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n" + good, []int{200}, true},

	{"close, keep-alive", post("/v1/check", good, "Connection: close, keep-alive"), []int{200}, true},
	{"keep-alive, close", post("/v1/check", good, "Connection: keep-alive, Close"), []int{200}, true},
	{"Close", post("/v1/check", good, "Connection: Close"), []int{200}, true},
	{"close, then keep-alive", post("/v1/check", good, "Connection: close", "Connection: keep-alive"), []int{400}, true},
	{"Connection: content-length", post("/v1/check", good, "Connection: content-length"), []int{400}, true},
	{"Connection: keep-alive, transfer-encoding", post("/v1/check", chunkedGood, "Connection: keep-alive, transfer-encoding", "Transfer-Encoding: chunked"), []int{400}, true},
	{"no list", post("/v1/check", good, "Connection: keep alive"), []int{400}, true},
	{"a long list", post("/v1/check", good, "Connection: "+strings.Repeat("te,", 3000)+"te"), []int{400}, true},
	{"an option that nobody knows", post("/v1/check", good, "Connection: x-y"), []int{200}, true},
	{"an upgrade", post("/v1/check", good, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"), []int{200}, false},

	{"extension of a chunk", post("/v1/check", "e;a=b;c=\"d\"\r\n"+good+"\r\n0;e\r\n\r\n", "Transfer-Encoding: chunked"), []int{200}, false},
	{"extension with a bare LF", post("/v1/check", "e;a\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"extension with a bare CR", post("/v1/check", "e;a\rb\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"extension with a NUL", post("/v1/check", "e;a\x00b\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"blank behind a size", post("/v1/check", "e \r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"blank before a size", post("/v1/check", " e\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"size with 0x", post("/v1/check", "0xe\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"size with a sign", post("/v1/check", "-e\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"size over all numbers", post("/v1/check", "1000000000000000e\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"no size", post("/v1/check", "\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"bare LF behind a size", post("/v1/check", "e\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"bare LF behind a chunk", post("/v1/check", "e\r\n"+good+"\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"trailer", post("/v1/check", "e\r\n"+good+"\r\n0\r\nX: y\r\n\r\n", "Transfer-Encoding: chunked"), []int{200}, false},
	{"trailer with a length", post("/v1/check", "e\r\n"+good+"\r\n0\r\nContent-Length: 5\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"trailer with bare LFs", post("/v1/check", "e\r\n"+good+"\r\n0\r\nX: y\n\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"trailer that folds", post("/v1/check", "e\r\n"+good+"\r\n0\r\nX: y\r\n z\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"more lines than data", post("/v1/check", strings.Repeat("1;"+strings.Repeat("x", 200)+"\r\n \r\n", 200)+chunkedGood, "Transfer-Encoding: chunked"), []int{400}, true},

	{"refused body", post("/v1/check", strings.Repeat(behind, 2000)), []int{413}, true},
	{"refused in a pipeline", post("/v1/check", good) + post("/v1/check", good, "Content-Length: 14"), []int{200, 400}, true},
}

// A request that can be read in two ways is refused, or is the last on its connection. What follows it is never read as a
// request.
func TestFraming(t *testing.T) {
	n := startNode(t, nil)
	certFile, keyFile := testca.WritePair(t, t.TempDir(), "one")
	safe := startNode(t, func(c *apitest.Config) { c.CertFile, c.KeyFile = certFile, keyFile })
	for _, tt := range framingTests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, pieces := range []int{1, 7, len(tt.send) + len(behind)} {
				if pieces == 7 || len(tt.send) < 2000 {
					tryFraming(t, n.dial(t), tt.send, tt.status, tt.closes, pieces)
				}
			}
			tryFraming(t, safe.dialTLS(t), tt.send, tt.status, tt.closes, 1)
		})
	}
}

// tryFraming sends a test's request in pieces, followed by another request.
func tryFraming(t *testing.T, c net.Conn, send string, want []int, closes bool, pieces int) {
	t.Helper()
	text := send + behind
	size := (len(text) + pieces - 1) / pieces
	var sender sync.WaitGroup
	sender.Go(func() {
		for piece := range slices.Chunk([]byte(text), size) {
			if _, err := c.Write(piece); err != nil {
				return // the node has hung up
			}
		}
	})
	if !closes {
		want = append(slices.Clone(want), 200)
	}
	r := bufio.NewReader(c)
	var have []int
	for {
		status, _, last := answer(t, r)
		if status != 0 {
			have = append(have, status)
		}
		if status == 0 || last || len(have) > len(want) || !closes && len(have) == len(want) {
			break
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("in %d pieces: have %v, want %v", pieces, have, want)
	}
	if closes {
		if _, err := r.ReadByte(); err == nil {
			t.Errorf("in %d pieces: there is more after the last answer", pieces)
		}
	}
	c.Close()
	sender.Wait()
}

// readRequest is a request as a server has parsed it.
type readRequest struct{ method, target, body string }

// readers are two servers that record the requests that they parse: ours, and that of net/http as the reference.
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
			r.data.hangUp(ctx)
			return
		}
		r.note(string(ctx.Method()), string(ctx.RequestURI()), x.request.body)
	}
	r.std = &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
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
	_ = r.data.server.ServeConn(one) // an error shows in the answer
	if err := one.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
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

// Every request that our server reads, net/http reads as the same request: no bytes are a request to one and a body to the
// other.
func TestFramingAgreesWithNetHTTP(t *testing.T) {
	r := newReaders(t)
	for _, tt := range framingTests {
		if strings.Contains(tt.name, "asterisk") || strings.Contains(tt.name, "more lines") {
			continue // net/http answers these itself
		}
		r.checkAgreement(t, tt.send+behind)
	}
}

// A chunked body whose last chunk never comes is incomplete.
func TestBodyThatIsCut(t *testing.T) {
	t.Parallel()
	n := startNode(t, nil)
	for _, body := range []string{"", "e\r\n" + good[:5], "e\r\n" + good, "e\r\n" + good + "\r\n", "e\r\n" + good + "\r\n0\r\n", "e\r\n" + good + "\r\n0\r\nX: y\r\n"} {
		c := n.dial(t)
		if _, err := io.WriteString(c, post("/v1/check", body, "Transfer-Encoding: chunked")); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if status, text, closes := answer(t, bufio.NewReader(c)); status != 400 || !closes || apitest.NoteCode([]byte(text)) != api.BadRequest {
			t.Errorf("%q: have %d %s, closes %v", body, status, text, closes)
		}
	}
}

func FuzzFraming(f *testing.F) {
	for _, tt := range framingTests {
		f.Add(tt.send + behind)
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

// framing passes on the same bytes however the input is cut into pieces.
func TestFramingInPieces(t *testing.T) {
	for _, tt := range framingTests {
		text := tt.send + behind
		var whole framing
		want := whole.scan([]byte(text))
		for size := 1; size < 40; size++ {
			var f framing
			have := 0
			for piece := range slices.Chunk([]byte(text), size) {
				n := f.scan(piece)
				if have += n; n < len(piece) {
					break
				}
			}
			if f.err != whole.err {
				t.Fatalf("%s in pieces of %d: have %v, want %v", tt.name, size, f.err, whole.err)
			}
			// If a line is refused, the pieces before the one that completes it have already been passed on.
			if f.err == nil && have != want || have < want-1 || bytes.IndexByte([]byte(text[want:have+max(0, want-have)]), '\n') >= 0 {
				t.Fatalf("%s in pieces of %d: have %d bytes, want %d", tt.name, size, have, want)
			}
		}
	}
}

// BenchmarkFraming measures the framing of a typical head.
func BenchmarkFraming(b *testing.B) {
	one := []byte(post("/v1/check", plainCheck, "Content-Type: application/json", "User-Agent: me/1.0", "Accept: */*"))
	var f framing
	b.SetBytes(int64(len(one)))
	for b.Loop() {
		if f.scan(one) != len(one) {
			b.Fatal(f.err)
		}
	}
}

// dialTLS opens a TLS connection to the data plane.
func (n *node) dialTLS(t testing.TB) net.Conn {
	return tls.Client(n.dial(t), &tls.Config{InsecureSkipVerify: true})
}
