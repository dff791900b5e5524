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

// maxBatchBytes bounds the body of a batch, up to one more check of at most 64
// KiB. The node's bound is 8 MiB.
const maxBatchBytes = 4 << 20

// The stages of a call.
const (
	waiting   = int32(iota)
	sent      // its request is in progress or done
	abandoned // its caller gave up before it was sent
)

// call is a check in progress.
type call struct {
	body      []byte // JSON, an object
	headers   bool
	detail    bool
	countMode bool // in CountMode: the cost may be taken although the answer is no

	stage         atomic.Int32
	deadline      time.Time
	answersBefore int64         // Client.answers when the call began to wait
	sentAt        time.Time     // when it was taken off the queue; written before stage becomes sent
	done          chan struct{} // closed once decision and err are set
	decision      Decision
	err           error
}

// submit sends the check cl at once, or queues it to be sent together with others.
func (c *Client) submit(ctx context.Context, cl *call) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, context.Cause(ctx)
	}

	cl.deadline = time.Now().Add(c.options.Timeout)

	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return Decision{}, ErrClosed
	case c.inFlight < c.options.MaxInFlight:
		c.inFlight++
		c.running.Add(1)
		c.mu.Unlock()
		defer c.running.Done()
		defer c.endRequest()
		ctx, cancel := c.withTimeout(ctx)
		defer cancel()
		c.checkSingle(ctx, cl)
		return cl.decision, cl.err
	case len(c.queue) >= c.options.MaxQueue:
		c.mu.Unlock()
		return Decision{}, ErrQueueFull
	}

	cl.done, cl.answersBefore = make(chan struct{}), c.answers.Load()
	c.queue = append(c.queue, cl)
	c.running.Add(1)
	c.mu.Unlock()
	defer c.running.Done()

	return c.await(ctx, cl)
}

// await returns the answer to a check that another goroutine sends.
func (c *Client) await(ctx context.Context, cl *call) (Decision, error) {
	timer := time.NewTimer(time.Until(cl.deadline))
	defer timer.Stop()

	var err error
	select {
	case <-cl.done:
		if !errors.Is(cl.err, ErrTimeout) {
			return cl.decision, cl.err
		}
		err = cl.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = ErrTimeout
	case <-c.lifetime.Done():
		err = ErrClosed
	}

	if cl.stage.CompareAndSwap(waiting, abandoned) || cl.deadline.Sub(cl.sentAt) < c.options.Timeout/2 {
		err = c.starvedError(cl.answersBefore, err)
	}

	return Decision{}, err
}

// endRequest ends a request with checks, and starts the next one if checks are waiting.
func (c *Client) endRequest() {
	batch := c.takeBatch()
	if batch == nil {
		return
	}
	// This needs a new goroutine, because the caller already has its answer.
	c.running.Go(func() { // safe, because the caller's own call keeps Close waiting
		for ; batch != nil; batch = c.takeBatch() {
			c.sendBatch(batch)
		}
	})
}

// takeBatch takes the checks of the next request off the queue. If none are
// waiting, it returns nil and decrements inFlight.
func (c *Client) takeBatch() (batch []*call) {
	c.mu.Lock()
	defer c.mu.Unlock()

	taken := 0
	size := 0
	now := time.Now()
	for _, cl := range c.queue {
		if len(batch) == c.options.MaxBatch || size > maxBatchBytes {
			break
		}

		taken++
		cl.sentAt = now

		if !cl.stage.CompareAndSwap(waiting, sent) {
			continue
		}

		batch = append(batch, cl)
		size += len(cl.body)
	}

	rest := copy(c.queue, c.queue[taken:])
	clear(c.queue[rest:])

	c.queue = c.queue[:rest]
	if rest == 0 && cap(c.queue) > 1024 {
		c.queue = nil // release the memory of a burst
	}
	if batch == nil {
		c.inFlight--
	}

	return batch
}

// sendBatch makes one request for batch's checks.
func (c *Client) sendBatch(batch []*call) {
	// The latest deadline counts: a caller that gives up earlier must not end
	// the request of the others.
	last := batch[0].deadline
	for _, cl := range batch {
		if cl.deadline.After(last) {
			last = cl.deadline
		}
	}

	ctx, cancel := context.WithDeadlineCause(c.lifetime, last, ErrTimeout)
	defer cancel()

	if len(batch) == 1 {
		c.checkSingle(ctx, batch[0])
	} else {
		c.checkSeveral(ctx, batch)
	}

	for _, cl := range batch {
		close(cl.done)
	}
}

// checkSingle sends a check in a request of its own.
func (c *Client) checkSingle(ctx context.Context, cl *call) {
	r, err := c.ask(ctx, "/v1/check", cl.body, maxAnswer, retryAlways)
	if err != nil {
		cl.err = err
		return
	}
	cl.setAnswer(r)
}

// setAnswer sets cl's decision and error from the answer to a request of its own.
func (cl *call) setAnswer(r *reply) {
	var a answer
	cl.decision, cl.err = r.decision(&a, cl.countMode)
	if cl.err == nil && cl.headers {
		cl.decision.headers = headersOf(r.header)
	}
}

// decision parses the answer to a check or a reservation into a. countMode is
// set for a check in CountMode: its answer may be no with the status of an
// allowed check, and the cost is then taken.
func (rp *reply) decision(a *answer, countMode bool) (Decision, error) {
	switch rp.status {
	case http.StatusOK, http.StatusTooManyRequests:
	case http.StatusForbidden:
		// Any other code means an error, such as a token without the scope.
		p := rp.problem()
		if p.Code != CodeDenied {
			return Decision{}, p
		}
	default:
		return Decision{}, rp.problem()
	}

	err := rp.decode(a)
	var d Decision
	if err == nil {
		d, err = a.decision()
	}

	ok := rp.status == http.StatusOK
	d.Counted = ok && !d.Allowed && countMode
	if err == nil && ok != (d.Allowed || d.Counted) {
		err = fmt.Errorf("%w: status %d, and allowed is %t", ErrBadAnswer, rp.status, d.Allowed)
	}

	switch {
	case err == nil:
		return d, nil
	case !ok: // the answer is not a node's; include what it says
		err = fmt.Errorf("%w: %w", err, rp.problem())
	}

	return Decision{}, fmt.Errorf("%s: %w", rp.node.baseURL, err)
}

// checkSeveral sends the checks of a batch in one request.
func (c *Client) checkSeveral(ctx context.Context, batch []*call) {
	results, r, err := c.postBatch(ctx, batch)
	if err != nil {
		for _, cl := range batch {
			cl.err = err
		}
		return
	}

	style := r.header.Get(headerStyle)
	for i, cl := range batch {
		a := &results[i]
		if a.Error != nil {
			p := a.Error
			cl.err = &Error{Status: p.Status, Code: p.Code, Title: p.Title, Detail: p.Detail, Node: r.node.baseURL}
			continue
		}

		cl.decision, cl.err = a.decision()
		cl.decision.Counted = cl.err == nil && cl.countMode && !cl.decision.Allowed && !cl.decision.Denied()

		if cl.err == nil && cl.headers {
			cl.decision.MakeHeaders(strings.Contains(style, "ietf"),
				strings.Contains(style, "x-ratelimit"), strings.Contains(style, "reset-delta"))
			if !cl.detail {
				cl.decision.Limits = nil
			}
		}
	}
}

func (c *Client) postBatch(ctx context.Context, batch []*call) ([]answer, *reply, error) {
	size := len(`{"checks":[]}`)
	for _, cl := range batch {
		size += len(cl.body) + len(`,"detail":true,`)
	}

	body := append(make([]byte, 0, size), `{"checks":[`...)
	for _, cl := range batch {
		body = append(body, cl.body...)
		if cl.headers && !cl.detail { // request detail, to name all limits in the headers
			body = append(body[:len(body)-1], `,"detail":true}`...)
		}
		body = append(body, ',')
	}

	body = append(closeBracket(body, ']'), '}')
	r, err := c.ask(ctx, "/v1/check/batch", body, maxBatchAnswer, retryAlways)
	if err != nil {
		return nil, nil, err
	}
	if r.status != http.StatusOK {
		return nil, nil, r.problem()
	}

	all := struct {
		Results  []answer   `json:"results"`
		Refusals []*Refusal `json:"refusals"`
	}{Results: make([]answer, 0, len(batch))}
	if err := r.decode(&all); err != nil {
		return nil, nil, err
	}
	if len(all.Results) != len(batch) {
		return nil, nil, fmt.Errorf("%w: %s has %d results for %d checks", ErrBadAnswer,
			r.node.baseURL, len(all.Results), len(batch))
	}

	for i := range all.Results {
		r := &all.Results[i].Refusal
		if r.place != nil && 0 <= *r.place && *r.place < len(all.Refusals) {
			r.own = all.Refusals[*r.place]
		}
	}

	return all.Results, r, nil
}
