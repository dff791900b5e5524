package persist

import (
	"sync"
	"time"
)

// crew is the goroutines of a store that may be stuck in the disk.
type crew struct {
	ending chan struct{} // closed when the store is being closed

	mu    sync.Mutex // guards ended, and that nothing is started afterwards
	ended bool
	wg    sync.WaitGroup
	last  sync.WaitGroup
}

func newCrew() *crew { return &crew{ending: make(chan struct{})} }

// start runs f in a goroutine, or returns false if the store is being closed.
func (c *crew) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.wg.Go(f)
	return true
}

// end tells the goroutines to end and runs f after the last of them. It does not wait.
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

// rest waits for d, or returns false when the store is being closed.
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

// health is how the writes to a disk do.
type health struct {
	mu    sync.Mutex // guards what follows
	begun time.Time  // the write under way, zero if there is none
	full  time.Time  // since when writes have failed
	err   error      // of the last failed write
}

// begin notes that a write begins.
func (h *health) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = time.Now()
}

// end notes that the write has come back, and why it failed if it did; true if it is the first that failed.
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

// succeed notes that a write has succeeded; true if the one before had failed.
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
