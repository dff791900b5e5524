package simulation

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

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
