package limiter

import (
	"sync"
	"time"
)

const (
	// recentInterval is the length of the intervals in which recent refusals and
	// uses are counted. The wall clock numbers the intervals, starting in 1970.
	recentInterval = 30 * time.Second
	// recentIntervals is how many intervals are kept: an hour.
	recentIntervals = 120
)

// intervals knows the current interval.
type intervals struct {
	mu      sync.Mutex // guards current
	current int64      // 0 before the first reading
}

// interval returns the number of the current interval, by the wall clock.
func (l *Limiter) interval() int64 { return l.clock.Now().Wall / int64(recentInterval) }

// PassSecond ends the interval of recent refusals and uses if it is over, and
// lets the first checks of the new second all be sampled. Call it every second.
func (l *Limiter) PassSecond() {
	l.exactLeft.Store(exactSamples)
	active := l.inForce.Load()
	now := l.interval()
	if active == nil || !l.intervals.end(now) {
		return
	}
	for _, t := range l.tops {
		t.endInterval()
	}
	active.endUseInterval(now)
}

// end makes now the current interval if it is later, and reports whether an
// earlier interval has ended.
func (iv *intervals) end(now int64) bool {
	iv.mu.Lock()
	defer iv.mu.Unlock()
	began := iv.current != 0
	ended := began && now > iv.current
	if ended || !began {
		iv.current = now
	}
	return ended
}
