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
	// maxHeld bounds the answers that are held back at once.
	maxHeld = 32 << 10
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
	capacity int                                     // bounds the answers held at once
	answer   func(w *heldAnswer, left time.Duration) // sends the answer, calls freeRoom, and serves the connection again
	refused  atomic.Int64                            // answers not held because the bound was reached

	mu    sync.Mutex // guards the rest
	all   map[*heldAnswer]struct{}
	taken int           // answers not sent yet. Invariant: len(all) <= taken <= capacity
	ended bool          // releaseAll was called: nothing is held any more
	empty chan struct{} // closed once ended is true and taken is 0

	running sync.WaitGroup // answers being sent, and the watch for hang-ups
	stop    chan struct{}
}

// heldAnswer is one held-back answer.
type heldAnswer struct {
	conn          *connection
	unread        []byte        // input beyond the request
	fd            int           // the file descriptor of conn; -1: unknown
	due           time.Time     // when to send it
	delayAfterDue time.Duration // what will be left of its delay at due
	prepaid       prepaid
	waiter        *limiter.Waiter // where it waits in a queue; nil: others can't have its place
	hungUp        bool            // the caller has closed the connection, or its sending side
	timer         *time.Timer
	reply         heldReply
	closes        bool  // the connection is closed after it
	charged       int64 // bytes charged to the budget
}

// maxHeldFor returns how many answers may be held back at once in a process
// that may open this many files.
func maxHeldFor(files int) int {
	return min(maxHeld, files-files/spareFilesDivisor-min(api.MaxDataConnections, files/2))
}

// newHeldAnswers returns a heldAnswers for at most bound answers, until draining is closed.
func newHeldAnswers(bound int, draining <-chan struct{}, answer func(*heldAnswer, time.Duration)) *heldAnswers {
	ha := &heldAnswers{
		capacity: bound, answer: answer, all: make(map[*heldAnswer]struct{}), empty: make(chan struct{}),
		stop: make(chan struct{}),
	}
	ha.running.Go(func() { ha.watch(draining) })
	return ha
}

// takeRoom takes room for one more answer. It reports false if there is none.
func (ha *heldAnswers) takeRoom() bool {
	ha.mu.Lock()
	defer ha.mu.Unlock()
	switch {
	case ha.ended:
		return false
	case ha.taken >= ha.capacity:
		ha.refused.Add(1)
		return false
	}
	ha.taken++
	return true
}

// freeRoom frees the room of an answer, after it was sent or could not be.
func (ha *heldAnswers) freeRoom() {
	ha.mu.Lock()
	defer ha.mu.Unlock()
	ha.taken--
	ha.closeIfEmptyLocked()
}

// closeIfEmptyLocked closes empty once the last answer was sent. The caller must hold ha.mu.
func (ha *heldAnswers) closeIfEmptyLocked() {
	if ha.ended && ha.taken == 0 {
		select {
		case <-ha.empty:
		default:
			close(ha.empty)
		}
	}
}

// keep keeps w, for which takeRoom has taken room, until it is due.
func (ha *heldAnswers) keep(w *heldAnswer) {
	if p := w.prepaid.place; p != nil {
		// Wait is not called under ha.mu: the queue calls moveUp under its own lock,
		// and moveUp takes ha.mu. If moveUp comes first, the timer below has the new
		// time.
		w.waiter = p.Wait(func(proceedAt time.Time) { ha.moveUp(w, proceedAt) })
	}

	ha.mu.Lock()
	defer ha.mu.Unlock()
	ha.all[w] = struct{}{}
	// releaseAll was called after takeRoom, and awaitEmpty waits until this
	// answer's room is free. So the answer is sent now.
	if ha.ended {
		ha.releaseLocked(w, true)
		return
	}
	w.timer = time.AfterFunc(time.Until(w.due), func() { ha.releaseDue(w) })
}

// releaseDue sends w's answer, which is due.
func (ha *heldAnswers) releaseDue(w *heldAnswer) {
	// The watch looks only four times a second. A caller that hung up since
	// must not keep a place in the queue that the next one could have.
	callerGone := w.canReusePlace() && w.fd >= 0 && len(pollHungUp([]*heldAnswer{w})) > 0
	ha.release(w, callerGone)
}

// release sends w's answer now, unless that has already begun. callerGone means
// that the caller has hung up.
func (ha *heldAnswers) release(w *heldAnswer, callerGone bool) {
	ha.mu.Lock()
	defer ha.mu.Unlock()
	// The timer, the watch and the drain may all come for w. The first one
	// sends its answer.
	_, isHeld := ha.all[w]
	if isHeld {
		w.hungUp = callerGone
		ha.releaseLocked(w, callerGone)
	}
}

// releaseLocked removes w, which must be in ha.all, and starts sending its answer.
// The caller must hold ha.mu, so that no goroutine starts once close waits.
func (ha *heldAnswers) releaseLocked(w *heldAnswer, closes bool) {
	delete(ha.all, w)
	if w.timer != nil {
		w.timer.Stop()
	}
	w.closes = w.closes || closes
	left := max(0, time.Until(w.due)) + w.delayAfterDue
	ha.running.Go(func() { ha.answer(w, left) })
}

// releaseAll sends all held answers, and makes sure that later ones are not held.
func (ha *heldAnswers) releaseAll() {
	ha.mu.Lock()
	defer ha.mu.Unlock()
	ha.ended = true
	for w := range ha.all {
		ha.releaseLocked(w, true)
	}
	ha.closeIfEmptyLocked()
}

// awaitEmpty returns once all held answers are sent, or when ctx ends. Call it after releaseAll.
func (ha *heldAnswers) awaitEmpty(ctx context.Context) {
	select {
	case <-ha.empty:
	case <-ctx.Done():
	}
}

// close waits for all goroutines of ha. Call it after releaseAll, when all connections are closed.
func (ha *heldAnswers) close() {
	close(ha.stop)
	ha.running.Wait()
}

// count returns the number of answers not sent yet.
func (ha *heldAnswers) count() int {
	ha.mu.Lock()
	defer ha.mu.Unlock()
	return ha.taken
}

// watch runs until close. It calls releaseAll when the node drains, and sends
// the answers of callers that hung up. So a caller that closed only its sending
// side gets its answer early, with the rest of the delay.
func (ha *heldAnswers) watch(draining <-chan struct{}) {
	tick := time.NewTicker(hangUpInterval)
	defer tick.Stop()

	var polled []*heldAnswer
	for {
		select {
		case <-ha.stop:
			return
		case <-draining:
			ha.releaseAll()
			// A closed channel is always ready: the loop would spin.
			draining = nil
		case <-tick.C:
		}

		// The lock is free while the system is asked, because there may be tens of
		// thousands of connections. An answer may be sent meanwhile and its
		// descriptor be reused: then release no longer finds it.
		polled = polled[:0]
		ha.mu.Lock()
		for w := range ha.all {
			if w.fd >= 0 {
				polled = append(polled, w)
			}
		}
		ha.mu.Unlock()

		for _, w := range pollHungUp(polled) {
			ha.release(w, true)
		}

		// Answers that are sent must not stay in memory until the next round.
		clear(polled)
	}
}
