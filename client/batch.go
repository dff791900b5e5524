package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// maxBatchBytes bounds the body of a batch, below the node's 8 MiB; a single check is under 64 KiB.
const maxBatchBytes = 4 << 20

// stage is where a call is.
const (
	waiting   = int32(iota)
	sent      // its request has been made, or is being
	abandoned // by its caller, before that
)

// call is a check under way.
type call struct {
	body    []byte // JSON, an object
	headers bool
	detail  bool

	stage    atomic.Int32
	deadline time.Time
	answers  int64         // of nodes, when it began to wait
	sent     time.Time     // when its turn came; written before stage says so
	done     chan struct{} // closed when decision and err are there
	decision Decision
	err      error
}

// submit makes call's request, at once or with others.
func (c *Client) submit(ctx context.Context, q *call) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, context.Cause(ctx)
	}
	q.deadline = time.Now().Add(c.options.Timeout)
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return Decision{}, ErrClosed
	case c.inFlight < c.options.MaxInFlight:
		c.inFlight++
		c.work.Add(1)
		c.mu.Unlock()
		defer c.work.Done()
		defer c.release()
		ctx, cancel := c.within(ctx)
		defer cancel()
		c.single(ctx, q)
		return q.decision, q.err
	case len(c.queue) >= c.options.MaxQueue:
		c.mu.Unlock()
		return Decision{}, ErrQueueFull
	}
	q.done, q.answers = make(chan struct{}), c.answers.Load()
	c.queue = append(c.queue, q)
	c.work.Add(1)
	c.mu.Unlock()
	defer c.work.Done()
	return c.await(ctx, q)
}

// await returns the answer to a call that others make.
func (c *Client) await(ctx context.Context, q *call) (Decision, error) {
	timer := time.NewTimer(time.Until(q.deadline))
	defer timer.Stop()
	var err error
	select {
	case <-q.done:
		if !errors.Is(q.err, ErrTimeout) {
			return q.decision, q.err
		}
		err = q.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = ErrTimeout
	case <-c.life.Done():
		err = ErrClosed
	}
	if q.stage.CompareAndSwap(waiting, abandoned) || q.deadline.Sub(q.sent) < c.options.Timeout/2 {
		err = c.starved(q.answers, err)
	}
	return Decision{}, err
}

// release ends one request, and begins the next where checks wait for it.
func (c *Client) release() {
	batch := c.next()
	if batch == nil {
		return
	}
	// Not in the caller's goroutine: it has its answer.
	c.work.Add(1) // Close still waits for this one
	go func() {
		defer c.work.Done()
		for ; batch != nil; batch = c.next() {
			c.send(batch)
		}
	}()
}

// next takes the checks of the next request off the queue; nil, and there is one request less, when none wait.
func (c *Client) next() (batch []*call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken, size, now := 0, 0, time.Now()
	for _, q := range c.queue {
		if len(batch) == c.options.MaxBatch || size > maxBatchBytes {
			break
		}
		taken++
		q.sent = now
		if !q.stage.CompareAndSwap(waiting, sent) {
			continue
		}
		batch = append(batch, q)
		size += len(q.body)
	}
	rest := copy(c.queue, c.queue[taken:])
	clear(c.queue[rest:])
	if c.queue = c.queue[:rest]; rest == 0 && cap(c.queue) > 1024 {
		c.queue = nil // what a rush needed
	}
	if batch == nil {
		c.inFlight--
	}
	return batch
}

// send makes a request of batch's checks.
func (c *Client) send(batch []*call) {
	last := batch[0].deadline
	for _, q := range batch {
		if q.deadline.After(last) {
			last = q.deadline
		}
	}
	ctx, cancel := context.WithDeadlineCause(c.life, last, ErrTimeout)
	defer cancel()
	if len(batch) == 1 {
		c.single(ctx, batch[0])
	} else {
		c.several(ctx, batch)
	}
	for _, q := range batch {
		close(q.done)
	}
}

// single asks a check by itself.
func (c *Client) single(ctx context.Context, q *call) {
	r, err := c.ask(ctx, "/v1/check", q.body, maxAnswer, repeat)
	if err != nil {
		q.err = err
		return
	}
	var a answer
	if q.decision, q.err = r.decision(&a); q.err == nil && q.headers {
		q.decision.headers = headersOf(r.header)
	}
}

// decision reads the answer to a check or a reservation into a.
func (r *reply) decision(a *answer) (Decision, error) {
	if r.status != http.StatusOK && r.status != http.StatusTooManyRequests {
		return Decision{}, r.problem()
	}
	err := r.decode(a)
	var d Decision
	if err == nil {
		d, err = a.decision()
	}
	if err == nil && d.Allowed != (r.status == http.StatusOK) {
		err = fmt.Errorf("%w: status %d, and allowed is %t", ErrBadAnswer, r.status, d.Allowed)
	}
	switch {
	case err == nil:
		return d, nil
	case r.status != http.StatusOK: // whatever has answered: it refuses
		err = fmt.Errorf("%w: %w", err, r.problem())
	}
	return Decision{}, fmt.Errorf("%s: %w", r.node.base, err)
}

// several asks the checks of a batch together.
func (c *Client) several(ctx context.Context, batch []*call) {
	results, r, err := c.askBatch(ctx, batch)
	if err != nil {
		for _, q := range batch {
			q.err = err
		}
		return
	}
	style := r.header.Get(headerStyle)
	for i, q := range batch {
		a := &results[i]
		if a.Error != nil {
			p := a.Error
			q.err = &Error{Status: p.Status, Code: p.Code, Title: p.Title, Detail: p.Detail, Node: r.node.base}
			continue
		}
		if q.decision, q.err = a.decision(); q.err == nil && q.headers {
			q.decision.MakeHeaders(strings.Contains(style, "ietf"), strings.Contains(style, "x-ratelimit"), strings.Contains(style, "reset-delta"))
			if !q.detail {
				q.decision.Limits = nil
			}
		}
	}
}

func (c *Client) askBatch(ctx context.Context, batch []*call) ([]answer, *reply, error) {
	size := len(`{"checks":[]}`)
	for _, q := range batch {
		size += len(q.body) + len(`,"detail":true,`)
	}
	body := append(make([]byte, 0, size), `{"checks":[`...)
	for _, q := range batch {
		body = append(body, q.body...)
		if q.headers && !q.detail { // headers name the limits
			body = append(body[:len(body)-1], `,"detail":true}`...)
		}
		body = append(body, ',')
	}
	body = append(end(body, ']'), '}')
	r, err := c.ask(ctx, "/v1/check/batch", body, maxBatchAnswer, repeat)
	if err != nil {
		return nil, nil, err
	}
	if r.status != http.StatusOK {
		return nil, nil, r.problem()
	}
	all := struct {
		Results []answer `json:"results"`
	}{make([]answer, 0, len(batch))}
	if err := r.decode(&all); err != nil {
		return nil, nil, err
	}
	if len(all.Results) != len(batch) {
		return nil, nil, errors.Join(fmt.Errorf("%w: %s has %d results for %d checks", ErrBadAnswer, r.node.base, len(all.Results), len(batch)))
	}
	return all.Results, r, nil
}
