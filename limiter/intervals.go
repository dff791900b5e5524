package limiter

import (
	"math"
	"sync"

	"github.com/rlnode/rlnode/limiter/top"
)

const (
	// recentInterval is the length of the intervals in which recent events and uses
	// are counted. The wall clock numbers the intervals, starting in 1970.
	recentInterval = top.Interval
	// recentIntervals is how many intervals are kept: an hour.
	recentIntervals = 120
)

// intervals remembers the current interval, to tell when it ends.
type intervals struct {
	mu      sync.Mutex // guards current
	current int64      // 0 before the first reading
}

// interval returns the number of the current interval, by the wall clock.
func (l *Limiter) interval() int64 { return l.clock.Now().Wall / int64(recentInterval) }

// advance makes now the current interval if it is later, and reports whether an
// earlier interval has ended.
func (iv *intervals) advance(now int64) bool {
	iv.mu.Lock()
	defer iv.mu.Unlock()
	began := iv.current != 0
	ended := began && now > iv.current
	if ended || !began {
		iv.current = now
	}
	return ended
}

// usedIntervals counts the uses of one rule by intervals.
type usedIntervals struct {
	mu        sync.Mutex              // guards the fields below
	before    int64                   // all uses up to the end of the last interval
	last      int64                   // number of the last interval that ended; 0 before the first
	intervals [recentIntervals]uint32 // uses in interval n, at n modulo recentIntervals
}

// endInterval records the uses since the last interval as those of interval n.
// all is the number of all uses so far.
func (us *usedIntervals) endInterval(n, all int64) {
	us.mu.Lock()
	defer us.mu.Unlock()

	// Clear the intervals that were missed, as while the machine slept. Their places
	// still have the counts of an hour before.
	for missed := max(us.last+1, n-recentIntervals+1); missed < n; missed++ {
		us.intervals[missed%recentIntervals] = 0
	}
	us.intervals[n%recentIntervals] = uint32(min(max(all-us.before, 0), math.MaxUint32))
	us.last, us.before = n, all
}

// recent returns how many uses there were in the last recentIntervals intervals
// before now, and in the current one.
func (us *usedIntervals) recent(now, all int64) int64 {
	us.mu.Lock()
	defer us.mu.Unlock()
	sum := max(all-us.before, 0)
	for n := max(now, us.last+1) - recentIntervals; n <= us.last; n++ {
		if n > 0 && n > us.last-recentIntervals {
			sum += int64(us.intervals[n%recentIntervals])
		}
	}
	return sum
}
