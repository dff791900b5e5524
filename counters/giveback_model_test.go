package counters

import (
	"fmt"
	"slices"
	"time"

	"github.com/rlnode/rlnode/algorithms"
)

// The model of give-backs knows what a counter admitted, how much of that came
// back later, and which limits were in force. From that alone it tells whether
// a counter may admit a cost: it must, even if nothing had ever been taken but
// what was used in the end.
//
//   - Of a window, the used costs are within the limit.
//   - A bucket that only ever got the used costs is within its burst.
//
// So a counter that forgets more than came back is found as soon as it admits
// something in its place.

// usedCost is what a counter admitted.
type usedCost struct {
	at      algorithms.Instant // by the clock of its partition
	began   int64              // of a first-hit window: when that began
	drained int64              // of a bucket: its counterCopy.drained at that time
	used    int64              // the cost, without what came back
}

// forgiven is what an administrator lowered the usage by.
type forgiven struct {
	at      algorithms.Instant
	began   int64
	drained int64
	units   int64
	after   int // so many costs
}

// counterCopy is what one copy of a counter has of its history. Another copy
// may lack what came last.
type counterCopy struct {
	costs    []*usedCost // since the last reset, in order
	forgiven []forgiven
	began    int64 // the last first-hit window
	resetAt  int64 // steady time of the last reset
	charged  int64 // all that was charged since, whether or not it came back
	// A bucket drains when it is touched by a check or a charge.
	touched     int64 // steady time
	drained     int64 // by then and since the beginning, in 1/Window units
	mayBeSwept  bool  // since then
	roundedDown int64 // what it may have lost since the beginning by rounding
	cellRate    int64 // of a CellBucket: the rate that it keeps, or more
}

// snapshot returns a copy for a table that has the counter as it is now, and
// drops it once it has expired.
func (c *counterCopy) snapshot() counterCopy {
	other := *c
	other.costs = slices.Clone(c.costs)
	other.forgiven = slices.Clone(c.forgiven)
	other.mayBeSwept = true
	return other
}

// rateChange says which rate was in force since when.
type rateChange struct{ since, amount int64 }

// modelCounter is a counter, its limit, and what the owner's copy has of its history.
type modelCounter struct {
	counterCopy
	key   Key
	limit *algorithms.Limit // in force
	rates []rateChange
}

// setLimit puts another amount and burst into force.
func (c *modelCounter) setLimit(steady, amount, burst int64) {
	l := *c.limit
	l.Amount = amount
	l.Burst = burst
	c.limit = &l
	c.rates = append(c.rates, rateChange{steady, amount})
}

// ratesChangedAt returns when other rates came into force for the last time.
func (c *modelCounter) ratesChangedAt() int64 { return c.rates[len(c.rates)-1].since }

// fastest returns the highest rate that was in force at or after a steady time.
func (c *modelCounter) fastest(since int64) (most int64) {
	for i := len(c.rates) - 1; i >= 0; i-- {
		most = max(most, c.rates[i].amount)
		if c.rates[i].since < since {
			break
		}
	}
	return most
}

// touch drains a bucket that is touched by a limit. It drains by that one,
// unless it was dropped as empty by one that was in force before.
func (c *modelCounter) touch(now algorithms.Instant, by *algorithms.Limit) {
	rate := by.Amount
	if c.limit.Kind == algorithms.CellBucket {
		rate = c.cellRate
		c.cellRate = max(rate, by.Amount) // of an empty one
	}
	if c.mayBeSwept {
		rate = max(rate, c.fastest(c.touched))
	}
	if c.touched > 0 {
		c.drained += rate * (now.Steady - c.touched)
	}
	c.touched = now.Steady
	c.mayBeSwept = false
}

// ask records that a check asked for something, by the limit in force, whether
// or not it was admitted.
func (c *modelCounter) ask(now algorithms.Instant) {
	if c.touch(now, c.limit); c.limit.Kind == algorithms.CellBucket {
		c.cellRate = c.limit.Amount
	}
}

// admit records a cost that the counter admitted, and returns why it should not
// have; an empty text if it was right. began is when a first-hit window began
// in which it was counted.
func (c *modelCounter) admit(now algorithms.Instant, began, cost int64) (used *usedCost, why string) {
	c.ask(now)
	c.charged += cost
	used = &usedCost{at: now, drained: c.drained, used: cost}
	if c.limit.Kind == algorithms.FirstWindow {
		why = c.enterWindow(now, began)
		if why != "" {
			return used, why
		}
		used.began = c.began
	}
	c.costs = append(c.costs, used)

	most, got := c.judge(now)
	if got > most {
		why = fmt.Sprintf("%v: admitted %d: %s used of %s", c.limit.Kind, cost, c.inUnits(got), c.inUnits(most))
	}
	return used, why
}

// enterWindow sets when the first-hit window began in which a cost was counted.
// As long as something is used in the last one, that must be it.
func (c *modelCounter) enterWindow(now algorithms.Instant, began int64) (why string) {
	window := int64(c.limit.Window)
	most, got := c.judgeFirstWindow()
	isOpen := now.Steady < c.began+window
	switch {
	case began > now.Steady || began <= now.Steady-window:
		return fmt.Sprintf("counted in a window that began %v ago", time.Duration(now.Steady-began))
	case isOpen && began != c.began && got > most-c.limit.Amount:
		return "a window began while something was used in the last one"
	}
	c.began = began
	return ""
}

// judge returns how much the last cost may have made used, and how much it made
// used, both in 1/Window units.
func (c *modelCounter) judge(now algorithms.Instant) (most, got int64) {
	window := int64(c.limit.Window)
	switch c.limit.Kind {
	case algorithms.FixedWindow:
		most, got = c.judgeWindow(now.Wall / window)
	case algorithms.SlidingWindow:
		return c.judgeSlidingWindow(now)
	case algorithms.FirstWindow:
		most, got = c.judgeFirstWindow()
	case algorithms.SlidingLog:
		most, got = c.judgeLog(now)
	default:
		return c.judgeBucket()
	}
	return most * window, got * window
}

func (c *modelCounter) inUnits(parts int64) string {
	return fmt.Sprintf("%.6f", float64(parts)/float64(c.limit.Window))
}

// judgeWindow judges the window with that number.
func (c *modelCounter) judgeWindow(n int64) (most, got int64) {
	window := int64(c.limit.Window)
	most = c.limit.Amount
	for i := range c.forgiven {
		if c.forgiven[i].at.Wall/window == n {
			most += c.forgiven[i].units
		}
	}
	for _, u := range c.costs {
		if u.at.Wall/window == n {
			got += u.used
		}
	}
	return most, got
}

// judgeSlidingWindow weighs the window before by how much of it is still in view.
func (c *modelCounter) judgeSlidingWindow(now algorithms.Instant) (most, got int64) {
	window := int64(c.limit.Window)
	n := now.Wall / window
	inView := (n+1)*window - now.Wall
	mostBefore, before := c.judgeWindow(n - 1)
	most, current := c.judgeWindow(n)
	return most*window + (mostBefore-c.limit.Amount)*inView, current*window + before*inView
}

func (c *modelCounter) judgeFirstWindow() (most, got int64) {
	most = c.limit.Amount
	for i := range c.forgiven {
		// What is forgiven may end a window early. If the next one begins in the same
		// nanosecond in which the last one took something, nobody can tell of which of
		// them that was.
		if c.forgiven[i].at.Steady > c.began-int64(c.limit.Window) {
			most += c.forgiven[i].units
		}
	}
	for _, u := range c.costs {
		if u.began == c.began {
			got += u.used
		}
	}
	return most, got
}

func (c *modelCounter) judgeLog(now algorithms.Instant) (most, got int64) {
	begin := now.Steady - int64(c.limit.Window)
	most = c.limit.Amount
	for i := range c.forgiven {
		// What is forgiven may be the hits that come back later, within a window of
		// theirs. Then others go in their place.
		if c.forgiven[i].at.Steady > begin-int64(c.limit.Window) {
			most += c.forgiven[i].units
		}
	}
	for _, u := range c.costs {
		if u.at.Steady > begin {
			got += u.used
		}
	}
	return most, got
}

// judgeBucket fills an empty bucket again, with what was used and nothing else.
func (c *modelCounter) judgeBucket() (most, got int64) {
	window := int64(c.limit.Window)
	perUnit := window
	if c.limit.Kind == algorithms.CellBucket {
		perUnit -= c.fastest(0) // a unit takes a whole number of nanoseconds, rounded down
	}
	drained := int64(0)
	owed := int64(0)
	lower := func(to, units int64) {
		owed = max(0, owed-(to-drained)-units*window)
		drained = to
	}

	rest := c.forgiven
	for i, u := range c.costs {
		for len(rest) > 0 && rest[0].after <= i {
			lower(rest[0].drained, rest[0].units)
			rest = rest[1:]
		}
		lower(u.drained, 0)
		owed += u.used * perUnit
	}
	return c.limit.Burst*window + c.roundedDown, owed
}

// giveBack records that of a cost only so much was used, whether or not the counter took it back.
func (c *modelCounter) giveBack(u *usedCost, used int64) {
	u.used = min(u.used, used)
	c.roundedDown += c.fastest(0) // a bucket that is empty within a nanosecond counts as empty
}

// forgive records that an administrator lowered the usage.
func (c *modelCounter) forgive(now algorithms.Instant, units int64) {
	c.touch(now, c.limit)
	c.forgiven = append(c.forgiven, forgiven{now, c.began, c.drained, units, len(c.costs)})
}

// charge records a cost that was charged without being asked for. by is the
// limit by which the counter was touched.
func (c *modelCounter) charge(now algorithms.Instant, by *algorithms.Limit, cost int64) {
	c.touch(now, by)
	c.charged += cost
}

// reset begins another life.
func (c *modelCounter) reset(now algorithms.Instant) {
	c.counterCopy = counterCopy{
		resetAt: now.Steady, touched: now.Steady, drained: c.drained, mayBeSwept: c.mayBeSwept,
	}
}
