package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

// ErrSlotLost is the cause of the end of a Slot's Context if the slot is held no longer: it is over at the nodes, or none of them
// has renewed it in time.
var ErrSlotLost = errors.New("client: the slot is lost")

// maxWho bounds Request.Who, in bytes.
const maxWho = 32

// The pauses of an Acquire that waits, and between the attempts of a renewal.
const (
	firstSlotPause = 25 * time.Millisecond
	maxSlotPause   = time.Second
)

// Refused is the error of an Acquire that took no slot. Implementations of Acquire make it with NewRefused.
type Refused struct {
	// Decision says why. RetryAfter is the time until the next slot ends by itself; one may be released earlier.
	Decision
	cause error
}

// NewRefused returns the error of an Acquire that d refuses. cause is why no node decided; nil if one did.
func NewRefused(d Decision, cause error) *Refused { return &Refused{d, cause} }

// Error returns the reason.
func (r *Refused) Error() string {
	if r.cause != nil {
		return r.cause.Error()
	}
	return "client: refused: " + r.Reason
}

// Unwrap returns why no node decided; nil if one did.
func (r *Refused) Unwrap() error { return r.cause }

// Slot is one of a bounded number of things that go on at once. Acquire returns it, and it renews itself until Close.
type Slot struct {
	// Decision is that of Acquire.
	Decision
	// ID identifies the slot at any node. It is empty if nothing is held: no node decided, and Options let the call pass.
	ID string
	// Err is why no node decided; nil if one did.
	Err error

	keeper SlotKeeper
	ctx    context.Context // what Context returns
	cancel context.CancelCauseFunc
	stop   context.CancelFunc // ends the renewals
	kept   chan struct{}      // closed once they have ended
	gone   bool               // a node has said that the slot is over; written before kept is closed

	closing sync.Once
	closed  error  // of Close
	onClose func() // nil: nothing
}

// SlotKeeper renews and releases slots. *Client is one, and so is *node.Node, a node embedded in this process.
type SlotKeeper interface {
	// RenewSlot holds a slot for longer, and returns until when, by this process's clock.
	RenewSlot(ctx context.Context, id string) (until time.Time, err error)
	// ReleaseSlot gives a slot back. It is safe to repeat.
	ReleaseSlot(ctx context.Context, id string) error
	// Go runs f in a goroutine that closing the keeper waits for. It reports false, and does nothing, if the keeper is closed.
	Go(f func()) bool
}

// NewSlot returns the slot with an id, which is held until a time by this process's clock, and has k renew it. Its Context is derived
// from ctx. With an empty id, nothing is held. It is for implementations of Acquire.
func NewSlot(ctx context.Context, k SlotKeeper, d Decision, id string, until time.Time) *Slot {
	s := &Slot{Decision: d, ID: id, keeper: k, kept: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	// The work goes on for a while after its context has ended, and it holds its slot until Close.
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	if id == "" || !k.Go(func() { s.keep(renewing, until) }) {
		close(s.kept)
	}
	return s
}

// Context ends with the context given to Acquire, and as soon as the slot may no longer be held: its cause is then ErrSlotLost. What a
// slot protects should run in it. It also ends with Close.
func (s *Slot) Context() context.Context { return s.ctx }

// Close releases the slot, and ends its Context and its renewals. It sends the release whatever has become of the context given to
// Acquire, and repeats it for Options.Timeout at most. If that fails, the slot ends by itself, unless the node that was asked frees it
// earlier. Close may be called several times, and at the same time; all calls return the same.
func (s *Slot) Close() error {
	s.closing.Do(func() {
		defer s.end()()
		if s.ID != "" && !s.gone {
			s.closed = s.keeper.ReleaseSlot(context.WithoutCancel(s.ctx), s.ID)
		}
	})
	return s.closed
}

// end ends the renewals, and waits for one under way: it must not overtake the release. It returns what to do in the end.
func (s *Slot) end() func() {
	s.stop()
	s.cancel(context.Canceled)
	<-s.kept
	if s.onClose == nil {
		return func() {}
	}
	return s.onClose
}

// forget ends the renewals without a release: settling its reservation releases the slot.
func (s *Slot) forget() { s.closing.Do(func() { s.end()() }) }

// CloseSoon is Close, without waiting for it.
func (s *Slot) CloseSoon() {
	if s.ID == "" || !s.keeper.Go(func() { s.Close() }) {
		s.Close()
	}
}

// keep renews the slot whenever a third of its time is over, until ctx ends or the slot is lost.
func (s *Slot) keep(ctx context.Context, until time.Time) {
	defer close(s.kept)
	next := thirdOf(until)
	pause := time.Duration(0)
	for {
		if !sleep(ctx, time.Until(next)) {
			return
		}
		renewed, err := s.renew(ctx, until)
		answered, isAnswer := errors.AsType[*Error](err)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			until, next, pause = renewed, thirdOf(renewed), 0
			continue
		case isAnswer && answered.Code == codeUnknownSlot:
			s.gone = true
			s.cancel(fmt.Errorf("%w: %w", ErrSlotLost, err))
			return
		case time.Until(until) <= 0:
			s.cancel(fmt.Errorf("%w: it was not renewed in time: %w", ErrSlotLost, err))
			return
		}
		pause = min(max(2*pause, firstSlotPause), maxSlotPause)
		next = time.Now().Add(min(pause, time.Until(until)))
	}
}

// renew makes one attempt, which ends with the slot at the latest.
func (s *Slot) renew(ctx context.Context, until time.Time) (time.Time, error) {
	if time.Until(until) <= 0 {
		return time.Time{}, ErrTimeout // the process was stalled
	}
	ctx, cancel := context.WithDeadlineCause(ctx, until, ErrTimeout)
	defer cancel()
	return s.keeper.RenewSlot(ctx, s.ID)
}

// thirdOf returns when a third of the time until then is over.
func thirdOf(until time.Time) time.Time { return time.Now().Add(time.Until(until) / 3) }

// Acquire takes a slot of each limit with the algorithm concurrency that applies to q, and q's costs from the limits beside them: all
// or nothing. q.Slots is how many, q.Who who holds them. ttl bounds how long a slot is held without being renewed, rounded up to
// milliseconds; 0 means as long as the limits say. The slot renews itself whenever a third of that time is over, and counts it from when
// the request was sent.
//
// Either the Slot or the error is nil. The caller must Close the Slot, and do what it protects in its Context. The error is a *Refused,
// whose Decision says why; it wraps the cause if no node decided. If Options lets a call pass that no node decided, the Slot has no ID,
// and an Err.
//
// With q.Wait, a call that finds no free slot asks again, in growing pauses of up to a second, until ctx ends.
func (c *Client) Acquire(ctx context.Context, q Request, ttl time.Duration) (*Slot, error) {
	body, err := q.appendAcquire(ttl)
	if err != nil {
		return nil, &Refused{c.fallbackDecision(&q, err), err}
	}
	return WaitForSlot(ctx, q.Wait, func() (*Slot, error) { return c.acquire(ctx, &q, body) })
}

// WaitForSlot calls acquire and, if wait is set, calls it again as long as all slots are held and ctx has not ended, after growing
// pauses. It is for implementations of Acquire.
func WaitForSlot(ctx context.Context, wait bool, acquire func() (*Slot, error)) (*Slot, error) {
	pause := firstSlotPause
	for {
		s, err := acquire()
		refused, isRefused := errors.AsType[*Refused](err)
		if !wait || !isRefused || refused.cause != nil || refused.Never() || refused.Denied() {
			return s, err
		}
		rest := pause
		if refused.RetryAfter > 0 {
			rest = min(rest, refused.RetryAfter)
		}
		if !sleep(ctx, rest) {
			refused.cause = context.Cause(ctx)
			return nil, refused
		}
		pause = min(2*pause, maxSlotPause)
	}
}

// acquire makes one attempt.
func (c *Client) acquire(ctx context.Context, q *Request, body []byte) (*Slot, error) {
	id := cmp.Or(q.RequestID, rand.Text()) // a repeated attempt gets the slot of the first
	body, err := appendRequestID(append(body[:len(body):len(body)], ','), id)
	if err != nil {
		return nil, &Refused{c.fallbackDecision(q, err), err}
	}
	r, err := c.call(ctx, "/v1/acquire", append(body, '}'), retryAlways)
	var a answer
	var d Decision
	if err == nil {
		d, err = r.decision(&a, false)
	}
	if err == nil && d.Allowed && a.Slot != "" && a.ExpiresMS <= 0 {
		err = fmt.Errorf("%w: %s gave a slot without a time", ErrBadAnswer, r.node.baseURL)
	}
	if err != nil {
		d = c.fallbackDecision(q, err)
		if !d.Allowed {
			return nil, &Refused{d, err}
		}
		s := NewSlot(ctx, c, d, "", time.Time{})
		s.Err = err
		return s, nil
	}
	if q.Headers {
		d.headers = headersOf(r.header)
	}
	if !d.Allowed {
		return nil, &Refused{d, nil}
	}
	return c.hold(ctx, d, &a, r.sent)
}

// hold returns the slot of an answer to a request that was sent at a time.
func (c *Client) hold(ctx context.Context, d Decision, a *answer, sent time.Time) (*Slot, error) {
	s := NewSlot(ctx, c, d, a.Slot, sent.Add(millis(a.ExpiresMS)))
	if s.ID == "" || c.addSlot(s) {
		return s, nil
	}
	s.Close()
	return nil, &Refused{Decision{DecidedBy: ByError}, ErrClosed}
}

// RenewSlot holds a slot for as long as at first, from now on, and returns until when, counted from when the request was sent. Slots do
// that by themselves. An *Error with the Code "unknown-slot" means that the slot is over.
func (c *Client) RenewSlot(ctx context.Context, id string) (until time.Time, err error) {
	r, err := c.call(ctx, "/v1/renew", slotBody(id), retryAlways)
	if err != nil {
		return time.Time{}, err
	}
	if r.status != http.StatusOK {
		return time.Time{}, r.problem()
	}
	var renewed struct {
		ExpiresMS int64 `json:"expires_ms"`
	}
	if err := r.decode(&renewed); err != nil {
		return time.Time{}, err
	}
	return r.sent.Add(millis(renewed.ExpiresMS)), nil
}

// ReleaseSlot gives a slot back; a second call frees nothing, and is no error. Slot.Close does that. It retries for Options.Timeout at
// most, also while the client is being closed.
func (c *Client) ReleaseSlot(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.Timeout, ErrTimeout)
	defer cancel()
	pause := firstSlotPause
	for {
		r, err := c.askUntilOwned(ctx, "/v1/release", slotBody(id), retryAlways)
		switch {
		case err == nil && r.status == http.StatusOK:
			return nil
		case err == nil:
			return r.problem()
		case !sleep(ctx, pause):
			return err
		}
		pause *= 2
	}
}

// Go implements SlotKeeper.
func (c *Client) Go(f func()) bool { return c.spawn(f) }

// slotBody returns the body of a call about a slot.
func slotBody(id string) []byte {
	return append(appendString([]byte(`{"slot":`), id), '}')
}

// addSlot records a slot that Close releases. It reports false if the client is closed.
func (c *Client) addSlot(s *Slot) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.slots[s] = struct{}{}
	s.onClose = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.slots, s)
	}
	return true
}

// releaseSlots closes all slots. It takes little more than Options.Timeout.
func (c *Client) releaseSlots() {
	c.mu.Lock()
	held := slices.Collect(maps.Keys(c.slots))
	c.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range held {
		all.Go(func() { s.Close() })
	}
	all.Wait()
}

// rememberReserved records the slot of a reservation until it is closed.
func (c *Client) rememberReserved(id string, s *Slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved[id] = s
	s.onClose = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.slots, s)
		delete(c.reserved, id)
	}
}

// reservedSlot returns the slot of a reservation; nil if there is none.
func (c *Client) reservedSlot(id string) *Slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reserved[id]
}

// appendAcquire returns the body of an acquire without its id.
func (r *Request) appendAcquire(ttl time.Duration) ([]byte, error) {
	switch {
	case r.Mode != "" && r.Mode != CheckMode:
		return nil, fmt.Errorf("%w: Mode is %q; a slot is either held or not, so it must be check", ErrRequest, r.Mode)
	case r.Slots < 0:
		return nil, fmt.Errorf("%w: Slots is %d; it must not be negative", ErrRequest, r.Slots)
	case ttl < 0:
		return nil, fmt.Errorf("%w: ttl is %v; it must not be negative", ErrRequest, ttl)
	case len(r.Who) > maxWho || !utf8.ValidString(r.Who):
		return nil, fmt.Errorf("%w: Who is %.80q; it must be UTF-8 of at most %d bytes", ErrRequest, r.Who, maxWho)
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	b, err := r.appendSubjects([]byte{'{'})
	if err != nil {
		return nil, err
	}
	if r.Detail {
		b = append(b, `"detail":true,`...)
	}
	if r.Slots > 0 {
		b = append(strconv.AppendInt(append(b, `"n":`...), r.Slots, 10), ',')
	}
	if r.Who != "" {
		b = append(appendString(append(b, `"who":`...), r.Who), ',')
	}
	if ttl > 0 {
		b = append(strconv.AppendInt(append(b, `"ttl_ms":`...), ceil(ttl, time.Millisecond), 10), ',')
	}
	return checkSize(b[:len(b)-1])
}
