package localcache

import (
	"math"
	"time"
)

const (
	// initialChecks is the number of checks that a node asks for when it knows
	// nothing of a subject's traffic.
	initialChecks = 8
	// maxGrowth bounds, as a factor, how much one request may exceed the previous
	// one, so that a burst of a few checks does not look like a flood.
	maxGrowth = 4
	// slackQuarters is how much a node asks for: that many quarters of what it
	// needs at the recent rate.
	slackQuarters = 5
)

// demand measures how fast this node spends one limit of one subject, in units.
type demand struct {
	since      time.Duration // when spent was last reset
	spent      int64         // units that checks wanted since then, whether they got them or not
	rate       float64       // units per nanosecond, over the previous span
	measured   bool          // rate has been measured
	growthBase int64         // the next request is for at most maxGrowth times as many units
}

func (d *demand) add(cost int64) {
	d.spent = min(d.spent+min(cost, math.MaxInt64/4), math.MaxInt64/4)
}

// multiplyCapped returns cost × n, or a number too large for any limit.
func multiplyCapped(cost, n int64) int64 {
	if n > 0 && cost > math.MaxInt64/4/n {
		return math.MaxInt64 / 4
	}
	return cost * n
}

// estimate returns how many units to ask for: what the node will need within
// ttl at the recent rate, and some slack. It returns 0 if a lease would not
// save a call.
func (d *demand) estimate(now, ttl time.Duration, cost int64) int64 {
	if cost == 0 && d.spent == 0 && !d.measured {
		return 0
	}

	passed := now - d.since
	if !d.measured && d.growthBase == 0 {
		d.growthBase = min(initialChecks*max(1, cost), math.MaxInt64/2)
		return d.growthBase
	}

	// The time counts as at least a sixteenth of the TTL: a few checks at one
	// moment don't make a rate.
	rate := float64(d.spent) / float64(max(passed, ttl/16, 1))
	if passed >= ttl/2 {
		d.rate = rate
		d.measured = true
		d.since = now
		d.spent = 0
	} else if d.measured {
		rate = max(rate, d.rate)
	}

	need := rate * float64(ttl)
	if need < float64(max(1, cost)) {
		d.growthBase = 1 // traffic is slow: let the next request grow from the bottom
		return 0
	}

	bound := float64(maxGrowth * max(d.growthBase, initialChecks*max(1, cost)/maxGrowth))
	d.growthBase = int64(min(math.Ceil(need*slackQuarters/4), bound, math.MaxInt64/16))
	return d.growthBase
}
