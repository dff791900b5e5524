package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	firstPause = 250 * time.Millisecond // how long a node is skipped after its first failure
	lastPause  = 5 * time.Second        // after many failures

	maxAnswer      = 1 << 20  // bytes of the answer to one check
	maxBatchAnswer = 64 << 20 // the node's own bound
)

// condition is the believed state of a node.
type condition int

const (
	well    condition = iota
	failing           // it refuses connections or answers 5xx: asked only if no other is left
	silent            // it does not answer in time: not asked
)

// node is one of Options.Nodes.
type node struct {
	base string

	mu        sync.Mutex // guards the rest
	condition condition
	failures  int  // consecutive
	watched   bool // a goroutine probes it until it is well
}

func (n *node) is() condition {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.condition
}

// answered records that n is well.
func (n *node) answered() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.condition, n.failures = well, 0
}

// failed records what is wrong with n, and starts to watch it.
func (c *Client) failed(n *node, how condition, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.condition = how
	n.failures = min(n.failures+1, 16)
	if n.watched {
		return
	}
	// Start the watcher under n's lock, so that the next caller sees watched set.
	if c.spawn(func() { c.watch(n) }) {
		n.watched = true
		c.options.Logger.Warn("node is passed over", "node", n.base, "error", err)
	}
}

// watch probes n's readiness, with growing pauses, until it is ready.
func (c *Client) watch(n *node) {
	for {
		n.mu.Lock()
		rest := min(firstPause<<max(n.failures-1, 0), lastPause) // 0 if a call already in flight has been answered since
		if n.condition == well {
			rest = 0 // a call found it well
		}
		n.mu.Unlock()
		if rest > 0 && !pause(c.life, rest) {
			return
		}
		if rest == 0 || c.ready(n) {
			n.mu.Lock()
			// Keep failures until n answers a check: a node that is ready but decides nothing is probed less often.
			n.condition, n.watched = well, false
			n.mu.Unlock()
			c.options.Logger.Info("node is asked again", "node", n.base)
			return
		}
		n.mu.Lock()
		n.failures = min(n.failures+1, 16)
		n.mu.Unlock()
	}
}

func (c *Client) ready(n *node) bool {
	ctx, cancel := context.WithTimeout(c.life, c.options.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, n.base+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := c.http.Do(r)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer)) // drain it, to reuse the connection
	return response.StatusCode == http.StatusOK
}

// choose returns the first untried node that is well, else one that fails fast; -1 if there is none. more reports
// whether another one would remain after it.
func (c *Client) choose(tried []bool) (at int, more bool) {
	at = -1
	for _, want := range [...]condition{well, failing} {
		for i, n := range c.nodes {
			if tried[i] || i == at || n.is() != want {
				continue
			}
			if at >= 0 {
				return at, true
			}
			at = i
		}
	}
	return at, false
}

// repeatable says whether a call may be retried although it may have been carried out.
type repeatable bool

const (
	repeat repeatable = true
	once   repeatable = false
)

// reply is a node's answer.
type reply struct {
	node   *node
	status int
	header http.Header
	body   []byte
}

// ask posts body to one node after another until one answers. The error is the context's, or the last failure.
func (c *Client) ask(ctx context.Context, path string, body []byte, bound int64, again repeatable) (*reply, error) {
	tried := make([]bool, len(c.nodes))
	var last error
	for {
		at, more := c.choose(tried)
		if at < 0 {
			if last == nil {
				return nil, fmt.Errorf("%w: none has answered lately", ErrUnavailable)
			}
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, last)
		}
		tried[at] = true
		n := c.nodes[at]
		part := c.options.Timeout
		if more {
			part /= 2
		}
		began := time.Now()
		r, err := c.post(ctx, n, path, body, bound, part, again)
		switch {
		case err == nil && r.status < 500:
			n.answered()
			c.answers.Add(1)
			return r, nil
		case err == nil: // a 5xx answer means that the call was not, or not fully, carried out
			e := r.problem()
			if e.elsewhere() {
				n.answered()
			} else {
				c.failed(n, failing, e)
			}
			err = e
		case ctx.Err() != nil && !errors.Is(context.Cause(ctx), ErrTimeout):
			return nil, context.Cause(ctx) // the caller left; that is not the node's fault
		case errors.Is(err, ErrTimeout):
			// Don't blame the node if the call had waited so long that little time was left.
			if time.Since(began) >= c.options.Timeout/2 {
				c.failed(n, silent, err)
			}
		default:
			c.failed(n, failing, err)
		}
		last = err
		if again == once && !untouched(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// untouched reports whether err proves that the call was not carried out.
func untouched(err error) bool {
	var answered *Error
	if errors.As(err, &answered) {
		return answered.Status == http.StatusServiceUnavailable
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// post makes one request. If the node takes longer than part, it counts as silent: ErrTimeout.
func (c *Client) post(ctx context.Context, n *node, path string, body []byte, bound int64, part time.Duration, again repeatable) (*reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, part, ErrTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, n.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header["Content-Type"] = []string{"application/json"}
	if c.authorization != "" {
		r.Header["Authorization"] = []string{c.authorization}
	}
	if again == repeat {
		// Not sent. It lets the transport retry on a new connection if the node has just closed this one.
		r.Header["Idempotency-Key"] = nil
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, explain(ctx, n, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, bound+1))
	if err != nil {
		return nil, explain(ctx, n, err)
	}
	if int64(len(text)) > bound {
		return nil, fmt.Errorf("%w: %s sends over %d bytes", ErrBadAnswer, n.base, bound)
	}
	return &reply{node: n, status: response.StatusCode, header: response.Header, body: text}, nil
}

// explain tells a node's silence from other failures.
func explain(ctx context.Context, n *node, err error) error {
	var outer *url.Error // it adds only the address
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &outer):
		err = outer.Err
	}
	return fmt.Errorf("%s: %w", n.base, err)
}

// problem returns r as an error.
func (r *reply) problem() *Error {
	var p problem
	if err := json.Unmarshal(r.body, &p); err != nil || p.Code == "" {
		const enough = 200
		p = problem{Code: "unknown", Title: http.StatusText(r.status), Detail: fmt.Sprintf("%.*q", enough, r.body)}
	}
	return &Error{Status: r.status, Code: p.Code, Title: p.Title, Detail: p.Detail, Node: r.node.base}
}

// elsewhere reports whether e comes from a healthy node that is overloaded or can't reach another node. The next node
// may do better.
func (e *Error) elsewhere() bool { return e.Code == "overloaded" || e.Code == codeNoOwner }

// codeNoOwner means that only the owner can do this, and that it may soon be reachable.
const codeNoOwner = "no-owner"

// codeDenied marks a 403 that decides a check. Any other 403 is an error, such as a token without the scope.
const codeDenied = "denied"

// decode parses r's JSON and ignores fields that v does not have.
func (r *reply) decode(v any) error {
	if err := json.Unmarshal(r.body, v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrBadAnswer, r.node.base, err)
	}
	return nil
}
