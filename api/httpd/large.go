package httpd

import (
	"bytes"
	"net"

	"github.com/rlnode/rlnode/api"
)

// reply is an answer of more than FreeBytes while it is sent.
type reply struct {
	bytes.Reader
	api.Transfer
	body  []byte
	size  int64 // charged for body
	plane *plane
}

// send wraps body in a reply to be sent over conn, and returns a buffer to use in its place. body is charged with size
// bytes.
func (p *plane) send(body []byte, size int64, conn net.Conn) (r *reply, spare []byte) {
	r, ok := p.replies.Get().(*reply)
	if !ok {
		r = &reply{plane: p}
	}
	spare, r.body = r.body[:0], body
	r.Reset(body)
	r.size = size
	p.Budget.Begin(&r.Transfer, size, conn)
	return r, spare
}

// Close releases the reply, whether it was sent or not.
func (r *reply) Close() error {
	p, size := r.plane, r.size
	p.Budget.Finish(&r.Transfer)
	r.Reset(nil)
	r.body = api.Reuse(r.body)
	p.replies.Put(r)
	p.Budget.Give(size)
	return nil
}
