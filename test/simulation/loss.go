package simulation

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// Use is what a region has counted of a subject: its counter, and the records
// beside it of what it has lent to other regions and borrowed from them.
type Use struct {
	Counter  counters.Record
	Lent     counters.Record
	Borrowed counters.Record
}

// MissingIn returns how much of what a region has used or lent its copy does
// not have, or an upper bound where that is unknown. A loan from another region
// is taken off the counter, and hides as much use; it is added here.
func (own *Use) MissingIn(copied *Use) int64 {
	o := own.Counter
	c := copied.Counter
	switch {
	case o.Kind == algorithms.FixedWindow:
		o.State.Count += own.takenOff()
		c.State.Count += copied.takenOff()
	case o.Kind.IsBucket():
		// A bucket's companion drains as the bucket does. So only its growth says what
		// was borrowed.
		o.State.Count += max(0, own.Borrowed.State.Count-copied.Borrowed.State.Count)
	}
	return missingInCopy(&o, c)
}

// MissingUseIn is MissingIn without what was lent: a region tells its standby
// of a loan before the borrower, so no loan that counts is missing.
func (own *Use) MissingUseIn(copied *Use) int64 {
	missing := own.MissingIn(copied)
	if !own.hasLent() {
		return missing
	}
	return max(0, missing-missingInCopy(&own.Lent, copied.Lent))
}

// hasLent reports whether a fixed window has lent some of what it has now. What
// an earlier window lent is no part of the counter any more.
func (own *Use) hasLent() bool {
	return own.Lent.Kind == algorithms.FixedWindow && own.Lent.State.Count > 0 &&
		own.Lent.State.At == own.Counter.State.At
}

// takenOff returns how much of what a fixed window has borrowed was taken off
// its use. The rest, its Part, widens the window.
func (own *Use) takenOff() int64 {
	if own.Counter.State.At != own.Borrowed.State.At {
		return 0 // what was borrowed is of an earlier window
	}
	return own.Borrowed.State.Count - own.Counter.State.Part
}

// missingInCopy returns how much of a counter's cost its copy does not have, or
// an upper bound where that is unknown.
func missingInCopy(own *counters.Record, copied counters.Record) int64 {
	o, c := own.State, copied.State
	switch {
	case own.Kind == algorithms.SlidingLog:
		return missingInLog(own.Log, copied.Log)
	case own.Kind.IsBucket():
		return max(0, o.Count+1-c.Count) // the fraction counts as one
	case own.Kind == algorithms.FixedWindow:
		if o.At != c.At {
			return o.Count
		}
		return max(0, o.Count-c.Count)
	}

	switch o.At - c.At {
	case 0:
		return max(0, o.Count-c.Count) + max(0, o.Part-c.Part)
	case 1:
		return o.Count + max(0, o.Part-c.Count)
	}

	return o.Count + o.Part
}

func missingInLog(own, copied []algorithms.Entry) (n int64) {
	known := map[int64]int64{}
	for _, e := range copied {
		known[e.At] += e.N
	}
	for _, e := range own {
		n += max(0, e.N-known[e.At])
	}
	return n
}
