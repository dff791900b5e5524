package persist

import (
	"sync"
	"time"
)

// crew is the set of a store's goroutines that may be stuck waiting for the disk.
type crew struct {
	ending chan struct{} // closed when the store begins to close

	mu    sync.Mutex // guards ended, so that nothing starts after it is set
	ended bool
	wg    sync.WaitGroup
	last  sync.WaitGroup
}

func newCrew() *crew { return &crew{ending: make(chan struct{})} }

// start runs f in a goroutine, or returns false if the store is closing.
func (c *crew) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.wg.Go(f)
	return true
}

// end tells the goroutines to stop, and runs f after the last of them. It does not wait.
func (c *crew) end(f func()) {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	close(c.ending)
	c.last.Go(func() {
		c.wg.Wait()
		f()
	})
}

// rest waits for d, or returns false once the store is closing.
func (c *crew) rest(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.ending:
		return false
	case <-timer.C:
		return true
	}
}

// health records how writes to a disk are going.
type health struct {
	mu    sync.Mutex // guards what follows
	begun time.Time  // when the current write began; zero if there is none
	full  time.Time  // when writes began to fail; zero if the last one succeeded
	err   error      // of the last failed write
}

// begin records that a write begins.
func (h *health) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = time.Now()
}

// end records that the write has returned, with err if it failed. It returns true if this is the first failure.
func (h *health) end(err error) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = time.Time{}
	if err == nil {
		return false
	}
	first = h.full.IsZero()
	if first {
		h.full = time.Now()
	}
	h.err = err
	return first
}

// succeed records that a write succeeded. It returns true if the previous one had failed.
func (h *health) succeed() (recovered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	recovered = !h.full.IsZero()
	h.full, h.err = time.Time{}, nil
	return recovered
}

func (h *health) report(timeout time.Duration) (hung, full time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.begun.IsZero() && time.Since(h.begun) > timeout {
		hung = h.begun
	}
	return hung, h.full, h.err
}
