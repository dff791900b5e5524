package main

import (
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/valyala/fasthttp"
)

// answerTask makes a worker that answers every request with the same bytes: the
// cost of a server on the same library that decides nothing.
type answerTask struct {
	Address     string
	ContentType string
	Headers     [][2]string // except those that the library writes
	Body        string
}

// serveAnswer is that worker. The library reads each request whole, including
// its body, which the worker ignores.
func serveAnswer(c *conversation) error {
	var task answerTask
	if ok, err := c.next(&task); !ok {
		return err
	}

	ln, err := net.Listen("tcp", task.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}

	server := &fasthttp.Server{
		Handler:               task.handler(),
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()

	if err := c.answer("listening"); err != nil {
		return err
	}

	_, _ = io.Copy(io.Discard, c.r) // until the bench closes it
	_ = ln.Close()
	return <-served
}

func (t *answerTask) handler() fasthttp.RequestHandler {
	type header struct{ name, value []byte }
	var headers []header
	for _, h := range t.Headers {
		headers = append(headers, header{[]byte(h[0]), []byte(h[1])})
	}

	body := []byte(t.Body)
	return func(ctx *fasthttp.RequestCtx) {
		if !ctx.IsPost() || len(ctx.PostBody()) == 0 {
			ctx.SetStatusCode(fasthttp.StatusBadRequest)
			return
		}
		ctx.Response.Header.SetContentType(t.ContentType)
		for i := range headers {
			ctx.Response.Header.SetCanonical(headers[i].name, headers[i].value)
		}
		ctx.Response.SetBodyRaw(body)
	}
}

// answerLike returns a task whose worker answers like a given server.
func answerLike(address string, header map[string][]string, body []byte) answerTask {
	t := answerTask{Address: address, Body: string(body)}
	for name, values := range header {
		switch name {
		case "Date", "Content-Length":
		case "Content-Type":
			t.ContentType = values[0]
		default:
			t.Headers = append(t.Headers, [2]string{name, values[0]})
		}
	}
	slices.SortFunc(t.Headers, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	return t
}
