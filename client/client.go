package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// spareConnections is the number of connections for calls other than batched
	// checks, on top of MaxInFlight.
	spareConnections = 64
	maxHeaderBytes   = 64 << 10
	// idleConnection is well below the three minutes after which a node closes an idle connection.
	idleConnection = 90 * time.Second
	// ownerPause is how long to wait before retrying a call that failed because the
	// owner was unreachable.
	ownerPause = 50 * time.Millisecond
	// defaultTTL is also the node's default.
	defaultTTL = time.Minute
)

// Client asks nodes for decisions. Its methods are safe for concurrent use.
type Client struct {
	options       Options
	setup         setup
	authorization string
	nodes         []*node
	transport     *http.Transport
	local         *local // used only while no node answers
	http          *http.Client
	otherCalls    chan struct{} // unbatched calls; capacity MaxQueue
	otherInFlight chan struct{} // those of them that are in flight; capacity spareConnections
	slots         SlotSet       // the slots that are held
	answers       atomic.Int64  // counts answers from nodes with a status below 500

	lifetime context.Context // cancelled by Close, with cause ErrClosed
	cancel   context.CancelCauseFunc
	running  sync.WaitGroup // calls and goroutines. Add only with mu held and closed false, or within a counted call

	mu       sync.Mutex // guards the rest
	closed   bool
	inFlight int // requests with checks that are in flight; at most MaxInFlight
	// queue has the checks that wait for a request to end, at most MaxQueue.
	// Invariant: it is empty while inFlight < MaxInFlight.
	queue []*call
}

// New returns a client. It waits for no node: an unreachable node shows only in
// the first call. With a Token or Rules, it asks a node about them in the
// background. The caller must Close the client.
func New(options Options) (*Client, error) {
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}

	c := &Client{options: o, setup: setup{rules: map[string]bool{}, logged: map[string]time.Time{}},
		local: newLocal(), otherCalls: make(chan struct{}, o.MaxQueue),
		otherInFlight: make(chan struct{}, spareConnections)}
	for i, address := range o.Nodes {
		b, err := parseBaseURL(i, address)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, &node{baseURL: b})
	}

	if o.Token != "" {
		c.authorization = "Bearer " + o.Token
	}

	connections := o.MaxInFlight + spareConnections + 1 // one for /readyz, so that no call waits in the transport
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
		// The token must not reach any other server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.lifetime, c.cancel = context.WithCancelCause(context.Background())

	rules := c.setup.add(o.Rules)
	if len(rules) > 0 || o.Token != "" {
		c.spawn(func() { c.checkSetup(rules) })
	}

	return c, nil
}

// Close releases all slots, ends all calls with ErrClosed, waits for them, and
// closes all connections. It may be called twice.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	// The slots are closed first: nothing else ends their renewals, which the wait
	// below includes.
	c.slots.Close()
	c.cancel(ErrClosed)
	c.running.Wait()
	c.transport.CloseIdleConnections()
}

// beginCall records a call in progress if the client is open. If it returns
// true, the caller must call c.running.Done.
func (c *Client) beginCall() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// spawn runs f in a goroutine that Close waits for, if the client is open.
func (c *Client) spawn(f func()) bool {
	if !c.beginCall() {
		return false
	}
	go func() {
		defer c.running.Done()
		f()
	}()
	return true
}

// withTimeout returns the context of a call, which ends with the caller's
// context, after Options.Timeout, or when the client is closed. The caller must
// call the returned function.
func (c *Client) withTimeout(ctx context.Context) (context.Context, func()) {
	ctx, release := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.lifetime, func() { release(ErrClosed) })
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.Timeout, ErrTimeout)
	return ctx, func() {
		cancel()
		stop()
		release(nil)
	}
}

// Check asks whether q may happen now and, if so, takes its cost: from all
// limits of all rules that apply, or from none.
//
// The Decision is always usable, even with an error: it is then a refusal, or
// what Options.OnError says. The error is the context's, ErrTimeout,
// ErrUnavailable, ErrQueueFull, ErrClosed, ErrBadAnswer, ErrRequest, or an
// *Error from a node. With q.Wait, an allowed Decision may also come with the
// context's error: the context ended before the delay was over.
func (c *Client) Check(ctx context.Context, q Request) (Decision, error) {
	d, err := c.decide(ctx, &q)
	if err == nil && q.Wait && d.Allowed {
		err = c.waitDelay(ctx, d.Delay)
	}
	return d, err
}

// Peek returns the decision that Check would return, but takes nothing.
// Remaining is what would be left after the Check. Peek ignores q.Wait.
func (c *Client) Peek(ctx context.Context, q Request) (Decision, error) {
	q.makePeek()
	return c.decide(ctx, &q)
}

func (c *Client) decide(ctx context.Context, q *Request) (Decision, error) {
	body, err := q.append(nil, 0)
	if err != nil {
		return c.fallbackDecision(q, err), err
	}

	anyCount, allCount := q.countModes()
	cl := &call{body: body, headers: q.Headers, detail: q.Detail, countMode: anyCount}
	if anyCount && !allCount {
		err = c.checkUnbatched(ctx, cl)
	} else {
		cl.decision, err = c.submit(ctx, cl)
	}

	if err != nil {
		return c.fallbackDecision(q, err), err
	}

	return cl.decision, nil
}

// checkUnbatched makes a check that counts some subjects and checks others. It
// can't be in a batch, because answers there have no status, which alone tells
// whether the counts were taken.
func (c *Client) checkUnbatched(ctx context.Context, cl *call) error {
	r, err := c.call(ctx, "/v1/check", cl.body, retryAlways)
	if err != nil {
		return err
	}
	cl.setAnswer(r)
	return cl.err
}

// fallbackDecision returns the Decision for a check that no node decided.
// Unless the options say otherwise, only a failure of the nodes may let a check
// pass. Untrusted users could provoke any other error, and so switch the limits
// off.
func (c *Client) fallbackDecision(q *Request, err error) Decision {
	d := Decision{DecidedBy: ByError}
	var answered *Error
	switch {
	case errors.Is(err, ErrQueueFull) && !c.options.OpenWhenFull:
		d.Reason = "Too many calls wait for the rate limiter."
	case errors.As(err, &answered) && answered.IsRejection():
		d.Allowed = c.options.OnRejected == RejectedOpen
		if !d.Allowed {
			d.Reason = "The rate limiter rejects this server."
		}
	case errors.Is(err, ErrRequest), answered != nil && answered.Status < 500 && !c.isMissingRule(q.Rule, err):
		d.Reason = "The rate limiter can't decide this."
	case c.options.OnError == Open:
		d.Allowed = true
	case c.options.OnError == Local:
		d = c.local.decide(q, c.options.Local)
	default:
		d.Reason = "Nothing passes while the rate limiter does not answer."
	}

	if d.Allowed {
		d.Granted = q.GrantedUnasked()
	}

	return d
}

// waitDelay waits for d. It returns an error if the context ends or the client is closed first.
func (c *Client) waitDelay(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	if !c.beginCall() {
		return ErrClosed
	}

	defer c.running.Done()

	ctx, release := context.WithCancelCause(ctx)
	defer release(nil)
	defer context.AfterFunc(c.lifetime, func() { release(ErrClosed) })()

	if !sleep(ctx, d) {
		return context.Cause(ctx)
	}

	return nil
}

// Reserve takes q's costs as an estimate of a cost that is not known yet, such
// as the tokens of an answer; Settle corrects it later. q.OnExpiry says what
// becomes of a reservation that is not settled within ttl. ttl is rounded up to
// milliseconds; 0 means one minute.
//
// The Decision and the error are as for Check. Settle every Reservation that
// has an ID, even if the work that it was made for has failed. A reservation
// that is made only after ctx has ended is given back. With q.RequestID, a
// retried call reserves only once.
//
// If q's rules also limit slots, the Reservation has a Slot, which renews
// itself until Settle.
func (c *Client) Reserve(ctx context.Context, q Request, ttl time.Duration) (Reservation, error) {
	ttl = cmp.Or(ttl, defaultTTL)
	fail := func(err error) (Reservation, error) { return Reservation{Decision: c.fallbackDecision(&q, err)}, err }
	if ttl < 0 {
		return fail(fmt.Errorf("%w: ttl is %v; it must not be negative", ErrRequest, ttl))
	}

	body, err := q.append(nil, ttl)
	if err != nil {
		return fail(err)
	}

	r, err := c.callToTake(ctx, "/v1/reserve", body)
	if err != nil {
		return fail(err)
	}

	var a answer
	d, err := r.decision(&a, false)
	if err == nil && d.Allowed && a.Reservation == "" {
		err = fmt.Errorf("%w: %s made a reservation without an id", ErrBadAnswer, r.node.baseURL)
	}

	if err != nil {
		return fail(err)
	}

	if q.Headers {
		d.headers = headersOf(r.header)
	}

	reserved := Reservation{Decision: d, ID: a.Reservation}
	if a.Slot != "" {
		// The slot outlives the context, because the reservation must still be
		// settled.
		until := r.sent.Add(millis(a.ExpiresMS))
		reserved.Slot, err = NewSlot(context.WithoutCancel(ctx), c, d, a.Slot, until)
		if err != nil {
			return fail(err)
		}
		c.slots.Reserve(reserved.ID, reserved.Slot)
	}

	if q.Wait && d.Allowed {
		err = c.waitDelay(ctx, d.Delay)
	}

	return reserved, err
}

// Settle replaces a reservation's estimate with the actual usage per unit: an
// excess becomes a debt, and a surplus is given back. A unit that is not named
// stays as reserved; an empty or nil map cancels the whole reservation. A
// reservation is settled once: a repeated call changes nothing and returns the
// result of the first.
//
// While the reservation's owner can't be reached, Settle retries until Options.Timeout has passed.
//
// With an empty id, as in a Reservation that no node made, Settle does nothing
// and returns no error. If the reservation has expired, the result says so for
// ten minutes. After that, or if it never existed, the error is an *Error with
// the Code "unknown-reservation".
func (c *Client) Settle(ctx context.Context, id string, costs map[string]int64) (Settlement, error) {
	if id == "" {
		return Settlement{}, nil
	}

	body := append(appendString([]byte(`{"reservation":`), id), `,"costs":`...)
	body, err := appendCosts(body, costs)
	if err != nil {
		return Settlement{}, err
	}
	body = append(body, '}')
	if len(body) > maxBody {
		return Settlement{}, errTooLarge
	}

	c.slots.Settle(id)
	r, err := c.call(ctx, "/v1/settle", body, retryAlways)
	if err != nil {
		return Settlement{}, err
	}

	var s struct {
		Settled   bool             `json:"settled"`
		Costs     map[string]int64 `json:"costs"`
		Remaining int64            `json:"remaining"`
		Expired   bool             `json:"expired"`
	}
	if r.status != http.StatusOK {
		return Settlement{}, r.problem()
	}
	if err := r.decode(&s); err != nil {
		return Settlement{}, err
	}

	return Settlement{Settled: s.Settled, Costs: s.Costs, Remaining: s.Remaining, Expired: s.Expired}, nil
}

// Adjust adds n requests to what a subject has used of a rule's limits, without
// a decision: a penalty, which may become a debt, or a reward if n is negative.
// n must be within −(2⁵³−1)…2⁵³−1 and not 0. Adjust retries if no answer comes,
// and takes effect at most once: it gives up after 55 s, however long
// Options.Timeout is. After an error it may or may not have taken effect.
func (c *Client) Adjust(ctx context.Context, rule string, key []string, n int64) (Usage, error) {
	return c.AdjustOnce(ctx, "", rule, key, n)
}

// AdjustOnce is like Adjust, for callers that retry by themselves. Within a
// minute, calls for one subject with the same id, of at most 64 bytes, take
// effect once, whichever client makes them, and get the same answer. An *Error
// with the Code "request-id-reused" means that an earlier call with this id
// asked for something else.
func (c *Client) AdjustOnce(ctx context.Context, id string, rule string, key []string, n int64) (Usage, error) {
	if rule == "" || n == 0 || n > maxAmount || n < -maxAmount {
		return Usage{},
			fmt.Errorf("%w: rule is %q and n is %d; rule must not be empty, and n must be within ±%d and not 0",
				ErrRequest, rule, n, int64(maxAmount))
	}
	return c.changeUsage(ctx, "/v1/adjust", &Request{Rule: rule, Key: key, RequestID: id},
		fmt.Appendf(nil, `"cost":%d,`, n))
}

// AdjustCosts is like Adjust, for costs per unit and for subjects with inline
// limits. q names the subject by Rule and Key, or by Namespace, Key and Limits,
// and may have a LimitName, Bill and a RequestID; its other fields are ignored.
// costs names at most 16 units, in each of which the subject must have a limit.
// Each cost must be within −(2⁵³−1)…2⁵³−1 and not 0.
func (c *Client) AdjustCosts(ctx context.Context, q Request, costs map[string]int64) (Usage, error) {
	if len(costs) == 0 {
		return Usage{}, fmt.Errorf("%w: costs is empty", ErrRequest)
	}

	fields, err := q.appendLimitName(nil)
	if err != nil {
		return Usage{}, err
	}

	if q.Bill {
		fields = append(fields, `"bill":true,`...)
	}

	b := append(fields, `"costs":{`...)
	for _, unit := range slices.Sorted(maps.Keys(costs)) {
		n := costs[unit]
		if n == 0 || n > maxAmount || n < -maxAmount {
			return Usage{}, fmt.Errorf("%w: costs[%q] is %d; it must be within ±%d and not 0",
				ErrRequest, unit, n, int64(maxAmount))
		}
		b = append(strconv.AppendInt(append(appendString(b, unit), ':'), n, 10), ',')
	}

	return c.changeUsage(ctx, "/v1/adjust", &q, append(closeBracket(b, '}'), ','))
}

// Usage returns what a subject has used, and takes nothing. q names the subject
// by Rule and Key, or by Namespace, Key and Limits; its other fields are
// ignored. With a Namespace and no Limits, the result has the counters of all
// limits that the node has seen for the subject, and Usage.Unknown is the
// number of its other counters.
//
// The error is the context's, ErrTimeout, ErrUnavailable, ErrQueueFull,
// ErrClosed, ErrBadAnswer, ErrRequest, or an *Error from a node, such as one
// with the Code "no-owner" if the subject's owner can't be reached.
func (c *Client) Usage(ctx context.Context, q Request) (Usage, error) {
	body, err := q.appendTarget(nil)
	if err != nil {
		return Usage{}, err
	}
	r, err := c.call(ctx, "/v1/usage", body, retryAlways)
	return r.usage(&q, err)
}

// Reset clears the counters of a subject, and returns its usage afterwards. q
// names the subject as for Usage, and may have a LimitName and a RequestID. The
// token needs the scope adjust. Reset retries if no answer comes, and takes
// effect at most once. The errors are those of Usage.
func (c *Client) Reset(ctx context.Context, q Request) (Usage, error) {
	fields, err := q.appendLimitName(nil)
	if err != nil {
		return Usage{}, err
	}
	return c.changeUsage(ctx, "/v1/reset", &q, fields)
}

// changeUsage makes a call that changes what the subject of q has used. It adds
// fields to the body; each must end with a comma.
func (c *Client) changeUsage(ctx context.Context, path string, q *Request, fields []byte) (Usage, error) {
	body, err := q.appendTarget(fields)
	if err != nil {
		return Usage{}, err
	}
	r, err := c.callOnce(ctx, path, body, q.RequestID)
	return r.usage(q, err)
}

// usage parses the answer to a call about the subject of q. If err, the error
// of that call, is not nil, it returns that.
func (rp *reply) usage(q *Request, err error) (Usage, error) {
	if err != nil {
		return Usage{}, err
	}
	if rp.status != http.StatusOK {
		return Usage{}, rp.problem()
	}
	var u usage
	if err := rp.decode(&u); err != nil {
		return Usage{}, err
	}
	return u.usage(q.Key)
}

// maxOnce bounds a call that takes effect once. Nodes remember its id for a
// minute; a retry that comes later would take effect again.
const maxOnce = 55 * time.Second

// callOnce makes a call that is safe to retry because it has an id: the
// caller's, or a generated one. If a node of an older release rejects the
// generated id, callOnce repeats the call without it, and from then on retries
// only if the call can't have taken effect. It ends after [maxOnce] at the latest.
func (c *Client) callOnce(ctx context.Context, path string, body []byte, id string) (*reply, error) {
	generated := id == ""
	if generated {
		id = rand.Text()
	}

	// The body is copied, because it may have to be sent without the id.
	named, err := appendRequestID(append(slices.Clone(body[:len(body)-1]), ','), id)
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithTimeoutCause(ctx, maxOnce, ErrTimeout)
	defer cancel()
	r, err := c.call(ctx, path, append(named, '}'), retryAlways)
	if err == nil && generated && r.status == http.StatusBadRequest && r.problem().Code == "unknown-field" {
		return c.call(ctx, path, body, retryIfUnprocessed)
	}

	return r, err
}

// call makes an unbatched call. While the owner can't be reached, it retries,
// if the call may be repeated.
func (c *Client) call(ctx context.Context, path string, body []byte, retry retryPolicy) (*reply, error) {
	if !c.beginCall() {
		return nil, ErrClosed
	}

	defer c.running.Done()

	select {
	case c.otherCalls <- struct{}{}:
		defer func() { <-c.otherCalls }()
	default:
		return nil, ErrQueueFull
	}

	ctx, cancel := c.withTimeout(ctx)
	defer cancel()

	return c.askUntilOwned(ctx, path, body, retry)
}

// askUntilOwned asks until the owner can be reached, if the call may be repeated.
func (c *Client) askUntilOwned(ctx context.Context, path string, body []byte, retry retryPolicy) (*reply, error) {
	var last *Error
	for {
		r, err := c.askInTurn(ctx, path, body, retry)
		e, answered := errors.AsType[*Error](err)
		if last != nil && !answered && err != nil {
			// The node's last error tells more than that the time is up.
			err = fmt.Errorf("%w: %w", err, last)
		}

		if retry == retryIfUnprocessed || !passesSoon(err) || !sleep(ctx, ownerPause) {
			return r, err
		}

		last = e
	}
}

// askInTurn calls ask once few enough other calls are in flight.
func (c *Client) askInTurn(ctx context.Context, path string, body []byte, retry retryPolicy) (*reply, error) {
	before, began := c.answers.Load(), time.Now()
	select {
	case c.otherInFlight <- struct{}{}:
		defer func() { <-c.otherInFlight }()
		late := time.Since(began) > c.options.Timeout/2
		r, err := c.ask(ctx, path, body, maxAnswer, retry)
		if late && errors.Is(err, ErrTimeout) {
			err = c.starvedError(before, err)
		}
		return r, err
	case <-ctx.Done():
		return nil, c.starvedError(before, context.Cause(ctx))
	}
}

// starvedError returns the error of a call that failed with err after it was
// sent too late or never. If nodes have answered other calls since, they are
// healthy, and the cause is this client's queue: the error then wraps
// ErrQueueFull.
func (c *Client) starvedError(before int64, err error) error {
	if c.answers.Load() == before || errors.Is(err, ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: not sent in time: %w", ErrQueueFull, err)
}

// sleep waits for d. It reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
