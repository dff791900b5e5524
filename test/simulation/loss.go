package simulation

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// MissingUse is MissingInCopy for what a region has used of a counter, whatever
// it has borrowed. A loan is taken off what the counter has used, and hides as
// much use. borrowed and borrowedThen are the companions of own and copied.
func MissingUse(own, borrowed, copied, borrowedThen *counters.Record) int64 {
	o := *own
	c := *copied
	switch {
	case own.Kind == algorithms.FixedWindow:
		o.State.Count += takenOff(own, borrowed)
		c.State.Count += takenOff(copied, borrowedThen)
	case own.Kind.IsBucket():
		// A bucket's companion drains as the bucket does. So only its growth says what
		// was borrowed.
		o.State.Count += max(0, borrowed.State.Count-borrowedThen.State.Count)
	}
	return MissingInCopy(&o, c)
}

// takenOff returns how much of what a fixed window has borrowed was taken off
// its use. The rest, its Part, widens the window.
func takenOff(window, borrowed *counters.Record) int64 {
	if window.State.At != borrowed.State.At {
		return 0 // what was borrowed is of an earlier window
	}
	return borrowed.State.Count - window.State.Part
}

// MissingInCopy returns how much of a counter's cost its copy does not have, or
// an upper bound where that is unknown.
func MissingInCopy(own *counters.Record, copied counters.Record) int64 {
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
