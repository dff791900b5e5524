package limiter

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

const (
	// clockInterval is how often the wall clock is looked at.
	clockInterval = 100 * time.Millisecond
	// slewDivisor bounds how fast a wall clock that was set back is followed: 1/64 of the time that passes, so
	// that meanwhile a window lasts at most 1/63 longer.
	slewDivisor = 64
)

// Clock reads a node's two clocks. The steady one starts at the wall clock's time and then advances with the
// monotonic clock. The wall one follows the system's wall clock without ever going back: set forward, it is
// followed at once; set back, windows go on turning at their pace and come into line slowly.
type Clock struct {
	start  time.Time
	anchor int64        // Unix nanoseconds at start
	offset atomic.Int64 // wall minus steady

	stop chan struct{}
	done sync.WaitGroup
	once sync.Once
}

// NewClock returns a running clock; Close ends it.
func NewClock() *Clock {
	c := &Clock{start: time.Now(), stop: make(chan struct{})}
	c.anchor = c.start.UnixNano()
	c.done.Go(c.run)
	return c
}

// Now reads both clocks.
func (c *Clock) Now() algorithms.Now {
	steady := c.anchor + int64(time.Since(c.start))
	return algorithms.Now{Steady: steady, Wall: steady + c.offset.Load()}
}

// Close stops following the wall clock; Now still answers.
func (c *Clock) Close() error {
	c.once.Do(func() { close(c.stop) })
	c.done.Wait()
	return nil
}

func (c *Clock) run() {
	tick := time.NewTicker(clockInterval)
	defer tick.Stop()
	last := c.anchor
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
		now := time.Now() // one reading of both clocks
		steady := c.anchor + int64(now.Sub(c.start))
		c.follow(now.UnixNano()-steady, steady-last)
		last = steady
	}
}

// follow moves the offset towards want, elapsed nanoseconds after the last call.
func (c *Clock) follow(want, elapsed int64) {
	have := c.offset.Load()
	c.offset.Store(max(want, have-elapsed/slewDivisor))
}
