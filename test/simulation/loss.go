package simulation

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// WithoutLoans returns a counter as it would be if its region had borrowed
// nothing. A loan is taken off what the counter has used, and hides as much use.
// What the counter had not used then widens its window instead.
func WithoutLoans(r counters.Record, borrowed *counters.Record) counters.Record {
	switch {
	case r.Kind.IsBucket():
		r.State.Count += borrowed.State.Count
	case r.Kind == algorithms.FixedWindow && r.State.At == borrowed.State.At:
		r.State.Count += borrowed.State.Count - r.State.Part
	}
	return r
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
