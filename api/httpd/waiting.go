package httpd

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// mostWaiting bounds the answers that are held back at once.
	mostWaiting = 32 << 10
	// sparePart: one in sparePart of the files that the process may open is kept free of waiting callers.
	sparePart = 16
	// hangUpInterval is how often waiting callers are checked for having hung up.
	hangUpInterval = time.Second
)

// waiting holds back the answers of checks with wait. A held answer costs no goroutine and no buffer: only the
// connection, the encoded answer, and a runtime timer.
type waiting struct {
	most   int                                 // bounds the answers held at once
	answer func(w *waiter, left time.Duration) // sends the answer, calls leave, and serves the connection on
	turned atomic.Int64                        // answers not held because the bound was reached

	mu    sync.Mutex // guards the rest
	held  map[*waiter]struct{}
	taken int           // places of answers not sent yet. Invariant: len(held) <= taken <= most
	over  bool          // nothing is held any more
	empty chan struct{} // closed once over is true and taken is 0

	running sync.WaitGroup // answers being sent, and the watch for hang-ups
	stop    chan struct{}
}

// waiter is one answer that is held back.
type waiter struct {
	conn    net.Conn
	fd      int           // the file descriptor of conn; -1: unknown
	due     time.Time     // when to send it
	after   time.Duration // what is left of its delay at due
	timer   *time.Timer
	reply   heldReply
	closes  bool  // the connection closes after it
	charged int64 // bytes charged to the budget
}

// mostHeldOf returns how many answers a process that may open this many files may hold back.
func mostHeldOf(files int) int { return min(mostWaiting, files-files/sparePart-dataPlacesOf(files)) }

// newWaiting holds back answers until draining is closed.
func newWaiting(most int, draining <-chan struct{}, answer func(*waiter, time.Duration)) *waiting {
	s := &waiting{
		most: most, answer: answer, held: make(map[*waiter]struct{}), empty: make(chan struct{}), stop: make(chan struct{}),
	}
	s.running.Go(func() { s.watch(draining) })
	return s
}

// enter takes a place for one more answer. It reports false if there is none.
func (s *waiting) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return false
	case s.taken >= s.most:
		s.turned.Add(1)
		return false
	}
	s.taken++
	return true
}

// leave gives a place back: the answer was sent, or can't be.
func (s *waiting) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.finish()
}

// finish closes empty once the last place is free. The caller holds s.mu.
func (s *waiting) finish() {
	if s.over && s.taken == 0 {
		select {
		case <-s.empty:
		default:
			close(s.empty)
		}
	}
}

// hold keeps w, which has a place, until its time comes.
func (s *waiting) hold(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[w] = struct{}{}
	if s.over {
		s.pull(w, true)
		return
	}
	w.timer = time.AfterFunc(time.Until(w.due), func() { s.let(w, false) })
}

// let sends w's answer, unless that has already begun.
func (s *waiting) let(w *waiter, closes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pull(w, closes)
}

// pull removes w and sends its answer. The caller holds s.mu, so that nothing starts once close waits.
func (s *waiting) pull(w *waiter, closes bool) {
	if _, here := s.held[w]; !here {
		return
	}
	delete(s.held, w)
	if w.timer != nil {
		w.timer.Stop()
	}
	w.closes = w.closes || closes
	left := max(0, time.Until(w.due)) + w.after
	s.running.Go(func() { s.answer(w, left) })
}

// end sends all held answers, and makes later ones go out at once.
func (s *waiting) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for w := range s.held {
		s.pull(w, true)
	}
	s.finish()
}

// await returns once all held answers are sent, or when ctx ends. It is called after end.
func (s *waiting) await(ctx context.Context) {
	select {
	case <-s.empty:
	case <-ctx.Done():
	}
}

// close waits for all goroutines started here. It is called after end, when all connections are closed.
func (s *waiting) close() {
	close(s.stop)
	s.running.Wait()
}

// count returns the number of places taken: answers not sent yet.
func (s *waiting) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// watch ends all waits when the node drains, and looks for callers that hung up, until close. A caller that closed only
// its sending side gets its answer early, and the answer says so.
func (s *waiting) watch(draining <-chan struct{}) {
	tick := time.NewTicker(hangUpInterval)
	defer tick.Stop()
	var look []*waiter
	for {
		select {
		case <-s.stop:
			return
		case <-draining:
			s.end()
			draining = nil
		case <-tick.C:
		}
		look = look[:0]
		s.mu.Lock()
		soon := time.Now().Add(hangUpInterval)
		for w := range s.held {
			if w.fd >= 0 && w.due.After(soon) {
				look = append(look, w)
			}
		}
		s.mu.Unlock()
		for _, w := range hungUp(look) {
			s.let(w, true)
		}
		clear(look)
	}
}
