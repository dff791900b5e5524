package apitest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rlnode/rlnode/api/framing"
)

// Behind follows the requests of FramingCases. It must not be read as a request of its own.
const Behind = "GET /healthz?behind HTTP/1.1\r\nHost: n\r\n\r\n"

// FramingCase is a request that two parsers may read differently, or one that is merely odd.
type FramingCase struct {
	Name   string
	Send   string
	Status []int // of the answers, in order
	Closes bool  // after the last
}

// good is a body that both planes take.
const good = `{"rule":"all"}`

const chunkedGood = "e\r\n" + good + "\r\n0\r\n\r\n"

// Post returns a request in wire format.
func Post(path, body string, headers ...string) string {
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

// buildRequest builds a request from its first line, header lines (with their line ends) and body.
func buildRequest(first, lines, body string) string {
	return first + lines + "\r\n" + body
}

// FramingCases are the cases, with requests to /v1/check.
var FramingCases = []FramingCase{
	{"length beside coding",
		Post("/v1/check", "0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 5"), []int{400},
		true},
	{"coding beside length",
		Post("/v1/check", "0\r\n\r\n", "Content-Length: 5", "Transfer-Encoding: chunked"), []int{400},
		true},
	{"two equal lengths", Post("/v1/check", good, "Content-Length: 14"), []int{400}, true},
	{"two lengths", Post("/v1/check", good, "Content-Length: 3"), []int{400}, true},
	{"two lengths in a line",
		Post("/v1/check", good, "Transfer-Encoding-: x", "Content-Length: 14, 14"), []int{400}, true},
	{"length with a sign", Post("/v1/check", good, "X-Transfer-Encoding: x", "Content-Length: +14"), []int{400}, true},
	{"length in hex", Post("/v1/check", good, "X-Transfer-Encoding: x", "Content-Length: 0xe"), []int{400}, true},
	{"length of nothing", Post("/v1/check", good, "X-Transfer-Encoding: x", "Content-Length:"), []int{400}, true},
	{"length over all numbers",
		Post("/v1/check", good, "X-Transfer-Encoding: x", "Content-Length: 18446744073709551630"),
		[]int{400}, true},
	{"identity", Post("/v1/check", "", "Transfer-Encoding: identity"), []int{400}, true},
	{"gzip, chunked", Post("/v1/check", chunkedGood, "Transfer-Encoding: gzip, chunked"), []int{400}, true},
	{"chunked twice",
		Post("/v1/check", chunkedGood, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
		[]int{400}, true},
	{"xchunked", Post("/v1/check", chunkedGood, "Transfer-Encoding: xchunked"), []int{400}, true},
	{"coding with a tab", Post("/v1/check", chunkedGood, "Transfer-Encoding:\tchunked"), []int{200}, false},
	{"coding with a vertical tab", Post("/v1/check", chunkedGood, "Transfer-Encoding: \x0bchunked"), []int{400}, true},
	{"chunked of HTTP/1.0",
		strings.Replace(Post("/v1/check", chunkedGood, "Transfer-Encoding: chunked",
			"Connection: keep-alive"), "1.1", "1.0", 1),
		[]int{400}, true},

	// A proxy sends many callers' requests over one connection: one caller's
	// request must not get the next one refused.
	{"the largest head before another",
		buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: "+strings.Repeat("x", framing.MaxHead-50)+"\r\n", ""),
		[]int{200}, false},

	{"bare LF behind the first line", buildRequest("GET /healthz HTTP/1.1\n", "Host: n\r\n", ""), []int{400}, true},
	{"bare LF behind a header", buildRequest("GET /healthz HTTP/1.1\r\n", "X: y\nHost: n\r\n", ""), []int{400}, true},
	{"bare LF at the end", "GET /healthz HTTP/1.1\r\nHost: n\r\n\n", []int{400}, true},
	{"bare LFs", "GET /healthz HTTP/1.0\n\n", []int{400}, true},
	{"bare CR in a value",
		buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: y\rContent-Length: 5\r\n", ""),
		[]int{400}, true},
	{"bare CR as an end", buildRequest("GET /healthz HTTP/1.1\r", "Host: n\r\n", ""), []int{400}, true},
	{"an empty line between", Post("/v1/check", good) + "\r\n" + Post("/v1/check", good), []int{200}, true},
	{"an empty line before", "\r\n" + buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\n", ""), nil, true},
	{"obs-fold", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: y\r\n z\r\n", ""), []int{400}, true},
	{"obs-fold of a length",
		buildRequest("POST /v1/check HTTP/1.1\r\n", "Host: n\r\nContent-Length:\r\n 14\r\n", good),
		[]int{400}, true},
	{"obs-fold at first", buildRequest("GET /healthz HTTP/1.1\r\n", " X: y\r\nHost: n\r\n", ""), []int{400}, true},

	{"NUL in a value", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: a\x00b\r\n", ""), []int{400}, true},
	{"control character in a value",
		buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: a\x01b\r\n", ""), []int{400}, true},
	{"DEL in a value", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: a\x7fb\r\n", ""), []int{400}, true},
	{"no ASCII in a value",
		buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX: a\xffb\r\n", ""), []int{200}, false},
	{"blank before a colon", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX : y\r\n", ""), []int{400}, true},
	{"blank before a length's colon",
		buildRequest("POST /v1/check HTTP/1.1\r\n", "Host: n\r\nContent-Length : 14\r\n", good),
		[]int{400}, true},
	{"blank in a name", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX Y: y\r\n", ""), []int{400}, true},
	{"no name", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\n: y\r\n", ""), []int{400}, true},
	{"no colon", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX\r\n", ""), []int{400}, true},
	{"control character in a name",
		buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nX\x01: y\r\n", ""), []int{400}, true},

	{"HTTP/0.9", "GET /healthz\r\n\r\n", []int{400}, true},
	{"HTTP/1.2", buildRequest("GET /healthz HTTP/1.2\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{400}, true},
	{"http/1.1", buildRequest("GET /healthz http/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"two blanks", buildRequest("GET  /healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"blank at the end", buildRequest("GET /healthz HTTP/1.1 \r\n", "Host: n\r\n", ""), []int{400}, true},
	{"tab in the first line", buildRequest("GET\t/healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"blank before the method", buildRequest(" GET /healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"control character in the target",
		buildRequest("GET /healthz\x01 HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"absolute form", buildRequest("GET http://n/healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{200}, false},
	{"absolute form of something else",
		buildRequest("GET ftp://n/healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"authority form", buildRequest("CONNECT n:443 HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"a tunnel where any method is taken",
		buildRequest("CONNECT /v1/auth/web HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"asterisk form", buildRequest("OPTIONS * HTTP/1.1\r\n", "Host: n\r\n", ""), []int{404}, false},
	{"asterisk of another method", buildRequest("GET * HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"no form", buildRequest("GET healthz HTTP/1.1\r\n", "Host: n\r\n", ""), []int{400}, true},
	{"method in odd case", "post" + Post("/v1/check", good)[4:], []int{405}, false},
	{"method of odd characters", "P(ST" + Post("/v1/check", good)[4:], []int{400}, true},
	{"no host", "GET /healthz HTTP/1.1\r\n\r\n", []int{400}, true},
	{"two hosts", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: n\r\nHost: m\r\n", ""), []int{400}, true},
	{"no name of a host", buildRequest("GET /healthz HTTP/1.1\r\n", "Host: a b\r\n", ""), []int{400}, true},
	{"no host of HTTP/1.0", "GET /healthz HTTP/1.0\r\n\r\n", []int{200}, true},
	{"HTTP/1.0 that expects",
		"POST /v1/check HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n" + good,
		[]int{200}, true},

	{"close, keep-alive", Post("/v1/check", good, "Connection: close, keep-alive"), []int{200}, true},
	{"keep-alive, close", Post("/v1/check", good, "Connection: keep-alive, Close"), []int{200}, true},
	{"Close", Post("/v1/check", good, "Connection: Close"), []int{200}, true},
	{"close, then keep-alive",
		Post("/v1/check", good, "Connection: close", "Connection: keep-alive"), []int{400}, true},
	{"Connection: content-length", Post("/v1/check", good, "Connection: content-length"), []int{400}, true},
	{"Connection: keep-alive, transfer-encoding",
		Post("/v1/check", chunkedGood, "Connection: keep-alive, transfer-encoding", "Transfer-Encoding: chunked"),
		[]int{400}, true},
	{"no list", Post("/v1/check", good, "Connection: keep alive"), []int{400}, true},
	{"a long list", Post("/v1/check", good, "Connection: "+strings.Repeat("te,", 3000)+"te"), []int{400}, true},
	{"an option that nobody knows", Post("/v1/check", good, "Connection: x-y"), []int{200}, true},
	{"an upgrade",
		Post("/v1/check", good, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c",
			"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"),
		[]int{200}, false},

	{"extension of a chunk",
		Post("/v1/check", "e;a=b;c=\"d\"\r\n"+good+"\r\n0;e\r\n\r\n", "Transfer-Encoding: chunked"),
		[]int{200}, false},
	{"extension with a bare LF",
		Post("/v1/check", "e;a\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400},
		true},
	{"extension with a bare CR",
		Post("/v1/check", "e;a\rb\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400},
		true},
	{"extension with a NUL",
		Post("/v1/check", "e;a\x00b\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		[]int{400}, true},
	{"blank behind a size",
		Post("/v1/check", "e \r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400},
		true},
	{"blank before a size",
		Post("/v1/check", " e\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400},
		true},
	{"size with 0x", Post("/v1/check", "0xe\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"size with a sign",
		Post("/v1/check", "-e\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400},
		true},
	{"size over all numbers",
		Post("/v1/check", "1000000000000000e\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
		[]int{400}, true},
	{"no size", Post("/v1/check", "\r\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"bare LF behind a size",
		Post("/v1/check", "e\n"+good+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"bare LF behind a chunk",
		Post("/v1/check", "e\r\n"+good+"\n0\r\n\r\n", "Transfer-Encoding: chunked"), []int{400}, true},
	{"trailer",
		Post("/v1/check", "e\r\n"+good+"\r\n0\r\nX: y\r\n\r\n", "Transfer-Encoding: chunked"),
		[]int{200}, false},
	{"trailer with a length",
		Post("/v1/check", "e\r\n"+good+"\r\n0\r\nContent-Length: 5\r\n\r\n", "Transfer-Encoding: chunked"),
		[]int{400}, true},
	{"trailer with bare LFs",
		Post("/v1/check", "e\r\n"+good+"\r\n0\r\nX: y\n\n", "Transfer-Encoding: chunked"), []int{400},
		true},
	{"trailer that folds",
		Post("/v1/check", "e\r\n"+good+"\r\n0\r\nX: y\r\n z\r\n\r\n", "Transfer-Encoding: chunked"),
		[]int{400}, true},
	{"more lines than data",
		Post("/v1/check",
			strings.Repeat("1;"+strings.Repeat("x", 200)+"\r\n \r\n", 200)+chunkedGood,
			"Transfer-Encoding: chunked"),
		[]int{400}, true},

	{"refused body", Post("/v1/check", strings.Repeat(Behind, 2000)), []int{413}, true},
	{"refused in a pipeline",
		Post("/v1/check", good) + Post("/v1/check", good, "Content-Length: 14"), []int{200, 400}, true},
}

// TryFraming sends a case's request over c in pieces, followed by another request.
func TryFraming(t *testing.T, c net.Conn, tt FramingCase, pieces int) {
	t.Helper()
	want, closes := tt.Status, tt.Closes
	text := tt.Send + Behind
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
		status, _, last := readAnswer(r)
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
		more, _ := io.ReadAll(r)
		if len(more) > 0 {
			t.Errorf("in %d pieces: there is more after the last answer: %q", pieces, more)
		}
	}

	c.Close()
	sender.Wait()
}

// readAnswer reads one answer; if the connection ends without one, status is 0.
func readAnswer(r *bufio.Reader) (status int, body string, closes bool) {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return 0, err.Error(), true
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), true
	}
	NoteCode(b)
	return resp.StatusCode, string(b), resp.Close
}
