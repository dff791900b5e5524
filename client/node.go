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
	firstProbePause = 250 * time.Millisecond // how long a node is skipped after its first failure
	maxProbePause   = 5 * time.Second        // how long after many failures

	maxAnswer      = 1 << 20  // bytes of the answer to one check
	maxBatchAnswer = 64 << 20 // the node's own bound
)

// condition is the state of a node as far as the client knows.
type condition int

const (
	healthy      condition = iota
	failing                // refuses connections or answers 5xx: used only if no other node is left
	unresponsive           // does not answer in time: not used
)

// node is one of Options.Nodes.
type node struct {
	baseURL string

	mu        sync.Mutex // guards the rest
	condition condition
	failures  int       // consecutive
	probing   bool      // a goroutine probes it until it is healthy
	reported  time.Time // when it was last logged that it is skipped
	announce  bool      // log when it is used again
}

func (n *node) currentCondition() condition {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.condition
}

// markHealthy records that n is healthy.
func (n *node) markHealthy() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.condition = healthy
	n.failures = 0
}

// markFailed records n's condition, and starts to probe n if that has not begun.
func (c *Client) markFailed(n *node, condition condition, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.condition = condition
	n.failures = min(n.failures+1, 16)
	// The probe starts under n's lock, so that the next caller sees probing set.
	if !n.probing && !c.spawn(func() { c.probe(n) }) {
		return // the client is closed
	}
	n.probing = true
	c.reportFailing(n, err)
}

// reportFailing logs that n is skipped, at most once a minute. n's lock must be held.
func (c *Client) reportFailing(n *node, err error) {
	if !n.reported.IsZero() && time.Since(n.reported) < logPause {
		return
	}
	n.reported = time.Now()
	n.announce = true
	c.options.Logger.Warn("skipping failing node", "node", n.baseURL, "error", err)
}

// probe probes n's readiness, with growing pauses, until it is ready.
func (c *Client) probe(n *node) {
	for {
		n.mu.Lock()
		// failures is 0 if a call already in flight has been answered since.
		rest := min(firstProbePause<<max(n.failures-1, 0), maxProbePause)
		if n.condition == healthy {
			rest = 0 // a call has got an answer
		}
		n.mu.Unlock()

		if rest > 0 && !sleep(c.lifetime, rest) {
			return
		}

		if rest == 0 || c.isReady(n) {
			n.mu.Lock()

			// The number of failures stays until n answers a call, so that a node that
			// is ready but fails all calls is probed less often.
			n.condition = healthy
			n.probing = false
			announce := n.announce
			n.announce = false
			n.mu.Unlock()

			if announce {
				c.options.Logger.Info("using node again", "node", n.baseURL)
			}

			return
		}

		n.mu.Lock()
		n.failures = min(n.failures+1, 16)
		c.reportFailing(n, errNotReady)
		n.mu.Unlock()
	}
}

func (c *Client) isReady(n *node) bool {
	ctx, cancel := context.WithTimeout(c.lifetime, c.options.Timeout)
	defer cancel()

	r, err := http.NewRequestWithContext(ctx, http.MethodGet, n.baseURL+"/readyz", nil)
	if err != nil {
		return false
	}

	response, err := c.http.Do(r)
	if err != nil {
		return false
	}

	defer response.Body.Close()

	io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer)) // drain the body, so that the connection is reused
	return response.StatusCode == http.StatusOK
}

// chooseNode returns the index of the first untried node that is healthy, else
// of the first that is failing; -1 if there is none. more reports whether
// another one would remain after it.
func (c *Client) chooseNode(tried []bool) (at int, more bool) {
	at = -1
	for _, want := range [...]condition{healthy, failing} {
		for i, n := range c.nodes {
			if tried[i] || i == at || n.currentCondition() != want {
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

// retryPolicy says whether a call may be retried although it may already have taken effect.
type retryPolicy bool

const (
	retryAlways        retryPolicy = true
	retryIfUnprocessed retryPolicy = false
)

// reply is a node's answer.
type reply struct {
	node   *node
	sent   time.Time // no later than the request was sent
	status int
	header http.Header
	body   []byte
}

// errNotReady says why a node that is probed is still skipped.
var errNotReady = errors.New("it is not ready")

// ask posts body to one node after another until one answers. If a node rejects
// this client, ask tries one other, which may have a newer list of tokens. The
// error is the context's, or wraps the last failure.
func (c *Client) ask(ctx context.Context, path string, body []byte, maxBytes int64, retry retryPolicy) (*reply, error) {
	tried := make([]bool, len(c.nodes))
	var last error
	var rejection *reply // the first node's
	whole := c.options.Timeout
	if deadline, hasDeadline := ctx.Deadline(); hasDeadline && time.Until(deadline) < whole/2 {
		whole = time.Until(deadline) // a slot ends soon
	}

	for {
		at, more := c.chooseNode(tried)
		if at < 0 {
			if rejection != nil {
				c.logRejection(rejection)
				return rejection, nil
			}
			if last == nil {
				return nil, fmt.Errorf("%w: all nodes have failed recently", ErrUnavailable)
			}
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, last)
		}

		tried[at] = true
		n := c.nodes[at]
		timeout := whole
		if more {
			// The next node also needs time to answer.
			timeout /= 2
		}

		began := time.Now()
		r, err := c.post(ctx, n, path, body, maxBytes, timeout, retry)
		switch {
		case err == nil && r.status < 500:
			n.markHealthy()
			c.answers.Add(1)

			if more && rejection == nil && r.IsRejection() {
				rejection = r
				continue
			}

			if r.IsRejection() {
				c.logRejection(r)
			}

			return r, nil
		case rejection != nil: // a node has answered; only one other is tried
			c.logRejection(rejection)
			return rejection, nil
		case err == nil: // a 5xx answer: the call was not, or not fully, carried out
			e := r.problem()
			if !c.recordFailedAnswer(n, e) {
				return nil, e
			}
			err = e
		case ctx.Err() != nil && !errors.Is(context.Cause(ctx), ErrTimeout):
			return nil, context.Cause(ctx) // the caller gave up, which is not the node's fault
		case errors.Is(err, ErrTimeout):
			// Don't blame the node if the call had waited so long that the node had little
			// time to answer.
			if time.Since(began) >= c.options.Timeout/2 {
				c.markFailed(n, unresponsive, err)
			}
		default:
			c.markFailed(n, failing, err)
		}

		// An error that passes soon says more than what is wrong with another node.
		if last == nil || !passesSoon(last) {
			last = err
		}

		if retry == retryIfUnprocessed && !isUnprocessed(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// recordFailedAnswer records what e, a 5xx answer of n, says about n's condition.
// It reports whether another node may succeed.
func (c *Client) recordFailedAnswer(n *node, e *Error) (mayRetry bool) {
	switch e.Code {
	case codeTooManyReservations, codeTooManySlots:
		n.markHealthy()
		return false
	case codeOverloaded, codeNoOwner, codeTryAgain:
		n.markHealthy()
	default:
		c.markFailed(n, failing, e)
	}
	return true
}

// passesSoon reports whether err is the answer of a node that could not reach
// the owner, or must not decide until another has taken over.
func passesSoon(err error) bool {
	e, answered := errors.AsType[*Error](err)
	return answered && (e.Code == codeNoOwner || e.Code == codeTryAgain)
}

// isUnprocessed reports whether err proves that the call did not take effect.
func isUnprocessed(err error) bool {
	if answered, ok := errors.AsType[*Error](err); ok {
		return answered.Status == http.StatusServiceUnavailable
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// post makes one request. If the node does not answer within timeout, the error wraps ErrTimeout.
func (c *Client) post(
	ctx context.Context, n *node, path string, body []byte, maxBytes int64, timeout time.Duration, retry retryPolicy,
) (*reply, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrTimeout)
	defer cancel()

	r, err := http.NewRequestWithContext(ctx, http.MethodPost, n.baseURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}

	r.Header["Content-Type"] = []string{"application/json"}
	if c.authorization != "" {
		r.Header["Authorization"] = []string{c.authorization}
	}

	if retry == retryAlways {
		// A nil value is not sent. It lets the transport retry on a new connection if
		// the node has just closed this one.
		r.Header["Idempotency-Key"] = nil
	}

	sent := time.Now()
	response, err := c.http.Do(r)
	if err != nil {
		return nil, nodeError(ctx, n, err)
	}

	defer response.Body.Close()

	text, err := io.ReadAll(io.LimitReader(response.Body, maxBytes+1))
	if err != nil {
		return nil, nodeError(ctx, n, err)
	}
	if int64(len(text)) > maxBytes {
		return nil, fmt.Errorf("%w: %s sent more than %d bytes", ErrBadAnswer, n.baseURL, maxBytes)
	}

	return &reply{node: n, sent: sent, status: response.StatusCode, header: response.Header, body: text}, nil
}

// nodeError returns err, or the cause of ctx's end, prefixed with the node's address.
func nodeError(ctx context.Context, n *node, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err // outer adds nothing but the address
	}
	return fmt.Errorf("%s: %w", n.baseURL, err)
}

// problem returns the error that rp reports.
func (rp *reply) problem() *Error {
	var p problem
	if err := json.Unmarshal(rp.body, &p); err != nil || p.Code == "" {
		const maxExcerpt = 200
		p = problem{Code: "unknown", Title: http.StatusText(rp.status),
			Detail: fmt.Sprintf("%.*q", maxExcerpt, rp.body)}
	}
	return &Error{Status: rp.status, Code: p.Code, Title: p.Title, Detail: p.Detail, Node: rp.node.baseURL}
}

// decode parses rp's JSON body into v. It ignores fields that v does not have.
func (rp *reply) decode(v any) error {
	if err := json.Unmarshal(rp.body, v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrBadAnswer, rp.node.baseURL, err)
	}
	return nil
}
