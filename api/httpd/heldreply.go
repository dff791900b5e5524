package httpd

import (
	"bytes"
	"strconv"
	"time"

	"github.com/rlnode/rlnode/api/codec"
)

// heldReply is the text of a held-back answer with status 200. It is one
// allocation, because there may be tens of thousands.
type heldReply struct {
	text       []byte // header lines, then the body
	bodyStart  int    // where the body begins
	delayStart int    // where the field delay_ms begins
	delayEnd   int    // where it ends
	keepAlive  bool   // send Connection: keep-alive, which HTTP/1.0 needs to keep the connection open
}

// delayField precedes the delay in a body. No string in the body can contain
// it, because its quotes would be escaped.
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

	r := heldReply{bodyStart: len(b)}
	r.text = append(b, x.Body...)
	if i := bytes.Index(x.Body, []byte(delayField)); i >= 0 {
		r.delayStart = r.bodyStart + i
		// The value is a number, so it ends before a comma or a brace.
		for r.delayEnd = r.delayStart + len(delayField); r.delayEnd < len(r.text) &&
			r.text[r.delayEnd] != ',' && r.text[r.delayEnd] != '}'; {
			r.delayEnd++
		}
	}

	return r
}

func appendHeader(b []byte, name string, value []byte) []byte {
	b = append(append(b, name...), ": "...)
	return append(append(b, value...), "\r\n"...)
}

// append appends the answer in wire format. date is for the Date header. left is
// the rest of the delay. If it is 0, the answer has the original delay_ms, and
// waited: true; otherwise its delay_ms is left.
func (r *heldReply) append(b, date []byte, left time.Duration, closes bool) []byte {
	var room [64]byte
	delay := room[:0]
	if left > 0 {
		delay = codec.AppendInt(delay, delayField, codec.Millis(left))
	} else {
		delay = codec.AppendBool(append(delay, r.text[r.delayStart:r.delayEnd]...), `,"waited":`, true)
	}

	b = append(b, "HTTP/1.1 200 OK\r\nDate: "...)
	b = append(b, date...)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(r.text)-r.bodyStart-(r.delayEnd-r.delayStart)+len(delay)), 10)
	b = append(append(b, "\r\n"...), r.text[:r.bodyStart]...)
	switch {
	case closes:
		b = append(b, "Connection: close\r\n"...)
	case r.keepAlive:
		b = append(b, "Connection: keep-alive\r\n"...)
	}

	b = append(append(b, "\r\n"...), r.text[r.bodyStart:r.delayStart]...)
	return append(append(b, delay...), r.text[r.delayEnd:]...)
}
