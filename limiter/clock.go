package limiter

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/internal/tick"
)

// clockInterval is how often Clock reads the system's wall clock.
const clockInterval = time.Second

// Clock has a node's two clocks. The steady clock starts at the time of the wall
// clock and then advances with the process's monotonic clock. The wall clock
// follows the system's wall clock but never goes back. If the system's clock is
// set forward, the wall clock jumps forward with it. If the system's clock is set
// back, the wall clock runs slightly slower until the two agree, so windows keep
// turning at nearly their normal pace. All methods may be called concurrently.
type Clock struct {
	start  time.Time
	anchor int64        // Unix nanoseconds at start
	offset atomic.Int64 // from the system's wall clock; only tests set it
	slewed atomic.Pointer[algorithms.SlewedClock]
	set    atomic.Int64 // the time at which Set has stopped both clocks; 0: they run

	stop chan struct{}
	done sync.WaitGroup
	once sync.Once
}

// NewClock returns a running clock. The caller must Close it.
func NewClock() *Clock { return NewClockWithOffset(0) }

// NewClockWithOffset is NewClock for a node whose wall clock is ahead of the
// system's by the given duration, or behind it if by is negative. Tests use it
// to give the nodes in one process different clocks.
func NewClockWithOffset(by time.Duration) *Clock {
	clock := &Clock{start: time.Now(), stop: make(chan struct{})}
	clock.offset.Store(int64(by))
	clock.anchor = clock.systemAt(clock.start)
	clock.slewed.Store(&algorithms.SlewedClock{Steady: clock.anchor, Wall: clock.anchor})
	clock.done.Go(clock.run)
	return clock
}

// Now reads both clocks.
func (clock *Clock) Now() algorithms.Instant {
	if at := clock.set.Load(); at != 0 {
		return algorithms.Instant{Steady: at, Wall: at}
	}
	steady := clock.anchor + int64(time.Since(clock.start))
	return algorithms.Instant{Steady: steady, Wall: clock.slewed.Load().At(steady)}
}

// System returns what the system's wall clock says, in Unix nanoseconds. Unlike
// Now's wall clock, the system's goes back when it is set back.
func (clock *Clock) System() int64 { return clock.systemAt(time.Now()) }

func (clock *Clock) systemAt(t time.Time) int64 { return systemWall(t) + clock.offset.Load() }

// Shift makes this clock see the system's wall clock as set forward by the
// given duration, or back if by is negative. Tests use it.
func (clock *Clock) Shift(by time.Duration) { clock.offset.Add(int64(by)) }

// Set stops both clocks at a time, in Unix nanoseconds, which must not be
// before what Now has returned. Tests use it to decide what time it is.
func (clock *Clock) Set(at int64) { clock.set.Store(at) }

// Close stops following the system's wall clock. Now still works afterwards.
func (clock *Clock) Close() error {
	clock.once.Do(func() { close(clock.stop) })
	clock.done.Wait()
	return nil
}

func (clock *Clock) run() {
	for range tick.Every(clock.stop, clockInterval) {
		now := time.Now() // has the monotonic and the system's wall time of one moment
		clock.follow(clock.anchor+int64(now.Sub(clock.start)), clock.systemAt(now))
	}
}

// follow starts to slew the wall clock anew at the given steady time, at which
// the system's wall clock reads system.
func (clock *Clock) follow(steady, system int64) {
	wall := clock.slewed.Load().At(steady)
	clock.slewed.Store(&algorithms.SlewedClock{Steady: steady, Wall: max(wall, system), Lead: max(0, wall-system)})
}
