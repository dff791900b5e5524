package httpd

import (
	"bytes"
	"net"

	"github.com/rlnode/rlnode/api"
)

// largeReply is an answer of more than UnchargedBytes that is being sent.
type largeReply struct {
	bytes.Reader
	api.Transfer
	body     []byte
	size     int64 // bytes charged to the budget for body
	handlers *handlers
}

// newLargeReply wraps body, for which size bytes are charged, in a reply that
// the library sends over conn. spare is an empty buffer to use in place of
// body.
func (h *handlers) newLargeReply(body []byte, size int64, conn net.Conn) (r *largeReply, spare []byte) {
	r, ok := h.replies.Get().(*largeReply)
	if !ok {
		r = &largeReply{handlers: h}
	}
	spare, r.body = r.body[:0], body
	r.Reset(body)
	r.size = size
	h.Budget.Begin(&r.Transfer, size, conn)
	return r, spare
}

// Close releases the reply and its charge, whether it was sent or not.
func (r *largeReply) Close() error {
	// Both are read before the reply goes back to the pool, where another answer
	// may take it.
	h := r.handlers
	size := r.size
	h.Budget.Finish(&r.Transfer)
	r.Reset(nil)
	r.body = api.Reuse(r.body)
	h.replies.Put(r)
	h.Budget.Give(size)
	return nil
}
