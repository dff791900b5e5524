package httpd

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/api/apitest"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/internal/expect"
)

// BenchmarkLoopback measures a check over a connection, compared to a server on
// the same library that sends as many bytes without reading, deciding or
// encoding anything. Only the ratio is meaningful.
func BenchmarkLoopback(b *testing.B) {
	const check = `{"attributes":{"kind":"all","tenant":"acme","plan":"x"},"peek":false}`
	request := []byte(post("/v1/check", check))
	n := startNode(b, nil)
	resp, body := n.Do(apitest.Call{Method: "POST", URL: n.DataURL + "/v1/check", Body: `{"rule":"all"}`})
	run := func(name, address string) {
		b.Run(name, func(b *testing.B) { sendLoad(b, address, request) })
	}
	empty := startEmpty(b, resp.Header, body)
	run("empty", empty)
	run("check", n.Data.Addr().String())
	many := []byte(post("/v1/check/batch",
		`{"checks":[`+string(bytes.Repeat([]byte(`{"rule":"all"},`), 99))+`{"rule":"all"}]}`))
	b.Run("batch of 100", func(b *testing.B) { sendLoad(b, n.Data.Addr().String(), many) })
}

// startEmpty starts a server that gives every request the same answer.
func startEmpty(b *testing.B, header http.Header, body string) (address string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(b, err)
	s := emptyServer(header, body)
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	b.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			b.Error(err)
		}
		<-done
	})
	return ln.Addr().String()
}

// emptyServer gives all requests the same answer.
func emptyServer(header http.Header, body string) *fasthttp.Server {
	var names, values [][]byte
	for name := range header {
		if name != "Date" && name != "Content-Length" && name != "Content-Type" {
			names, values = append(names, []byte(name)), append(values, []byte(header.Get(name)))
		}
	}
	text := []byte(body)
	return &fasthttp.Server{NoDefaultServerHeader: true, Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.Response.Header.SetContentType(codec.TypeJSON)
		for i := range names {
			ctx.Response.Header.SetCanonical(names[i], values[i])
		}
		ctx.Response.SetBodyRaw(text)
	}}
}

// sendLoad sends request b.N times in all, over 32 connections.
func sendLoad(b *testing.B, address string, request []byte) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var group sync.WaitGroup
	for range 32 {
		c, err := net.Dial("tcp", address)
		expect.NoError(b, err)
		group.Go(func() {
			defer c.Close()
			r := bufio.NewReaderSize(c, 64<<10)
			for left.Add(-1) >= 0 {
				if _, err := c.Write(request); err != nil {
					b.Error(err)
					return
				}
				if err := readReply(r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// readReply reads an answer of status 200.
func readReply(r *bufio.Reader) error {
	length := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.Contains(line, []byte(" 200 ")) {
			return fmt.Errorf("have %s", line)
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			for _, d := range bytes.TrimSpace(value) {
				length = length*10 + int(d-'0')
			}
		}
		if len(line) <= 2 {
			_, err := io.CopyN(io.Discard, r, int64(length))
			return err
		}
	}
}
