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

// ErrSlotLost is the cause of the end of a Slot's Context if the slot is no
// longer held: it is over at the nodes, or none of them has renewed it in time.
var ErrSlotLost = errors.New("client: the slot is lost")

// maxWho bounds Request.Who, in bytes.
const maxWho = 32

// The pauses of an Acquire that waits, and between the attempts of a renewal.
const (
	firstSlotPause = 25 * time.Millisecond
	maxSlotPause   = time.Second
)

// Refused is the error of an Acquire that took no slot. Implementations of
// Acquire make it with NewRefused.
type Refused struct {
	// Decision says why. RetryAfter is the time until the next slot ends by itself;
	// one may be released earlier.
	Decision
	cause error
}

// NewRefused returns the error of an Acquire that d refuses. cause is why no
// node decided; nil if one did.
func NewRefused(d Decision, cause error) *Refused { return &Refused{d, cause} }

// Error returns the reason.
func (e *Refused) Error() string {
	if e.cause != nil {
		return e.cause.Error()
	}
	return "client: refused: " + e.Reason
}

// Unwrap returns why no node decided; nil if one did.
func (e *Refused) Unwrap() error { return e.cause }

// Slot is one of a bounded number of things that go on at once. Acquire returns
// it, and it renews itself until Close.
type Slot struct {
	// Decision is that of Acquire.
	Decision
	// ID identifies the slot at any node. It is empty if nothing is held: no node
	// decided, and Options let the call pass.
	ID string
	// Err is why no node decided; nil if one did.
	Err error

	keeper       SlotKeeper
	ctx          context.Context // what Context returns
	cancel       context.CancelCauseFunc
	stop         context.CancelFunc // ends the renewals
	renewalsDone chan struct{}      // closed once the renewals have ended
	gone         bool               // a node has said that the slot is over; written before renewalsDone is closed

	closeOnce sync.Once
	closeErr  error // what Close returns
}

// SlotKeeper renews and releases slots. *Client is one, and so is *node.Node, a
// node embedded in this process.
type SlotKeeper interface {
	// RenewSlot holds a slot for longer, and returns until when, by this process's clock.
	RenewSlot(ctx context.Context, id string) (until time.Time, err error)
	// ReleaseSlot gives a slot back. It is safe to repeat.
	ReleaseSlot(ctx context.Context, id string) error
	// Go runs f in a goroutine that closing the keeper waits for. It reports false,
	// and does nothing, if the keeper is closed.
	Go(f func()) bool
	// Slots returns the set of slots that are held. Closing the keeper closes the
	// set first.
	Slots() *SlotSet
}

// SlotSet has the slots that a SlotKeeper holds. The zero SlotSet is empty.
type SlotSet struct {
	mu     sync.Mutex // guards the rest
	closed bool
	held   map[*Slot]struct{}
	// reserved are the slots of reservations that are not settled, by their ids.
	reserved map[string]*Slot
}

// Reserve notes the slot of a reservation, until the slot's context ends.
func (all *SlotSet) Reserve(id string, s *Slot) {
	all.mu.Lock()
	if all.reserved == nil {
		all.reserved = map[string]*Slot{}
	}
	all.reserved[id] = s
	all.mu.Unlock()
	context.AfterFunc(s.ctx, func() { all.takeReserved(id) })
}

// Settle ends the renewals of a reservation's slot, if it has one. Settling the
// reservation releases it.
func (all *SlotSet) Settle(id string) {
	if s := all.takeReserved(id); s != nil {
		// Close then does nothing, because settling the reservation releases the
		// slot.
		s.closeOnce.Do(s.end)
	}
}

// takeReserved removes and returns the slot of a reservation; nil if there is none.
func (all *SlotSet) takeReserved(id string) *Slot {
	all.mu.Lock()
	defer all.mu.Unlock()
	s := all.reserved[id]
	delete(all.reserved, id)
	return s
}

// add adds s. It reports false if the set is closed.
func (all *SlotSet) add(s *Slot) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.held == nil {
		all.held = map[*Slot]struct{}{}
	}
	if !all.closed {
		all.held[s] = struct{}{}
	}
	return !all.closed
}

func (all *SlotSet) remove(s *Slot) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.held, s)
}

// Close closes all slots at the same time, and lets no others be added.
func (all *SlotSet) Close() {
	all.mu.Lock()
	all.closed = true
	held := slices.Collect(maps.Keys(all.held))
	all.mu.Unlock()
	// The lock is free here, because each slot removes itself from the set.
	var releases sync.WaitGroup
	for _, s := range held {
		releases.Go(func() { s.Close() })
	}
	releases.Wait()
}

// NewSlot returns the slot with an id, which is held until a time by this
// process's clock, and has k renew it. Its Context is derived from ctx. With an
// empty id, nothing is held. If k is closed, it releases the slot, and returns
// ErrClosed. It is for implementations of Acquire.
func NewSlot(ctx context.Context, k SlotKeeper, d Decision, id string, until time.Time) (*Slot, error) {
	s := &Slot{Decision: d, ID: id, keeper: k, renewalsDone: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(ctx)

	// The work goes on for a while after its context has ended, and it holds its slot until Close.
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop

	if id == "" {
		close(s.renewalsDone)
		return s, nil
	}

	added := k.Slots().add(s)
	if !added || !k.Go(func() { s.keepRenewing(renewing, until) }) {
		// Nobody renews the slot, so Close must not wait for renewals.
		close(s.renewalsDone)
		s.Close()
		return nil, ErrClosed
	}

	return s, nil
}

// Context ends with the context given to Acquire, and as soon as the slot may
// no longer be held: its cause is then ErrSlotLost. The protected work should
// run in it. It also ends with Close.
func (s *Slot) Context() context.Context { return s.ctx }

// Close releases the slot, and ends its Context and its renewals. It sends the
// release even if the context given to Acquire has ended, and repeats it for
// Options.Timeout at most. If that fails, the slot ends by itself, unless the
// node that was asked frees it earlier. Close may be called several times, and
// at the same time; all calls return the same.
func (s *Slot) Close() error {
	s.closeOnce.Do(func() {
		s.end()
		if s.ID != "" && !s.gone {
			s.closeErr = s.keeper.ReleaseSlot(context.WithoutCancel(s.ctx), s.ID)
		}
	})
	return s.closeErr
}

// end ends the renewals, and waits for one under way: a renewal must not
// overtake the release.
func (s *Slot) end() {
	s.stop()
	s.cancel(context.Canceled)
	<-s.renewalsDone
	s.keeper.Slots().remove(s)
}

// CloseSoon is Close, without waiting for it.
func (s *Slot) CloseSoon() {
	if s.ID == "" || !s.keeper.Go(func() { s.Close() }) {
		s.Close()
	}
}

// keepRenewing renews the slot whenever a third of its time is over, until ctx
// ends or the slot is lost.
func (s *Slot) keepRenewing(ctx context.Context, until time.Time) {
	defer close(s.renewalsDone)

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
			until = renewed
			next = thirdOf(renewed)
			pause = 0
			continue
		case isAnswer && answered.Code == codeUnknownSlot:
			s.gone = true
			s.cancel(fmt.Errorf("%w: %w", ErrSlotLost, err))
			return
		case time.Until(until) <= 0:
			s.lose(err)
			return
		}

		pause = min(max(2*pause, firstSlotPause), maxSlotPause)
		// The wait ends at the slot's end at the latest: the slot is lost then, and
		// the work must stop.
		next = time.Now().Add(min(pause, time.Until(until)))
	}
}

// renew makes one attempt. The slot's context ends with the slot, however long the attempt takes.
func (s *Slot) renew(ctx context.Context, until time.Time) (time.Time, error) {
	left := time.Until(until)
	if left <= 0 {
		return time.Time{}, ErrTimeout // the process was stalled
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, ErrTimeout)
	defer cancel()
	defer time.AfterFunc(left, func() { s.lose(ErrTimeout) }).Stop()
	renewed, err := s.keeper.RenewSlot(ctx, s.ID)
	if err == nil && time.Until(until) <= 0 {
		err = ErrTimeout // too late: the work has been told to stop
	}
	return renewed, err
}

// lose ends the slot's context, because the slot was not renewed in time.
func (s *Slot) lose(err error) {
	s.cancel(fmt.Errorf("%w: it was not renewed in time: %w", ErrSlotLost, err))
}

// thirdOf returns when a third of the time from now to until is over.
func thirdOf(until time.Time) time.Time { return time.Now().Add(time.Until(until) / 3) }

// Acquire takes a slot of each limit with the algorithm concurrency that
// applies to q, and q's costs from the limits beside them: all or nothing.
// q.Slots is how many, q.Who who holds them. ttl bounds how long a slot is held
// without being renewed, rounded up to milliseconds; 0 means as long as the
// limits say. The slot renews itself whenever a third of that time is over, and
// counts it from when the request was sent.
//
// Either the Slot or the error is nil. The caller must Close the Slot, and run
// the protected work in its Context. The error is a *Refused, whose Decision
// says why; it wraps the cause if no node decided. If Options lets a call pass
// that no node decided, the Slot has no ID, and an Err.
//
// With q.Wait, a call that finds no free slot asks again, in growing pauses of
// up to a second, until ctx ends.
func (c *Client) Acquire(ctx context.Context, q Request, ttl time.Duration) (*Slot, error) {
	body, err := q.appendAcquire(ttl)
	if err != nil {
		return nil, &Refused{c.fallbackDecision(&q, err), err}
	}
	return WaitForSlot(ctx, q.Wait, func() (*Slot, error) { return c.acquire(ctx, &q, body) })
}

// WaitForSlot calls acquire and, if wait is set, calls it again as long as all
// slots are held and ctx has not ended, after growing pauses. It is for
// implementations of Acquire.
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

	r, err := c.callToTake(ctx, "/v1/acquire", append(body, '}'))
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
		s, _ := NewSlot(ctx, c, d, "", time.Time{})
		s.Err = err
		return s, nil
	}

	if q.Headers {
		d.headers = headersOf(r.header)
	}

	if !d.Allowed {
		return nil, &Refused{d, nil}
	}

	s, err := NewSlot(ctx, c, d, a.Slot, r.sent.Add(millis(a.ExpiresMS)))
	if err != nil {
		return nil, &Refused{Decision{DecidedBy: ByError}, err}
	}

	return s, nil
}

// callToTake makes a call that takes a slot or a reservation. If ctx ends
// first, a slot or a reservation that is taken later is given back.
func (c *Client) callToTake(ctx context.Context, path string, body []byte) (*reply, error) {
	var r *reply
	var err error
	// The channel has no buffer: either the caller takes the answer, or the
	// goroutine knows that nobody will and gives back what it took.
	answered := make(chan struct{})
	ok := c.spawn(func() {
		r, err = c.call(context.WithoutCancel(ctx), path, body, retryAlways)
		select {
		case answered <- struct{}{}:
		case <-ctx.Done(): // nobody waits any more
			c.giveBack(r, err)
		}
	})
	if !ok {
		return nil, ErrClosed
	}

	select {
	case <-answered:
		return r, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// giveBack gives back the slot or the reservation of an answer that comes too
// late.
func (c *Client) giveBack(r *reply, err error) {
	if err != nil || r.status != http.StatusOK {
		return
	}

	var late struct {
		Reservation string `json:"reservation"`
		Slot        string `json:"slot"`
	}
	if err := r.decode(&late); err != nil {
		return
	}

	// If a call fails, the slot or the reservation ends by itself.
	switch {
	case late.Reservation != "":
		_, _ = c.Settle(context.Background(), late.Reservation, nil) // with its slot
	case late.Slot != "":
		_ = c.ReleaseSlot(context.Background(), late.Slot)
	}
}

// RenewSlot holds a slot for as long again as at first, and returns until when,
// counted from when the request was sent. Slots call it by themselves. An
// *Error with the Code "unknown-slot" means that the slot is over.
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

// ReleaseSlot gives a slot back; a second call frees nothing, and is no error.
// Slot.Close calls it. It retries for Options.Timeout at most, even while the
// client is being closed.
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

// Slots implements SlotKeeper.
func (c *Client) Slots() *SlotSet { return &c.slots }

// ValidateAcquire returns an error that wraps ErrRequest if r and ttl are so
// wrong that no node could decide an Acquire.
func (r *Request) ValidateAcquire(ttl time.Duration) error {
	inMode := func(s Subject) bool { return s.Mode != "" && s.Mode != CheckMode }
	switch {
	case slices.ContainsFunc(r.Subjects, inMode):
		return fmt.Errorf("%w: Subjects: a slot is either held or not, so Mode must be check", ErrRequest)
	case r.Mode != "" && r.Mode != CheckMode:
		return fmt.Errorf("%w: Mode is %q; a slot is either held or not, so it must be check", ErrRequest, r.Mode)
	case r.Slots < 0:
		return fmt.Errorf("%w: Slots is %d; it must not be negative", ErrRequest, r.Slots)
	case ttl < 0:
		return fmt.Errorf("%w: ttl is %v; it must not be negative", ErrRequest, ttl)
	case len(r.Who) > maxWho || !utf8.ValidString(r.Who):
		return fmt.Errorf("%w: Who is %.80q; it must be UTF-8 of at most %d bytes", ErrRequest, r.Who, maxWho)
	}

	return r.Validate()
}

// appendAcquire returns the body of an acquire without its id.
func (r *Request) appendAcquire(ttl time.Duration) ([]byte, error) {
	if err := r.ValidateAcquire(ttl); err != nil {
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
