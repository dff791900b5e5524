package limiter

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// clockEdge widens what a caller saw on the wall clock. A clock that slews
// down may give two goroutines readings that differ by microseconds the wrong
// way around; a hit that near to the turn of a window counts for both.
const clockEdge = int64(100 * time.Microsecond)

// maxStarts bounds the spans that are judged: so many times at which they
// begin, each with all times at which they may end. Any choice is sound.
const maxStarts = 128

// sighting is what one call admitted of one subject. Both readings are of the
// clock by which the subject is decided, so whoever decided read that clock
// between them.
type sighting struct {
	sent, answered algorithms.Instant
	admitted       int64
}

// bound is what docs/guarantees.md promises about one subject of one limit.
type bound struct {
	limit algorithms.Limit
	ttl   time.Duration // for how long a unit may be spent after it was debited; 0: not at all
	drift int64         // how far the wall clock of this run moved against the steady one
	// onlyChecks says that nothing but the checks that were seen touches the
	// counter. Then it is known when no window that begins with its first hit
	// is open.
	onlyChecks bool
	fresh      bool // no window is open when the span begins
}

// excess is the span in which most was admitted, relative to what was allowed.
type excess struct {
	admitted, most int64
	lasted         time.Duration
}

// ratio is above 1 if the bound is broken.
func (e excess) ratio() float64 { return float64(e.admitted) / float64(max(e.most, 1)) }

// String says what was admitted, for a failure.
func (e excess) String() string {
	return fmt.Sprintf("%d admitted within %v, at most %d may be: %.2f times the bound",
		e.admitted, e.lasted, e.most, e.ratio())
}

// most returns the most that may be admitted between two readings of the clock.
func (b *bound) most(from, to algorithms.Instant) int64 {
	l := &b.limit
	window := int64(l.Window)
	lasted := to.Steady - from.Steady

	switch l.Kind {
	case algorithms.FixedWindow:
		// Each window that the span touches may be used up in it.
		first := floorOf(from.Wall-clockEdge, window)
		last := floorOf(to.Wall+clockEdge, window)
		return (last - first + 1) * l.Amount

	case algorithms.FirstWindow:
		// Windows don't overlap. Besides those that lie within the span, one
		// may have begun before it, and one may end after it.
		windows := lasted/window + 1
		if !b.fresh {
			windows++
		}
		return windows * l.Amount

	case algorithms.SlidingLog:
		// Each part of the span that is shorter than a window admits the limit.
		return (lasted/window + 1) * l.Amount

	case algorithms.SlidingWindow:
		// It counts by the wall clock, and leases live by the steady one.
		passed := to.Wall - from.Wall + 2*clockEdge
		if b.ttl > 0 {
			passed += int64(b.ttl) + b.drift
		}
		return l.Amount + l.Amount*passed/window
	}

	return l.Burst + l.Amount*(lasted+int64(b.ttl))/window
}

// floorOf returns floor(a / b) for b > 0.
func floorOf(a, b int64) int64 {
	n := a / b
	if a%b < 0 {
		n--
	}
	return n
}

// worst returns the span that comes nearest to its bound, or exceeds it most.
// What was admitted counts for a span only if it was certainly within: its
// call was sent after the span's beginning and answered before its end.
func (b *bound) worst(seen []sighting) (worst excess) {
	if len(seen) == 0 {
		return worst
	}
	slices.SortFunc(seen, func(x, y sighting) int {
		return cmp.Compare(x.answered.Steady, y.answered.Steady)
	})
	b.measureDrift(seen)

	for _, from := range b.starts(seen) {
		b.fresh = b.onlyChecks && b.limit.Kind == algorithms.FirstWindow &&
			isFreshAt(from, b.limit.Window, seen)
		sum := int64(0)
		for i := range seen {
			s := &seen[i]
			if s.sent.Steady < from.Steady || s.sent.Wall < from.Wall {
				continue
			}
			sum += s.admitted

			most := b.most(from, s.answered)
			if e := (excess{sum, most, span(from, s.answered)}); e.ratio() > worst.ratio() {
				worst = e
			}
		}
	}
	return worst
}

// isFreshAt reports whether nothing can have been admitted in the last window
// before a time, so that no window was open then.
func isFreshAt(from algorithms.Instant, window time.Duration, seen []sighting) bool {
	opened := from.Steady - int64(window)
	for i := range seen {
		s := &seen[i]
		if s.sent.Steady < from.Steady && s.answered.Steady > opened {
			return false
		}
	}
	return true
}

func span(from, to algorithms.Instant) time.Duration {
	return time.Duration(to.Steady - from.Steady).Round(time.Microsecond)
}

// measureDrift sets how far the wall clock moved against the steady one. They
// are read one after the other, so a busy machine makes them differ.
func (b *bound) measureDrift(seen []sighting) {
	lead := seen[0].sent.Wall - seen[0].sent.Steady
	least := lead
	greatest := lead
	for i := range seen {
		for _, r := range [...]algorithms.Instant{seen[i].sent, seen[i].answered} {
			least = min(least, r.Wall-r.Steady)
			greatest = max(greatest, r.Wall-r.Steady)
		}
	}
	b.drift = greatest - least
}

// starts returns the beginnings of the spans that are judged: that of the run,
// those of windows, and those of calls.
func (b *bound) starts(seen []sighting) []algorithms.Instant {
	sent := make([]algorithms.Instant, len(seen))
	for i := range seen {
		sent[i] = seen[i].sent
	}
	slices.SortFunc(sent, func(x, y algorithms.Instant) int {
		return cmp.Compare(x.Steady, y.Steady)
	})

	if b.limit.Kind == algorithms.FixedWindow {
		// Of all calls in a window, the first one begins the span that has most
		// of them and allows no more.
		window := int64(b.limit.Window)
		sent = slices.CompactFunc(sent, func(x, y algorithms.Instant) bool {
			return floorOf(x.Wall-clockEdge, window) == floorOf(y.Wall-clockEdge, window)
		})
	}

	if len(sent) <= maxStarts {
		return sent
	}
	some := make([]algorithms.Instant, maxStarts)
	for i := range some {
		some[i] = sent[i*len(sent)/maxStarts]
	}
	return some
}
