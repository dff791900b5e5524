package authority

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/ring"
)

const (
	// askEvery is the pause between two requests; a request is repeated so often before the term is over that
	// some may be lost.
	askEvery = Term / 8
	// askTimeout bounds one attempt.
	askTimeout = Term / 2
	// maxAsks bounds the attempts under way: one, and one more that doesn't wait for the first.
	maxAsks = 2
	// giveUpPause lies between two attempts to tell the leader that authority is given up.
	giveUpPause = Term / 40
)

// HolderConfig is what a Holder needs: all of it.
type HolderConfig struct {
	Self ring.NodeID
	Boot uint64 // this process; never 0
	// Boottime is a clock that goes on in suspend: Clock.Boottime. Its readings may be behind by Slack, and are
	// never ahead.
	Boottime func() time.Duration
	// Ask sends the request to the leader, and returns when ctx ends at the latest.
	Ask func(ctx context.Context, r Request) (Reply, error)
	// Status fills in a Request but for Node, Boot, GivingUp and Without, as it is now. It must not block.
	Status func() Request
	// OnChange is called after Valid has changed, from one goroutine. It must not block for long.
	OnChange func()
	Logger   *slog.Logger
}

// Holder keeps a node's authority alive, and knows when it has none.
type Holder struct {
	config HolderConfig

	// until is the reading of Boottime at which authority ends; 0 without any.
	until atomic.Int64
	once  atomic.Bool

	// mu guards what an answer is judged by, and writes to until.
	mu         sync.Mutex
	era        uint64        // raised by Revoke: an answer to a question of an earlier era counts for nothing
	generation int64         // that until was granted for
	lost       time.Duration // the reading at which authority was dropped last, or this process began
	gaveUp     bool
	why        string // of the last answer that was no grant; empty after one

	poke   chan struct{} // capacity 1
	turned chan struct{} // capacity 1: authority was granted or revoked, or an attempt has ended
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
}

// NewHolder returns a Holder without authority, which asks for it from Start on. Close ends it.
func NewHolder(c HolderConfig) *Holder {
	h := &Holder{config: c, poke: make(chan struct{}, 1), turned: make(chan struct{}, 1)}
	h.lost = c.Boottime()
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Start begins to ask, at once.
func (h *Holder) Start() { h.group.Go(h.run) }

// Valid reports whether this node may act as an owner at this moment.
func (h *Holder) Valid() bool {
	until := h.until.Load()
	return until != 0 && int64(h.config.Boottime()) < until
}

// Once reports whether there was authority since the process began.
func (h *Holder) Once() bool { return h.once.Load() }

// Until is the reading of the clock at which authority ends, if it isn't renewed before; 0 without any.
func (h *Holder) Until() time.Duration { return time.Duration(h.until.Load()) }

// Poke asks now: the leader has changed, or this node has applied something.
func (h *Holder) Poke() { signal(h.poke) }

// Revoke ends authority at once, and what was asked before brings none: this node has applied its own Ended. It is
// called after Status has the new generation.
func (h *Holder) Revoke() {
	now := h.config.Boottime()
	h.mu.Lock()
	h.drop(now)
	h.mu.Unlock()
	signal(h.turned)
	h.Poke()
}

// drop ends authority and voids the requests under way. mu is held.
func (h *Holder) drop(now time.Duration) {
	h.lost = h.without(now)
	h.era++
	h.until.Store(0)
}

// GiveUp ends authority for good: this process will have none again. It returns when the leader knows, so
// that the node's next process need not wait, or when ctx ends.
func (h *Holder) GiveUp(ctx context.Context) error {
	now := h.config.Boottime()
	h.mu.Lock()
	h.gaveUp = true
	h.drop(now)
	h.mu.Unlock()
	signal(h.turned)
	for {
		r := h.request()
		r.GivingUp = true
		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		_, err := h.config.Ask(attempt, r)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(giveUpPause):
		}
	}
}

// Close stops asking. Authority is not given up, it runs out.
func (h *Holder) Close() error {
	h.cancel()
	h.group.Wait()
	return nil
}

// attempts are the requests under way, oldest first. They belong to run.
type attempts []*attempt

type attempt struct {
	began  time.Time
	cancel context.CancelFunc
	done   atomic.Bool
}

// run asks regularly and when poked, and reports changes.
func (h *Holder) run() {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	var under attempts
	defer func() {
		for _, a := range under {
			a.cancel()
		}
	}()
	wish, valid := true, false
	for {
		under = under.pending()
		if wish && len(under) < maxAsks {
			under, wish = append(under, h.begin()), false
		}
		h.compare()
		if now := h.Valid(); now != valid {
			valid = now
			h.config.OnChange()
		}
		if valid {
			expiry.Reset(max(time.Millisecond, h.Until()-h.config.Boottime()))
		}
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
			wish = true
		case <-h.poke:
			wish = true
			under.makeRoom()
		case <-h.turned:
		case <-expiry.C:
		}
	}
}

// pending drops the attempts that have ended.
func (u attempts) pending() attempts {
	return slices.DeleteFunc(u, func(a *attempt) bool {
		done := a.done.Load()
		if done {
			a.cancel()
		}
		return done
	})
}

// makeRoom gives up the oldest attempt when there is room for no other and it has been under way for long: it may
// have gone to a leader that is no more.
func (u attempts) makeRoom() {
	if len(u) == maxAsks && time.Since(u[0].began) >= Term/4 {
		u[0].cancel()
	}
}

// begin starts an attempt.
func (h *Holder) begin() *attempt {
	ctx, cancel := context.WithTimeout(h.ctx, askTimeout)
	a := &attempt{began: time.Now(), cancel: cancel}
	h.group.Go(func() {
		h.ask(ctx)
		a.done.Store(true)
		signal(h.turned)
	})
	return a
}

// without is the reading since when there is no authority; now while there is some. mu is held.
func (h *Holder) without(now time.Duration) time.Duration {
	return min(max(h.lost, h.Until()), now)
}

// request is what to send, but for its being the last word.
func (h *Holder) request() Request {
	r := h.config.Status()
	r.Node, r.Boot, r.GivingUp = h.config.Self, h.config.Boot, false
	r.Unreachable, r.Relayed, r.Release, r.Zones = reported(r.Unreachable), reported(r.Relayed), cut(r.Release), cut(r.Zones)
	now := h.config.Boottime()
	h.mu.Lock()
	defer h.mu.Unlock()
	r.Without = now - h.without(now)
	return r
}

// ask makes one attempt. The term counts from before the request is made up: whatever happens later, to this
// process, the network or the leader, can only make it shorter.
func (h *Holder) ask(ctx context.Context) {
	h.mu.Lock()
	era, gaveUp := h.era, h.gaveUp
	h.mu.Unlock()
	if gaveUp {
		return
	}
	sent := h.config.Boottime()
	r := h.request()
	reply, err := h.config.Ask(ctx, r)
	present := h.config.Status().Generation

	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil:
		h.why = "the leader can't be asked"
		h.config.Logger.Debug("authority was not answered", "error", err)
	case !reply.Granted:
		if h.why != reply.Why {
			h.config.Logger.Info("authority was refused", "why", reply.Why)
		}
		h.why = reply.Why
	case era == h.era && present == r.Generation:
		h.why = ""
		h.generation = r.Generation
		if until := int64(sent + Term - Slack); until > h.until.Load() {
			h.until.Store(until)
			h.once.Store(true)
		}
	}
}

// compare drops authority that was granted for a generation that is no more, should nobody have called Revoke.
func (h *Holder) compare() {
	present, now := h.config.Status().Generation, h.config.Boottime()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until.Load() != 0 && h.generation != present {
		h.drop(now)
	}
}

// signal wakes the one who waits on c, a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
