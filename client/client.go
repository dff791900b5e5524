package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// spareConnections are for what is not a check, beside MaxInFlight.
	spareConnections = 64
	maxHeaderBytes   = 64 << 10
	// idleConnection is well under the three minutes after which a node closes a connection.
	idleConnection = 90 * time.Second
	// ownerPause is between two tries of what no node could do, since the owner was away.
	ownerPause = 50 * time.Millisecond
	// defaultTTL is a node's own.
	defaultTTL = time.Minute
)

// Client asks nodes for decisions. Its methods may be called from many goroutines at once.
type Client struct {
	options       Options
	authorization string
	nodes         []*node
	transport     *http.Transport
	http          *http.Client
	direct        chan struct{} // a place for each call that is no check; MaxQueue of them
	turns         chan struct{} // a place for each of them that is being asked; spareConnections of them
	answers       atomic.Int64  // of nodes, below 500

	life  context.Context // ends with Close; its cause is ErrClosed
	close context.CancelCauseFunc
	work  sync.WaitGroup // calls and goroutines; added to under mu while open

	mu       sync.Mutex // guards the rest
	closed   bool
	inFlight int     // requests with checks; at most MaxInFlight
	queue    []*call // that wait for one to end, at most MaxQueue. Invariant: empty while inFlight < MaxInFlight.
}

// New makes a client. It asks nobody yet: a node that can't be reached shows when it is asked. Close it in the end.
func New(options Options) (*Client, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	c := &Client{options: o, direct: make(chan struct{}, o.MaxQueue), turns: make(chan struct{}, spareConnections)}
	for i, address := range o.Nodes {
		b, err := base(i, address)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, &node{base: b})
	}
	if o.Token != "" {
		c.authorization = "Bearer " + o.Token
	}
	connections := o.MaxInFlight + spareConnections + 1 // for /readyz: so that nobody waits for a connection unseen
	c.transport = &http.Transport{
		DialContext:            (&net.Dialer{Timeout: o.Timeout}).DialContext,
		TLSClientConfig:        o.TLS,
		TLSHandshakeTimeout:    o.Timeout,
		DisableCompression:     true,
		MaxConnsPerHost:        connections,
		MaxIdleConnsPerHost:    connections,
		IdleConnTimeout:        idleConnection,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	c.http = &http.Client{
		Transport: c.transport,
		// The token is for the node alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.life, c.close = context.WithCancelCause(context.Background())
	return c, nil
}

// Close ends all calls with ErrClosed, waits for them, and closes all connections. It may be called twice.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.close(ErrClosed)
	c.work.Wait()
	c.transport.CloseIdleConnections()
}

// begin notes that a call is under way, if the client is open. Whoever begins calls c.work.Done.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.work.Add(1)
	}
	return !c.closed
}

// spawn runs f in a goroutine that Close waits for, if the client is open.
func (c *Client) spawn(f func()) bool {
	if !c.begin() {
		return false
	}
	go func() {
		defer c.work.Done()
		f()
	}()
	return true
}

// within is the context of a call, which ends with the caller's, after Options.Timeout, or with the client.
func (c *Client) within(ctx context.Context) (context.Context, func()) {
	ctx, release := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { release(ErrClosed) })
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.Timeout, ErrTimeout)
	return ctx, func() {
		cancel()
		stop()
		release(nil)
	}
}

// Check asks whether q may happen now, and takes its cost if so: from all limits of all rules that apply, or from none.
//
// The Decision can always be followed, also with an error: it is then made by Options.OnError, or a refusal. The error is the
// context's, ErrTimeout, ErrUnavailable, ErrQueueFull, ErrClosed, ErrBadAnswer, ErrRequest, or an *Error that a node has
// answered. With q.Wait and an allowed Decision it may be the context's, too: the turn had not come when it ended.
func (c *Client) Check(ctx context.Context, q Request) (Decision, error) {
	d, err := c.decide(ctx, &q, false)
	if err == nil && q.Wait && d.Allowed {
		err = c.hold(ctx, d.Delay)
	}
	return d, err
}

// Peek returns the decision that Check would have made, and takes nothing. Remaining is as if it had; Wait is not looked
// at.
func (c *Client) Peek(ctx context.Context, q Request) (Decision, error) {
	return c.decide(ctx, &q, true)
}

func (c *Client) decide(ctx context.Context, q *Request, peek bool) (Decision, error) {
	body, err := q.append(nil, peek, 0)
	if err != nil {
		return c.undecided(err), err
	}
	d, err := c.submit(ctx, &call{body: body, headers: q.Headers, detail: q.Detail})
	if err != nil {
		return c.undecided(err), err
	}
	return d, nil
}

// undecided is the decision where none was made. Only a node's own trouble may open: everything else a stranger could bring
// about, and so switch the limits off.
func (c *Client) undecided(err error) Decision {
	d := Decision{DecidedBy: ByError}
	var answered *Error
	switch {
	case errors.Is(err, ErrQueueFull) && !c.options.OpenWhenFull:
		d.Reason = "Too many calls wait for the rate limiter."
	case errors.Is(err, ErrRequest), errors.As(err, &answered) && answered.Status < 500:
		d.Reason = "The rate limiter can't decide this."
	case c.options.OnError == Open:
		d.Allowed = true
	default:
		d.Reason = "Nothing passes while the rate limiter does not answer."
	}
	return d
}

// hold returns after d, or with an error when the context or the client ends before.
func (c *Client) hold(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	if !c.begin() {
		return ErrClosed
	}
	defer c.work.Done()
	ctx, release := context.WithCancelCause(ctx)
	defer release(nil)
	defer context.AfterFunc(c.life, func() { release(ErrClosed) })()
	if !pause(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// Reserve takes q's costs as an estimate of what is not known yet, such as the tokens of an answer, for Settle to
// correct. What is not settled within ttl stays charged as reserved. ttl is rounded up to milliseconds; 0 is a minute.
//
// Decision and error are as Check's. Settle every Reservation that has an ID, also when what it was for has failed. With
// q.RequestID a call that is repeated reserves once.
func (c *Client) Reserve(ctx context.Context, q Request, ttl time.Duration) (Reservation, error) {
	if ttl == 0 {
		ttl = defaultTTL
	}
	fail := func(err error) (Reservation, error) { return Reservation{Decision: c.undecided(err)}, err }
	if ttl < 0 {
		return fail(fmt.Errorf("%w: ttl is %v; it must not be negative", ErrRequest, ttl))
	}
	body, err := q.append(nil, false, ttl)
	if err != nil {
		return fail(err)
	}
	r, err := c.tell(ctx, "/v1/reserve", body, repeat)
	if err != nil {
		return fail(err)
	}
	var a answer
	d, err := r.decision(&a)
	if err == nil && d.Allowed && a.Reservation == "" {
		err = fmt.Errorf("%w: %s reserves without an id", ErrBadAnswer, r.node.base)
	}
	if err != nil {
		return fail(err)
	}
	if q.Headers {
		d.headers = headersOf(r.header)
	}
	reserved := Reservation{Decision: d, ID: a.Reservation}
	if q.Wait && d.Allowed {
		err = c.hold(ctx, d.Delay)
	}
	return reserved, err
}

// Settle replaces a reservation's estimate by what was really used, by unit: what is more becomes a debt, what is less is
// given back. A unit that is not named stays as reserved; an empty map, or nil, cancels all of it. A reservation is settled
// once: a repeated call changes nothing, and returns what the first one did.
//
// While the owner of a reservation can't be reached, Settle tries again until Options.Timeout.
//
// An empty id, as of a Reservation that no node has made, settles nothing and is no error. An *Error with the Code
// "unknown-reservation" says that the reservation is over (it stays charged as reserved) or never was.
func (c *Client) Settle(ctx context.Context, id string, costs map[string]int64) (Settlement, error) {
	if id == "" {
		return Settlement{}, nil
	}
	body := append(appendString([]byte(`{"reservation":`), id), `,"costs":`...)
	body, err := appendCosts(body, costs)
	if err != nil {
		return Settlement{}, err
	}
	if body = append(body, '}'); len(body) > maxBody {
		return Settlement{}, errTooLarge
	}
	r, err := c.tell(ctx, "/v1/settle", body, repeat)
	if err != nil {
		return Settlement{}, err
	}
	var s struct {
		Settled   bool             `json:"settled"`
		Costs     map[string]int64 `json:"costs"`
		Remaining int64            `json:"remaining"`
	}
	if r.status != http.StatusOK {
		return Settlement{}, r.problem()
	}
	if err := r.decode(&s); err != nil {
		return Settlement{}, err
	}
	return Settlement{Settled: s.Settled, Costs: s.Costs, Remaining: s.Remaining}, nil
}

// Adjust adds n to what a subject has used of a rule's limits in requests, without a decision: a penalty, which may
// become a debt, or a reward where n is negative. n is −(2⁵³−1)…2⁵³−1 and not 0. It is repeated where no answer comes, and made at
// most once; after an error it may have been.
func (c *Client) Adjust(ctx context.Context, rule string, key []string, n int64) (Usage, error) {
	return c.AdjustOnce(ctx, "", rule, key, n)
}

// AdjustOnce is Adjust for a caller who may repeat it: within a minute, calls with the same id, of at most 64 bytes, about one
// subject are made once, by whatever client, and answered alike. An *Error with the Code "request-id-reused" says that the other one
// asked for something else.
func (c *Client) AdjustOnce(ctx context.Context, id string, rule string, key []string, n int64) (Usage, error) {
	if rule == "" || n == 0 || n > maxAmount || n < -maxAmount {
		return Usage{}, fmt.Errorf("%w: rule %q, n %d: a rule is needed, and a number that is not 0 within ±%d", ErrRequest, rule, n, int64(maxAmount))
	}
	body := appendString([]byte(`{"rule":`), rule)
	if key != nil {
		body = appendKey(append(body, `,"key":`...), key)
	}
	body = fmt.Appendf(body, `,"cost":%d}`, n)
	if len(body) > maxBody {
		return Usage{}, errTooLarge
	}
	r, err := c.tellOnce(ctx, "/v1/adjust", body, id)
	if err != nil {
		return Usage{}, err
	}
	if r.status != http.StatusOK {
		return Usage{}, r.problem()
	}
	var u usage
	if err := r.decode(&u); err != nil {
		return Usage{}, err
	}
	return u.usage()
}

// tellOnce makes a call that may be repeated, since it has an id: the caller's, or else one of its own. A node of a release that
// knows no ids is asked without that, and the call is repeated only where it can't have been carried out.
func (c *Client) tellOnce(ctx context.Context, path string, body []byte, id string) (*reply, error) {
	own := id == ""
	if own {
		id = rand.Text()
	}
	named, err := appendRequestID(append(slices.Clone(body[:len(body)-1]), ','), id)
	if err != nil {
		return nil, err
	}
	r, err := c.tell(ctx, path, append(named, '}'), repeat)
	if err == nil && own && r.status == http.StatusBadRequest && r.problem().Code == "unknown-field" {
		return c.tell(ctx, path, body, once)
	}
	return r, err
}

// tell makes a call that shares its request with no other.
func (c *Client) tell(ctx context.Context, path string, body []byte, again repeatable) (*reply, error) {
	if !c.begin() {
		return nil, ErrClosed
	}
	defer c.work.Done()
	select {
	case c.direct <- struct{}{}:
		defer func() { <-c.direct }()
	default:
		return nil, ErrQueueFull
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	for {
		r, err := c.askInTurn(ctx, path, body, again)
		var e *Error
		if again == once || !errors.As(err, &e) || e.Code != codeNoOwner || !pause(ctx, ownerPause) {
			return r, err
		}
	}
}

// askInTurn is ask when there is a place for it.
func (c *Client) askInTurn(ctx context.Context, path string, body []byte, again repeatable) (*reply, error) {
	before, began := c.answers.Load(), time.Now()
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
		late := time.Since(began) > c.options.Timeout/2
		r, err := c.ask(ctx, path, body, maxAnswer, again)
		if late && errors.Is(err, ErrTimeout) {
			err = c.starved(before, err)
		}
		return r, err
	case <-ctx.Done():
		return nil, c.starved(before, context.Cause(ctx))
	}
}

// starved is the error of a call whose turn did not come before err, or too late. Where nodes have answered others since, they are well: it
// is this client's queue that was too full.
func (c *Client) starved(before int64, err error) error {
	if c.answers.Load() == before || errors.Is(err, ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: its turn did not come: %w", ErrQueueFull, err)
}

// pause reports whether d has passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
