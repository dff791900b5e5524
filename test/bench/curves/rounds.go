package main

import (
	"runtime"
	"time"
)

// sample is a point to be timed: run executes the operation n times.
type sample struct {
	line string
	x    float64
	run  func(n int)
}

// timed times all samples in rounds on one core, and returns the points in ns per operation.
func timed(o *options, samples []sample) []point {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))

	rounds, span := 9, 60*time.Millisecond
	if o.quick {
		rounds, span = 3, time.Millisecond
	}

	counts := make([]int, len(samples))
	for i, s := range samples {
		counts[i] = enough(s.run, span)
	}

	values := make([][]float64, len(samples))
	for range rounds {
		for i, s := range samples {
			began := time.Now()
			s.run(counts[i])
			values[i] = append(values[i], float64(time.Since(began).Nanoseconds())/float64(counts[i]))
		}
	}

	var points []point
	for i, s := range samples {
		points = append(points, pointOf(s.line, s.x, values[i]))
	}

	return points
}

// enough returns how many operations take about a given time.
func enough(run func(n int), span time.Duration) int {
	for n := 64; ; n *= 2 {
		began := time.Now()
		if run(n); time.Since(began) > span/4 || n >= 1<<26 {
			return 4 * n
		}
	}
}
