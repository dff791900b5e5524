package httpd

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/api/framing"
)

// The fast path handles the common case: a plain POST /v1/check, or a batch,
// that arrived in one piece. It answers the request as soon as it is read, and
// the library never sees it. Any other input goes to the library unchanged. The
// fast path never rejects a request as malformed; its only errors are those of
// a check or a batch.

// fastPaths are the paths that the fast path can answer.
var fastPaths = [...]string{"/v1/check", "/v1/check/batch"}

// fastRequest is a request that the fast path can answer. Its fields point into the input.
type fastRequest struct {
	path          string // one of fastPaths
	authorization []byte
	body          []byte
	tokenCache    *api.TokenCache // caches the token of the remembered head; nil: the head is not remembered
}

// maxFastHead is the size in bytes up to which a connection remembers the last head.
const maxFastHead = 1 << 10

// fastHead is the last head that parseFast has accepted on a connection.
// Requests on one connection mostly have the same head, which then need not be
// parsed again.
type fastHead struct {
	text       []byte
	path       string
	from, to   int // the Authorization header's value within text
	body       int // the length of the body that follows
	tokenCache api.TokenCache
}

// read is parseFast, except that it recognises the last head.
func (h *fastHead) read(b []byte) (r fastRequest, ok bool) {
	n := len(h.text)
	if n > 0 && len(b) == n+h.body && bytes.Equal(b[:n], h.text) {
		// The head has the body's length in it. The same head and as many bytes
		// after it are one complete request again.
		return fastRequest{path: h.path, authorization: b[h.from:h.to], body: b[n:], tokenCache: &h.tokenCache}, true
	}

	r, ok = parseFast(b)
	if ok && len(b)-len(r.body) <= maxFastHead {
		h.text = append(h.text[:0], b[:len(b)-len(r.body)]...)
		h.body = len(r.body)
		h.path = r.path
		h.tokenCache = api.TokenCache{}
		r.tokenCache = &h.tokenCache

		// The head contains the value. If it has the same bytes somewhere else, too,
		// either place will do.
		h.from = bytes.Index(h.text, r.authorization)
		h.to = h.from + len(r.authorization)
	}

	return r, ok
}

// parseFast parses b as exactly one complete request of the plainest form. It
// reports false for anything else, valid or not.
func parseFast(b []byte) (r fastRequest, ok bool) {
	rest, ok := r.readLine(b)
	length := 0
	hosts := 0
	tokens := 0
	connectionHeaders := 0

	for ok {
		if bytes.HasPrefix(rest, []byte("\r\n")) {
			r.body = rest[2:]
			break
		}

		var name, value []byte
		name, value, rest, ok = fastHeader(rest)
		if !ok {
			break
		}

		// Headers of the same length share a case: sec-fetch-site with
		// content-length, and origin with expect. A request with a header that marks
		// pages goes to the library, so that fromPage sees it.
		switch len(name) {
		case len("host"):
			if framing.IsName(name, "host") {
				hosts++
				ok = plainHost(value)
			}
		case len("content-length"):
			if framing.IsName(name, "content-length") {
				ok = length == 0 && fastLength(value) > 0
				length = fastLength(value)
			} else {
				ok = !framing.IsName(name, "sec-fetch-site")
			}
		case len("authorization"):
			if framing.IsName(name, "authorization") {
				tokens++
				r.authorization = value
			}
		case len("connection"):
			if framing.IsName(name, "connection") {
				connectionHeaders++
				ok = connectionHeaders == 1 && string(value) == "keep-alive"
			}
		case len("expect"):
			ok = !framing.IsName(name, "expect") && !framing.IsName(name, "origin")
		case len("trailer"):
			ok = !framing.IsName(name, "trailer")
		case len("transfer-encoding"):
			ok = !framing.IsName(name, "transfer-encoding")
		}
	}

	return r, ok && hosts == 1 && tokens < 2 && length > 0 && length == len(r.body)
}

// readLine reads the request's first line and returns the rest of b.
func (r *fastRequest) readLine(b []byte) (rest []byte, ok bool) {
	line, rest, ok := bytes.Cut(b, []byte("\r\n"))
	line, post := bytes.CutPrefix(line, []byte("POST "))
	line, version := bytes.CutSuffix(line, []byte(" HTTP/1.1"))
	if !ok || !post || !version {
		return nil, false
	}

	for _, path := range fastPaths {
		if string(line) == path {
			r.path = path
			return rest, true
		}
	}

	return nil, false
}

// fastHeader splits off the first line of b, a header: a name of letters,
// digits and dashes, and a value of printable ASCII without surrounding blanks.
func fastHeader(b []byte) (name, value, rest []byte, ok bool) {
	i := 0
	for i < len(b) && (b[i] == '-' || '0' <= b[i] && b[i] <= '9' || 'a' <= b[i]|0x20 && b[i]|0x20 <= 'z') {
		i++
	}

	if i == 0 || i+1 >= len(b) || b[i] != ':' || b[i+1] != ' ' {
		return nil, nil, nil, false
	}

	from := i + 2
	to := from
	for to < len(b) && ' ' <= b[to] && b[to] <= '~' {
		to++
	}

	if to+1 >= len(b) || b[to] != '\r' || b[to+1] != '\n' || to > from && (b[from] == ' ' || b[to-1] == ' ') {
		return nil, nil, nil, false
	}

	return b[:i], b[from:to], b[to+2:], true
}

// fastLength parses a number of at most five digits without leading zeros. It
// returns 0 for anything else.
func fastLength(value []byte) (n int) {
	if len(value) > 5 || len(value) > 0 && value[0] == '0' {
		return 0
	}
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// plainHost reports whether value is a name or an IPv4 address, optionally with a port.
func plainHost(value []byte) bool {
	for i, c := range value {
		switch {
		case c == '.', c == '-', '0' <= c && c <= '9', 'a' <= c|0x20 && c|0x20 <= 'z':
		case c == ':' && i > 0:
			return fastLength(value[i+1:]) > 0
		default:
			return false
		}
	}
	return len(value) > 0
}

// mayWait reports whether body may have a field wait, possibly spelled with
// escapes. The answer may then have to be held back, for which the library must
// handle the request.
func mayWait(body []byte) bool {
	return bytes.IndexByte(body, '\\') >= 0 || bytes.Contains(body, []byte("wait"))
}

// serveFast answers the input b of c if it is a plain check or batch. It
// reports false if the library must handle b.
func (s *Server) serveFast(c *connection, b []byte) (done bool, err error) {
	r, ok := c.head.read(b)
	if !ok || c.ProbesOnly || mayWait(r.body) || s.handlers.ClosesConnections() {
		return false, nil
	}
	// This comes before the decision. Otherwise the cost would be taken for an
	// answer that a displaced connection can't send.
	if !c.BeginAnswer() {
		return true, net.ErrClosed
	}

	x := s.handlers.getExchange()
	defer s.handlers.putExchange(x)
	s.decideFast(c, x, r)

	closes := x.mustClose || c.closesAfterAnswer()
	_ = c.SetWriteDeadline(x.began.Add(s.server.WriteTimeout)) // only records it, so it can't fail

	if err := s.sendFast(c, x, closes); err != nil {
		return true, err
	}
	if closes {
		return true, io.EOF
	}

	c.BeginWait(x.began)
	return true, c.SetReadDeadline(x.began.Add(c.IdleTimeout(s.server.IdleTimeout)))
}

// decideFast decides r, a request on c, and puts the answer into x.
func (s *Server) decideFast(c *connection, x *exchange, r fastRequest) {
	// The exchange's own buffer comes back before the answer is charged: the charge
	// must not count the input, which belongs to the connection.
	ownBuffer := x.request.body
	defer func() { x.request.body = ownBuffer }()

	x.began = time.Now()
	x.method = "POST"
	x.path = r.path
	x.request.body = r.body
	x.authorization = codec.UnsafeString(r.authorization)
	x.tokenCache = r.tokenCache
	x.conn = c.Connection

	route, refusal := s.handlers.admit(x)
	if refusal != nil {
		x.SetError(refusal)
		return
	}
	s.handlers.serve(route, x)
}

// maxOneWrite is the size in bytes up to which a body is copied behind its
// head, to send both in one write.
const maxOneWrite = 32 << 10

// sendFast writes x's answer to c.
func (s *Server) sendFast(c *connection, x *exchange, closes bool) error {
	x.wireAnswer = s.appendHead(x.wireAnswer[:0], x, closes)
	if len(x.Body) <= maxOneWrite {
		x.wireAnswer = append(x.wireAnswer, x.Body...)
	}

	if !s.handlers.charge(x) {
		// The large buffers are dropped: there is no room for them.
		x.Body = nil
		x.SetError(s.handlers.Budget.FullError())
		x.wireAnswer = append(s.appendHead(nil, x, closes), x.Body...)
	}

	if len(x.Body) > api.UnchargedBytes { // the caller may be slow to read it
		s.handlers.Budget.Begin(&x.transfer, x.charged, c)
		defer s.handlers.Budget.Finish(&x.transfer)
	}

	_, err := c.Write(x.wireAnswer)
	if err == nil && len(x.Body) > maxOneWrite {
		_, err = c.Write(x.Body)
	}

	return err
}

// appendHead appends the status line and headers of x's answer as the library would write them.
func (s *Server) appendHead(b []byte, x *exchange, closes bool) []byte {
	if x.Status == 200 {
		b = append(b, "HTTP/1.1 200 OK\r\nDate: "...)
	} else {
		b = strconv.AppendInt(append(b, "HTTP/1.1 "...), int64(x.Status), 10)
		b = append(append(append(b, ' '), fasthttp.StatusMessage(x.Status)...), "\r\nDate: "...)
	}

	b = append(b, s.date.at(x.began)...)
	b = append(append(b, "\r\nContent-Type: "...), x.ContentType...)
	b = strconv.AppendInt(append(b, "\r\nContent-Length: "...), int64(len(x.Body)), 10)
	b = append(b, "\r\n"...)
	for i := range x.Headers {
		b = appendHeader(b, x.Headers[i].Name, x.Headers[i].Value)
	}

	if closes {
		b = append(b, "Connection: close\r\n"...)
	}

	return append(b, "\r\n"...)
}

// dateHeader caches the value of the Date header for one second.
type dateHeader struct{ last atomic.Pointer[dateText] }

type dateText struct {
	second int64
	text   []byte
}

func (d *dateHeader) at(now time.Time) []byte {
	second := now.Unix()
	if t := d.last.Load(); t != nil && t.second == second {
		return t.text
	}
	// Several goroutines may make the text of a new second at once; all are the
	// same.
	t := &dateText{second: second, text: now.UTC().AppendFormat(nil, "Mon, 02 Jan 2006 15:04:05 GMT")}
	d.last.Store(t)
	return t.text
}
