package admin

import (
	"bytes"
	"context"
	"net/http"
	"sync"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
)

// A large answer of the admin plane is charged to the budget until it is sent,
// because its caller may read it slowly or not at all.

// answerWriter writes an answer, and charges its large parts to the budget.
type answerWriter struct {
	http.ResponseWriter
	server *Server
	conn   *api.Connection
	begun  bool // the status is sent
}

// Unwrap is for http.ResponseController.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader sends the status and the headers.
func (a *answerWriter) WriteHeader(status int) {
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (a *answerWriter) Write(b []byte) (int, error) {
	if len(b) <= api.UnchargedBytes {
		a.begun = true
		return a.ResponseWriter.Write(b)
	}

	var sent api.Transfer
	budget := &a.server.doors.Budget
	if !budget.Hold(&sent, int64(len(b)), a.conn) {
		e := budget.FullError()
		if !a.begun {
			a.begun = true
			a.Header().Set("Content-Type", codec.TypeProblem)
			a.ResponseWriter.WriteHeader(e.Status())
			_, _ = a.ResponseWriter.Write(codec.AppendProblem(nil, e)) // an error changes nothing
		}
		return 0, e
	}

	defer budget.Release(&sent)

	a.begun = true
	return a.ResponseWriter.Write(b)
}

// page makes an answer that takes work, and that many callers may ask for at
// once. Callers that ask while one is being made all get the next one. At most
// one is being made at a time.
type page struct {
	make func() ([]byte, http.Header, int)
	turn sync.Mutex // held while a page is being made

	mu   sync.Mutex // guards next
	next *madePage  // the one to be made next; nil: nobody waits for it
}

// madePage is a page, once done is closed.
type madePage struct {
	done   chan struct{}
	body   []byte
	header http.Header
	status int
}

// get returns a page that was made after the call began.
func (p *page) get(ctx context.Context) (*madePage, error) {
	p.mu.Lock()
	mine := p.next
	first := mine == nil
	if first {
		mine = &madePage{done: make(chan struct{})}
		p.next = mine
	}
	p.mu.Unlock()

	if first {
		p.turn.Lock()
		defer p.turn.Unlock()
		p.mu.Lock()
		p.next = nil // a caller that asks from here on needs a newer one
		p.mu.Unlock()

		// This is deferred, so that waiting callers do not hang if make panics.
		defer close(mine.done)
		mine.body, mine.header, mine.status = p.make()
		return mine, nil
	}

	select {
	case <-mine.done:
		return mine, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// recorder is a ResponseWriter that keeps the answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) { r.status = status }

// Write implements http.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
