package httpd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
)

const (
	// maxWaiting bounds the answers that are held back at once.
	maxWaiting = 32 << 10
	// spareFilesDivisor is the fraction of the open-file limit that connections
	// leave free: one in spareFilesDivisor.
	spareFilesDivisor = 16
	// hangUpInterval is how often the connections of held answers are checked for
	// callers that hung up.
	hangUpInterval = 250 * time.Millisecond
)

// heldAnswers holds back the answers to checks with wait. A held answer costs
// no goroutine and no buffer, only its connection, the encoded answer and a
// runtime timer.
type heldAnswers struct {
	most    int                                 // bounds the answers held at once
	answer  func(w *waiter, left time.Duration) // sends the answer, calls freeRoom, and serves the connection again
	refused atomic.Int64                        // answers not held because the bound was reached

	mu    sync.Mutex // guards the rest
	held  map[*waiter]struct{}
	taken int           // answers not sent yet. Invariant: len(held) <= taken <= most
	ended bool          // releaseAll was called: nothing is held any more
	empty chan struct{} // closed once ended is true and taken is 0

	running sync.WaitGroup // answers being sent, and the watch for hang-ups
	stop    chan struct{}
}

// waiter is one held-back answer.
type waiter struct {
	conn          *connection
	unread        []byte        // input beyond the request
	fd            int           // the file descriptor of conn; -1: unknown
	due           time.Time     // when to send it
	delayAfterDue time.Duration // what will be left of its delay at due
	place         place
	inQueue       *limiter.Waiter // where it waits in a queue; nil: others can't have its place
	hungUp        bool            // the caller has closed the connection, or its sending side
	timer         *time.Timer
	reply         heldReply
	closes        bool  // the connection is closed after it
	charged       int64 // bytes charged to the budget
}

// maxHeldFor returns how many answers may be held back at once in a process
// that may open this many files.
func maxHeldFor(files int) int {
	return min(maxWaiting, files-files/spareFilesDivisor-min(api.MaxDataConnections, files/2))
}

// newHeldAnswers returns a heldAnswers for at most bound answers, until draining is closed.
func newHeldAnswers(bound int, draining <-chan struct{}, answer func(*waiter, time.Duration)) *heldAnswers {
	ws := &heldAnswers{
		most: bound, answer: answer, held: make(map[*waiter]struct{}), empty: make(chan struct{}),
		stop: make(chan struct{}),
	}
	ws.running.Go(func() { ws.watch(draining) })
	return ws
}

// takeRoom takes room for one more answer. It reports false if there is none.
func (ws *heldAnswers) takeRoom() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	switch {
	case ws.ended:
		return false
	case ws.taken >= ws.most:
		ws.refused.Add(1)
		return false
	}
	ws.taken++
	return true
}

// freeRoom frees it, after the answer was sent or could not be.
func (ws *heldAnswers) freeRoom() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.taken--
	ws.closeIfEmptyLocked()
}

// closeIfEmptyLocked closes empty once the last answer was sent. The caller holds ws.mu.
func (ws *heldAnswers) closeIfEmptyLocked() {
	if ws.ended && ws.taken == 0 {
		select {
		case <-ws.empty:
		default:
			close(ws.empty)
		}
	}
}

// keep keeps w, for which takeRoom has taken room, until it is due.
func (ws *heldAnswers) keep(w *waiter) {
	if p := w.place.inQueue; p != nil {
		// Wait is not called under our lock: the queue calls moveUp while it holds
		// its own, and moveUp takes ours. If moveUp comes first, the timer below
		// has the new time.
		w.inQueue = p.Wait(func(goesOn time.Time) { ws.moveUp(w, goesOn) })
	}

	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.held[w] = struct{}{}
	// The waiter's room was taken before all were released, and awaitEmpty waits
	// until it is free. So its answer is sent now.
	if ws.ended {
		ws.releaseLocked(w, true)
		return
	}
	w.timer = time.AfterFunc(time.Until(w.due), func() { ws.releaseDue(w) })
}

// releaseDue sends w's answer, which is due.
func (ws *heldAnswers) releaseDue(w *waiter) {
	// The watch looks only four times a second. A caller that hung up since
	// must not keep a place in the queue that the next one could have.
	callerGone := w.mayBeLeft() && w.fd >= 0 && len(pollHungUp([]*waiter{w})) > 0
	ws.release(w, callerGone)
}

// release sends w's answer now, unless that has already begun. callerGone means
// that the caller has hung up.
func (ws *heldAnswers) release(w *waiter, callerGone bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	// The timer, the watch and the drain may all come for w. The first one
	// sends its answer.
	if _, here := ws.held[w]; here {
		w.hungUp = callerGone
		ws.releaseLocked(w, callerGone)
	}
}

// releaseLocked removes w and starts sending its answer. The caller holds
// ws.mu, so that no goroutine starts once close waits.
func (ws *heldAnswers) releaseLocked(w *waiter, closes bool) {
	if _, here := ws.held[w]; !here {
		return
	}
	delete(ws.held, w)
	if w.timer != nil {
		w.timer.Stop()
	}
	w.closes = w.closes || closes
	left := max(0, time.Until(w.due)) + w.delayAfterDue
	ws.running.Go(func() { ws.answer(w, left) })
}

// releaseAll sends all held answers, and makes sure that later ones are not held.
func (ws *heldAnswers) releaseAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.ended = true
	for w := range ws.held {
		ws.releaseLocked(w, true)
	}
	ws.closeIfEmptyLocked()
}

// awaitEmpty returns once all held answers are sent, or when ctx ends. Call it after releaseAll.
func (ws *heldAnswers) awaitEmpty(ctx context.Context) {
	select {
	case <-ws.empty:
	case <-ctx.Done():
	}
}

// close waits for all goroutines of ws. Call it after releaseAll, when all connections are closed.
func (ws *heldAnswers) close() {
	close(ws.stop)
	ws.running.Wait()
}

// count returns the number of answers not sent yet.
func (ws *heldAnswers) count() int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.taken
}

// watch runs until close. It calls releaseAll when the node drains, and sends
// the answers of callers that hung up. A caller that closed only its sending
// side so gets its answer early, with the rest of the delay.
func (ws *heldAnswers) watch(draining <-chan struct{}) {
	tick := time.NewTicker(hangUpInterval)
	defer tick.Stop()

	var polled []*waiter
	for {
		select {
		case <-ws.stop:
			return
		case <-draining:
			ws.releaseAll()
			// A closed channel is always ready: the loop would spin.
			draining = nil
		case <-tick.C:
		}

		// The lock is free while the system is asked, because there may be tens of
		// thousands to ask about. An answer may be sent meanwhile and its
		// descriptor be reused: then release does not find it any more.
		polled = polled[:0]
		ws.mu.Lock()
		for w := range ws.held {
			if w.fd >= 0 {
				polled = append(polled, w)
			}
		}
		ws.mu.Unlock()

		for _, w := range pollHungUp(polled) {
			ws.release(w, true)
		}

		// Answers that are sent must not stay in memory until the next round.
		clear(polled)
	}
}
