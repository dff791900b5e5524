package authority

import (
	"sync/atomic"
	"time"
)

const (
	// ClockSlack is how far a reading of [Clock] may lag behind the true time. A Holder
	// subtracts it from the validity of each grant.
	ClockSlack = 25 * time.Millisecond

	// maxDrift is how far the wall clock and the monotonic clock may diverge before
	// Clock reads the kernel's clock again.
	maxDrift = 20 * time.Millisecond
	// maxReadTime bounds how long reading the kernel's clock may take. A slower
	// reading is not reused.
	maxReadTime = time.Millisecond
	// anchorLife is how long a reading of the kernel's clock is reused.
	anchorLife = time.Second
)

// Clock reads the time since the machine booted, including suspend: CLOCK_BOOTTIME where available.
//
// The Go runtime does not expose that clock, and asking the kernel costs about
// 400 ns, too much for each check. time.Now costs 60 ns. Its monotonic reading
// stands still in suspend; its wall clock reading does not. So a Clock asks the
// kernel once a second and adds the monotonic time since then, as long as both
// readings of time.Now have advanced equally, within 20 ms. A suspend makes
// them differ, and Clock asks the kernel again. Two cases go undetected: a
// suspend of up to 20 ms, which is why readings may lag by [ClockSlack]; and a
// suspend during which the wall clock was set back by exactly its length,
// within the same second of the monotonic clock. Slewing is at most 0.05 %.
// Apart from that, both clocks run at the same rate.
//
// Readings are never ahead of the true time. On platforms without such a clock,
// Clock uses the monotonic one.
type Clock struct {
	start  time.Time
	anchor atomic.Pointer[anchor]
}

// anchor is a reading of the kernel's clock, with a reading of time.Now taken just after it.
type anchor struct {
	at      time.Time
	reading time.Duration
}

func NewClock() *Clock { return &Clock{start: time.Now()} }

// Boottime returns the time since the machine (or, without such a clock, the process) started.
func (c *Clock) Boottime() time.Duration {
	if a := c.anchor.Load(); a != nil {
		if passed, ok := a.since(time.Now()); ok && passed < anchorLife {
			return a.reading + passed
		}
	}

	before := time.Now()
	reading, ok := boottime()
	if !ok {
		return time.Since(c.start)
	}

	// The process may stall, or the machine may be suspended, between the two
	// readings. Don't reuse such a pair.
	span := anchor{at: before}
	after := time.Now()
	if took, ok := span.since(after); ok && took <= maxReadTime {
		// The anchor gets the later time. So readings may lag by as long as this
		// reading took, but are never ahead.
		c.anchor.Store(&anchor{at: after, reading: reading})
	}

	return reading
}

// since returns the monotonic time from a to now, and whether the wall clock agrees.
func (a *anchor) since(now time.Time) (time.Duration, bool) { return a.agrees(now, now.UnixNano()) }

// agrees returns the monotonic time from a to now, and whether the wall clock
// reading, in Unix ns, agrees.
func (a *anchor) agrees(now time.Time, wall int64) (time.Duration, bool) {
	steady := now.Sub(a.at)
	drift := time.Duration(wall-a.at.UnixNano()) - steady
	return steady, steady >= 0 && -maxDrift <= drift && drift <= maxDrift
}
