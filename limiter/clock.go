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
// followed at once; set back, windows go on turning at nearly their pace and come into line slowly.
type Clock struct {
	start  time.Time
	anchor int64 // Unix nanoseconds at start
	ahead  int64 // of the system's wall clock
	course atomic.Pointer[course]

	stop chan struct{}
	done sync.WaitGroup
	once sync.Once
}

// course is how the wall clock runs from a moment on.
type course struct {
	steady, wall int64 // readings at that moment
	surplus      int64 // by how much it is ahead of the system's, and what it therefore still has to lose; >= 0
}

// at is the wall clock's reading at a steady time.
func (c *course) at(steady int64) int64 {
	passed := max(0, steady-c.steady)
	return c.wall + passed - min(passed/slewDivisor, c.surplus)
}

// NewClock returns a running clock; Close ends it.
func NewClock() *Clock { return NewClockAhead(0) }

// NewClockAhead is NewClock for a node whose wall clock is ahead of the system's, or behind it: for several in one process.
func NewClockAhead(by time.Duration) *Clock {
	c := &Clock{start: time.Now(), ahead: int64(by), stop: make(chan struct{})}
	c.anchor = systemWall(c.start) + c.ahead
	c.course.Store(&course{steady: c.anchor, wall: c.anchor})
	c.done.Go(c.run)
	return c
}

// Now reads both clocks.
func (c *Clock) Now() algorithms.Now {
	steady := c.anchor + int64(time.Since(c.start))
	return algorithms.Now{Steady: steady, Wall: c.course.Load().at(steady)}
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
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
		now := time.Now() // one reading of both clocks
		c.follow(c.anchor+int64(now.Sub(c.start)), systemWall(now)+c.ahead)
	}
}

// follow sets the course from a steady time on, given the system's wall clock then.
func (c *Clock) follow(steady, system int64) {
	wall := c.course.Load().at(steady)
	c.course.Store(&course{steady: steady, wall: max(wall, system), surplus: max(0, wall-system)})
}
