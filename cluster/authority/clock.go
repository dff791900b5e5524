package authority

import (
	"sync/atomic"
	"time"
)

const (
	// Slack is by how much a reading of [Clock] may be behind the true one. A Holder takes it off each term.
	Slack = 25 * time.Millisecond

	// maxDrift is how far the wall clock and the monotonic clock may come apart before the kernel is asked again.
	maxDrift = 20 * time.Millisecond
	// maxBracket is how long reading the kernel's clock may take for the reading to be kept.
	maxBracket = time.Millisecond
	// anchorLife is how long a reading of the kernel's clock is built upon.
	anchorLife = time.Second
)

// Clock reads the time since the machine was started, suspend included: CLOCK_BOOTTIME where there is one.
//
// The Go runtime does not offer that clock, and asking the kernel costs some 400 ns, too much for each check;
// time.Now, which costs 60 ns, gives a monotonic reading that stands still in suspend and a wall clock reading
// that does not. So a Clock asks the kernel once a second and adds the monotonic time since then, as long as both
// readings of time.Now have advanced alike, within 20 ms; a suspend shows as a difference and the kernel is asked. What
// it can't see is a suspend of up to 20 ms, which is why readings may be [Slack] behind, and one during which the wall clock
// was set back by just the time that it lasted, within the same second of the monotonic clock. Slewing is at most
// 0.05 %, and both clocks run at one rate otherwise.
//
// Readings are never ahead of the true time. Where the platform has no such clock it is the monotonic one.
type Clock struct {
	start  time.Time
	anchor atomic.Pointer[anchor]
}

// anchor is a reading of the kernel's clock, and of time.Now just after.
type anchor struct {
	at   time.Time
	boot time.Duration
}

// NewClock returns a clock.
func NewClock() *Clock { return &Clock{start: time.Now()} }

// Boottime is the time since the machine (or, without such a clock, the process) was started.
func (c *Clock) Boottime() time.Duration {
	if a := c.anchor.Load(); a != nil {
		if passed, ok := a.since(time.Now()); ok && passed < anchorLife {
			return a.boot + passed
		}
	}
	before := time.Now()
	boot, ok := boottime()
	if !ok {
		return time.Since(c.start)
	}
	// The process may stop, or the machine be suspended, between the two readings: such a pair is not kept.
	bracket := anchor{at: before}
	after := time.Now()
	if took, ok := bracket.since(after); ok && took <= maxBracket {
		c.anchor.Store(&anchor{at: after, boot: boot})
	}
	return boot
}

// since is the monotonic time from a to now, and whether the wall clock says the same.
func (a *anchor) since(now time.Time) (time.Duration, bool) { return a.agrees(now, now.UnixNano()) }

func (a *anchor) agrees(now time.Time, wall int64) (time.Duration, bool) {
	steady := now.Sub(a.at)
	drift := time.Duration(wall-a.at.UnixNano()) - steady
	return steady, steady >= 0 && -maxDrift <= drift && drift <= maxDrift
}
