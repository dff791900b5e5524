package api

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
	// sparePart is which part of the files that the process may open is kept from callers that wait: one in so many.
	sparePart = 16
	// hangUpInterval is how often callers that wait are looked at.
	hangUpInterval = time.Second
)

// waiting holds back the answers of checks with wait. For one that is held there is neither a goroutine nor a buffer:
// only the connection, the answer as it will be sent, and a timer of the runtime's.
type waiting struct {
	most   int                                 // answers held at once
	answer func(w *waiter, left time.Duration) // sends it, calls leave, and goes on with the connection
	turned atomic.Int64                        // answers not held because there were most already

	mu    sync.Mutex // guards what follows
	held  map[*waiter]struct{}
	taken int           // places of answers that are not sent yet. Invariant: len(held) <= taken <= most
	over  bool          // nothing is held any more
	empty chan struct{} // closed when it is over and no place is taken

	running sync.WaitGroup // answer, and the look for those that hung up
	stop    chan struct{}
}

// waiter is one answer that is held back.
type waiter struct {
	conn    net.Conn
	fd      int           // of conn; -1: not known
	due     time.Time     // when it is sent
	after   time.Duration // what is left of its delay even then
	timer   *time.Timer
	reply   heldReply
	closes  bool  // the connection ends with it
	charged int64 // bytes of the budget
}

// mostHeldOf is how many answers may be held back by a process that may open so many files.
func mostHeldOf(files int) int { return min(mostWaiting, files-files/sparePart-dataPlacesOf(files)) }

func newWaiting(most int, answer func(*waiter, time.Duration)) *waiting {
	s := &waiting{
		most: most, answer: answer, held: make(map[*waiter]struct{}), empty: make(chan struct{}), stop: make(chan struct{}),
	}
	s.running.Go(s.watch)
	return s
}

// enter takes a place for one more answer. It reports false when there is none.
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

// leave gives a place back: the answer is sent, or can't be.
func (s *waiting) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.finish()
}

// finish notes when the last place is free. The caller holds s.mu.
func (s *waiting) finish() {
	if s.over && s.taken == 0 {
		select {
		case <-s.empty:
		default:
			close(s.empty)
		}
	}
}

// hold keeps w, which has a place, until its time has come.
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

// let has w answered, unless it is already.
func (s *waiting) let(w *waiter, closes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pull(w, closes)
}

// pull takes w out and has it answered. The caller holds s.mu, so that nothing is started once close has looked.
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

// end answers all that are held, and from now on each one at once.
func (s *waiting) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for w := range s.held {
		s.pull(w, true)
	}
	s.finish()
}

// await returns when all that were held are answered, or ctx ends. It is called after end.
func (s *waiting) await(ctx context.Context) {
	select {
	case <-s.empty:
	case <-ctx.Done():
	}
}

// close waits for everything that was begun here. It is called after end, when all connections are closed.
func (s *waiting) close() {
	close(s.stop)
	s.running.Wait()
}

// count is how many answers are held back.
func (s *waiting) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// watch looks for callers that hung up until close. To those that only said that they send no more, it makes no
// difference but that they are answered too early, and are told so.
func (s *waiting) watch() {
	tick := time.NewTicker(hangUpInterval)
	defer tick.Stop()
	var look []*waiter
	for {
		select {
		case <-s.stop:
			return
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
