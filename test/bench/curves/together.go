package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
)

// measureGoroutines measures the throughput of goroutines that check one key, or keys of their own.
func measureGoroutines(o *options) (map[string][]point, error) {
	rounds, each := 9, 400_000
	if o.quick {
		rounds, each = 3, 2000
	}

	l, err := o.open(100_000, "rules:\n  - {name: r, key: [user], limits: ["+counted+"]}")
	if err != nil {
		return nil, err
	}

	var numbers []int
	for n := 1; n <= 8*runtime.GOMAXPROCS(0); n *= 2 {
		numbers = append(numbers, n)
	}

	lines := []string{"each its own keys", "all the same key"}
	values := make([][][]float64, len(lines))
	for i := range values {
		values[i] = make([][]float64, len(numbers))
	}

	for range rounds {
		for i := range lines {
			for j, n := range numbers {
				values[i][j] = append(values[i][j], l.together(n, each, i == 1))
			}
		}
	}

	var points []point
	for i, line := range lines {
		for j, n := range numbers {
			points = append(points, pointOf(line, float64(n), values[i][j]))
		}
	}

	return map[string][]point{"goroutines": points}, nil
}

// together makes n checks from several goroutines, and returns the rate per second.
func (nd *node) together(n, checks int, alike bool) float64 {
	const own = 100 // keys per goroutine
	text := textOf(n * own)
	var ready, done sync.WaitGroup

	begin := make(chan struct{})
	for g := range n {
		ready.Add(1)
		done.Go(func() {
			q := limiter.Query{Rule: "r", Key: []string{keyAt(text, 0)}, ByKey: true}
			check := nd.checks(&q, func(i int) {
				if !alike {
					q.Key[0] = keyAt(text, g*own+i)
				}
			}, own, rand.New(rand.NewPCG(uint64(g), 5)))
			check(own)
			ready.Done()
			<-begin
			check(checks / n)
		})
	}

	ready.Wait()
	began := time.Now()
	close(begin)
	done.Wait()

	return float64(checks/n*n) / time.Since(began).Seconds()
}

// measureLog times refusals by a log with n entries, which has to find when there is room again.
func measureLog(o *options) (map[string][]point, error) {
	var samples []sample
	for _, part := range []struct {
		line string
		cost func(n int64) int64
	}{
		{"a cost of 1", func(int64) int64 { return 1 }},
		{"a cost of the whole limit", func(n int64) int64 { return n }},
		// The worst case: as many entries expire as may stay.
		{"a cost of half the limit", func(n int64) int64 { return n / 2 }},
	} {
		for n := int64(16); n <= algorithms.MaxLogEntries; n *= 4 {
			run, err := refusals(o, n, part.cost(n))
			if err != nil {
				return nil, err
			}
			samples = append(samples, sample{part.line, float64(n), run})
		}
	}

	return map[string][]point{"log": timed(o, samples)}, nil
}

// refusals times refusals by a full log with n entries.
func refusals(o *options, n, cost int64) (func(int), error) {
	table := o.table(1000)
	now := algorithms.At(time.Now())

	ops := []counters.Op{{
		Key: counters.Key{Subject: 1, Counter: 1}, Cost: 1,
		Limit: &algorithms.Limit{Kind: algorithms.SlidingLog, Amount: n, Window: 24 * time.Hour},
	}}
	for range n {
		now.Steady, now.Wall = now.Steady+1000, now.Wall+1000
		table.Take(now, ops)
	}

	if st := table.Stats(); st.LogEntries != n {
		return nil, fmt.Errorf("have %d entries, want %d", st.LogEntries, n)
	}

	ops[0].Cost = cost
	return func(times int) {
		for range times {
			if table.Take(now, ops) != counters.Refused {
				panic("admitted")
			}
		}
	}, nil
}
