package httpd

import (
	"bytes"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/api/codec"
)

// heldReply is a held-back answer with status 200. It keeps all its text in one piece, since there may be tens of
// thousands.
type heldReply struct {
	text []byte // header lines, then the body
	body int    // where the body begins
	from int    // where the body's delay begins
	to   int    // where the body goes on after it
	keep bool   // HTTP/1.0: the connection stays open only if the answer says so
}

// delayField precedes the delay in a body. It can't be part of a string, where its quotes would be escaped.
const delayField = `,"delay_ms":`

// newHeldReply copies x's answer.
func newHeldReply(x *exchange) heldReply {
	size := len(x.ContentType) + len(x.Body) + 64
	for i := range x.Headers {
		size += len(x.Headers[i].Name) + len(x.Headers[i].Value) + 4
	}
	b := make([]byte, 0, size)
	b = appendHeader(b, "Content-Type", []byte(x.ContentType))
	for i := range x.Headers {
		b = appendHeader(b, x.Headers[i].Name, x.Headers[i].Value)
	}
	r := heldReply{body: len(b)}
	r.text = append(b, x.Body...)
	if i := bytes.Index(x.Body, []byte(delayField)); i >= 0 {
		r.from = r.body + i
		for r.to = r.from + len(delayField); r.to < len(r.text) && r.text[r.to] != ',' && r.text[r.to] != '}'; {
			r.to++
		}
	}
	return r
}

func appendHeader(b []byte, name string, value []byte) []byte {
	b = append(append(b, name...), ": "...)
	return append(append(b, value...), "\r\n"...)
}

// append appends the answer in wire format as of now. If it was held for its full delay, the delay stays as it was and
// `waited` says that it is over. Otherwise the delay is the rest of it.
func (r *heldReply) append(b []byte, now time.Time, left time.Duration, closes bool) []byte {
	var room [64]byte
	delay := room[:0]
	if left > 0 {
		delay = codec.AppendInt(delay, delayField, codec.Millis(left))
	} else {
		delay = codec.AppendBool(append(delay, r.text[r.from:r.to]...), `,"waited":`, true)
	}
	b = append(b, "HTTP/1.1 200 OK\r\nDate: "...)
	b = now.UTC().AppendFormat(b, "Mon, 02 Jan 2006 15:04:05 GMT")
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(r.text)-r.body-(r.to-r.from)+len(delay)), 10)
	b = append(append(b, "\r\n"...), r.text[:r.body]...)
	switch {
	case closes:
		b = append(b, "Connection: close\r\n"...)
	case r.keep:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	b = append(append(b, "\r\n"...), r.text[r.body:r.from]...)
	return append(append(b, delay...), r.text[r.to:]...)
}
