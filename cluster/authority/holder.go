package authority

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/internal/wake"
	"github.com/rlnode/rlnode/ring"
)

const (
	// askInterval is the interval between requests. It is short enough that
	// authority survives several lost requests.
	askInterval = Validity / 8
	// askTimeout bounds one attempt.
	askTimeout = Validity / 2
	// maxAsks bounds the concurrent attempts. There are two, so that a second can
	// start while the first hangs.
	maxAsks = 2
	// giveUpPause is how long GiveUp waits between two attempts to reach the leader.
	giveUpPause = Validity / 40
)

// HolderConfig configures a Holder. Every field is required.
type HolderConfig struct {
	Self ring.NodeID
	Boot uint64 // this process; never 0
	// Boottime reads a clock that keeps running in suspend: Clock.Boottime. Its
	// readings may lag by ClockSlack and are never ahead.
	Boottime func() time.Duration
	// Ask sends the request to the leader. It must return when ctx ends.
	Ask func(ctx context.Context, req Request) (Reply, error)
	// Status returns the next Request, except for Node, Boot, GivingUp and
	// NoAuthorityFor. It must not block.
	Status func() Request
	// OnChange is called after Valid has changed, always from the same goroutine.
	// It must not block for long.
	OnChange func()
	Logger   *slog.Logger
}

// Holder obtains authority for a node, renews it, and tracks when it ends. Its
// methods may be called concurrently. Start must be called only once.
type Holder struct {
	config HolderConfig

	// until is the reading of Boottime at which authority ends, or has ended. It is
	// 0 before the first grant, and after authority was dropped.
	until     atomic.Int64
	everValid atomic.Bool
	// generation is the one for which authority was granted last. It is written
	// before until.
	generation atomic.Int64

	// mu guards the fields below, and writes to until and generation.
	mu sync.Mutex
	// era increases whenever authority is dropped. Replies to requests of an
	// earlier era are ignored.
	era uint64
	// lostAt is when authority was lost, as of the last dropAuthority; at first,
	// when the Holder was made. lostSince adds authority that has run out since.
	lostAt time.Duration
	gaveUp bool
	why    string // why the last attempt brought no authority; empty after a grant

	poke    chan struct{} // capacity 1
	changed chan struct{} // capacity 1: authority was granted or revoked, or an attempt has ended
	ctx     context.Context
	cancel  context.CancelFunc
	group   sync.WaitGroup
}

// NewHolder returns a Holder without authority. Start makes it ask; Close stops it.
func NewHolder(c HolderConfig) *Holder {
	h := &Holder{config: c, poke: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	h.lostAt = c.Boottime()
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Start begins to ask for authority, immediately.
func (h *Holder) Start() { h.group.Go(h.run) }

// Valid reports whether this node may act as an owner now.
func (h *Holder) Valid() bool {
	_, valid := h.Read()
	return valid
}

// Read is Valid, and also returns the generation for which authority was granted
// last. If two reads return the same generation, and authority is valid at the
// second, nobody has taken over in between: a node that is ended gets authority
// again only for a later generation.
func (h *Holder) Read() (generation int64, valid bool) {
	// If until is from a later grant, so is generation, which is read after it.
	until := h.until.Load()
	valid = until != 0 && int64(h.config.Boottime()) < until
	return h.generation.Load(), valid
}

// EverValid reports whether this process has ever had authority.
func (h *Holder) EverValid() bool { return h.everValid.Load() }

// Until returns the reading of Boottime at which authority ends unless renewed,
// or has ended. It returns 0 before the first grant, and after authority was
// revoked or given up.
func (h *Holder) Until() time.Duration { return time.Duration(h.until.Load()) }

// AskNow makes the Holder ask now, because the leader has changed or this node
// has applied an entry.
func (h *Holder) AskNow() { wake.Signal(h.poke) }

// Revoke ends authority at once and invalidates pending requests, because this
// node has applied the entry that ended it, or no longer applies entries. It then asks
// anew, so Status must already report the new generation, or Stuck.
func (h *Holder) Revoke() {
	now := h.config.Boottime()
	h.mu.Lock()
	h.dropAuthority(now)
	h.mu.Unlock()

	wake.Signal(h.changed)
	h.AskNow()
}

// dropAuthority ends authority and invalidates pending requests. The caller must hold mu.
func (h *Holder) dropAuthority(now time.Duration) {
	h.lostAt = h.lostSince(now)
	h.era++
	h.until.Store(0)
}

// HasGivenUp reports whether GiveUp was called.
func (h *Holder) HasGivenUp() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gaveUp
}

// GiveUp ends this process's authority for good, and tells the leader, so that
// the node's next process need not wait until the authority would have expired.
// It tries again until a leader has recorded it, or ctx ends. The error wraps
// the context's.
func (h *Holder) GiveUp(ctx context.Context) error {
	now := h.config.Boottime()
	h.mu.Lock()
	h.gaveUp = true
	h.dropAuthority(now)
	h.mu.Unlock()
	wake.Signal(h.changed)

	for {
		req := h.request()
		req.GivingUp = true

		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		reply, err := h.config.Ask(attempt, req)
		cancel()
		if err == nil && reply.hasRecorded() {
			return nil
		}

		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(giveUpPause):
		}
	}
}

// Close stops the Holder. It doesn't give up authority, which stays valid until it expires.
func (h *Holder) Close() error {
	h.cancel()
	h.group.Wait()
	return nil
}

// attempts are the pending requests, oldest first. Only run uses them.
type attempts []*attempt

type attempt struct {
	began  time.Time
	cancel context.CancelFunc
	done   atomic.Bool
}

// run asks regularly and when poked, and reports changes of Valid.
func (h *Holder) run() {
	tick := time.NewTicker(askInterval)
	defer tick.Stop()

	expiry := time.NewTimer(0)
	defer expiry.Stop()

	var pending attempts
	defer func() {
		for _, a := range pending {
			a.cancel()
		}
	}()

	shouldAsk := true
	wasValid := false
	for {
		pending = pending.withoutDone()
		if shouldAsk && len(pending) < maxAsks {
			pending = append(pending, h.startAttempt())
			shouldAsk = false
		}

		h.dropOutdated()

		isValid := h.Valid()
		if isValid != wasValid {
			wasValid = isValid
			h.config.OnChange()
		}

		// The loop must wake when authority ends, to call OnChange.
		if isValid {
			expiry.Reset(max(time.Millisecond, h.Until()-h.config.Boottime()))
		}

		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
			shouldAsk = true
		case <-h.poke:
			shouldAsk = true
			if len(pending) == maxAsks && time.Since(pending[0].began) >= Validity/4 {
				pending[0].cancel() // its leader may be gone
			}
		case <-h.changed:
		case <-expiry.C:
		}
	}
}

// withoutDone removes the attempts that have ended.
func (list attempts) withoutDone() attempts {
	var rest attempts
	for _, a := range list {
		if a.done.Load() {
			a.cancel()
		} else {
			rest = append(rest, a)
		}
	}
	return rest
}

func (h *Holder) startAttempt() *attempt {
	ctx, cancel := context.WithTimeout(h.ctx, askTimeout)
	a := &attempt{began: time.Now(), cancel: cancel}
	h.group.Go(func() {
		h.ask(ctx)
		a.done.Store(true)
		wake.Signal(h.changed)
	})
	return a
}

// lostSince returns the reading since which this node has had no authority, or
// now if it has authority. Authority that ran out by itself was lost at until.
// The caller must hold mu.
func (h *Holder) lostSince(now time.Duration) time.Duration {
	return min(max(h.lostAt, h.Until()), now)
}

// request returns the request to send, with GivingUp unset.
func (h *Holder) request() Request {
	req := h.config.Status()
	req.Node = h.config.Self
	req.Boot = h.config.Boot
	req.GivingUp = false

	// Status may give more than a request may hold, or more than can be registered.
	req.Unreachable = truncateList(req.Unreachable)
	req.Relayed = truncateList(req.Relayed)
	req.Release = truncateText(req.Release)
	req.Zones = truncateText(req.Zones)

	now := h.config.Boottime()
	h.mu.Lock()
	defer h.mu.Unlock()
	req.NoAuthorityFor = now - h.lostSince(now)
	return req
}

// ask makes one attempt. Validity counts from before the request is built, so
// that delays in this process, the network or the leader can only shorten it.
func (h *Holder) ask(ctx context.Context) {
	// The era is read before the request is built: anything that drops authority
	// from here on voids the reply.
	h.mu.Lock()
	era, gaveUp := h.era, h.gaveUp
	h.mu.Unlock()

	if gaveUp {
		return
	}

	sent := h.config.Boottime()
	req := h.request()
	reply, err := h.config.Ask(ctx, req)

	// An entry that ended this node may have been applied during the call. Then the
	// reply proves nothing.
	currentGeneration := h.config.Status().Generation

	h.mu.Lock()
	defer h.mu.Unlock()

	switch {
	case err != nil:
		h.why = "the leader can't be reached"
		h.config.Logger.Debug("request for authority failed", "error", err)
	case !reply.Granted:
		if h.why != reply.Reason {
			h.config.Logger.Debug("authority was refused", "why", reply.Reason)
		}
		h.why = reply.Reason
	case era == h.era && currentGeneration == req.Generation:
		h.why = ""
		// Two requests may be pending. A late reply to the older one must not
		// shorten authority, or bring back an older generation.
		until := int64(sent + Validity - ClockSlack)
		if until > h.until.Load() {
			h.generation.Store(req.Generation)
			h.until.Store(until)
			h.everValid.Store(true)
		}
	}
}

// dropOutdated drops authority granted for an old generation, in case Revoke was not called yet.
func (h *Holder) dropOutdated() {
	currentGeneration := h.config.Status().Generation
	now := h.config.Boottime()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until.Load() != 0 && h.generation.Load() != currentGeneration {
		h.dropAuthority(now)
	}
}
