package main

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// decideTask makes a worker that decides in process, with one of the contestants, over n keys.
type decideTask struct {
	Contestant string
	Keys       int
}

// decided is a worker's measurement.
type decided struct {
	Checks int64
	Nanos  int64 // processor time, which excludes what other processes take of a busy processor
	Allocs uint64
}

// serveDecisions is that worker. Each request says how many nanoseconds to run
// for. The worker has one processor, so the store pays for its garbage
// collection.
func serveDecisions(c *conversation) error {
	runtime.GOMAXPROCS(1)
	var task decideTask
	if ok, err := c.next(&task); !ok {
		return err
	}

	build, ok := contestants()[task.Contestant]
	if !ok {
		return fmt.Errorf("there is no contestant %q", task.Contestant)
	}

	own, err := build(task.Keys)
	if err != nil {
		return fmt.Errorf("set up %s: %w", task.Contestant, err)
	}

	for i := range task.Keys {
		if !own.decide(i) {
			return fmt.Errorf("%s refuses key %d", task.Contestant, i)
		}
	}

	if own.maintain != nil {
		own.maintain()
	}

	// What a contestant allocates once, such as lists that fill, belongs to no decision.
	if _, err := decideFor(own.decide, task.Keys, warmUp); err != nil {
		return err
	}

	if err := c.answer("filled"); err != nil {
		return err
	}

	for {
		var nanos int64
		if ok, err := c.next(&nanos); !ok {
			return err
		}

		d, err := decideFor(own.decide, task.Keys, time.Duration(nanos))
		if err != nil {
			return err
		}
		if err := c.answer(d); err != nil {
			return err
		}
	}
}

// warmUp is how long a contestant decides before it is measured.
const warmUp = 300 * time.Millisecond

// decideFor decides about keys drawn evenly.
func decideFor(decide func(int) bool, keys int, d time.Duration) (decided, error) {
	const stride = 512 // checks between two readings of the clock
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	random := uint64(time.Now().UnixNano()) | 1
	checks, refused := int64(0), 0
	used := ownProcessorTime()

	for start := time.Now(); time.Since(start) < d; {
		for range stride {
			random ^= random << 13
			random ^= random >> 7
			random ^= random << 17
			i, _ := bits.Mul64(random, uint64(keys))
			if !decide(int(i)) {
				refused++
			}
		}

		checks += stride
	}

	used = ownProcessorTime() - used
	runtime.ReadMemStats(&after)

	if refused > 0 {
		return decided{}, fmt.Errorf("%d of %d checks are refused, where all are to be admitted", refused, checks)
	}

	return decided{Checks: checks, Nanos: int64(used), Allocs: after.Mallocs - before.Mallocs}, nil
}

// ownProcessorTime returns the processor time of this process.
func ownProcessorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails only for invalid arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// inProcess measures S1: for each number of keys, all contestants take turns,
// each time in a new process. A process that lived for all rounds would keep
// the pages it began with: the first ones get what earlier programs left in
// small pieces, in which a look-up takes up to a third longer.
func (b *bench) inProcess(ctx context.Context) error {
	for _, keys := range b.keys {
		if err := b.decideOver(ctx, keys); err != nil {
			return fmt.Errorf("%d keys: %w", keys, err)
		}
	}
	return nil
}

func (b *bench) decideOver(ctx context.Context, keys int) error {
	var turns []contender
	nanos, allocs := make(map[string]series), make(map[string]series)
	for i, name := range contestantNames() {
		turns = append(turns, contender{name, func(ctx context.Context) error {
			w, err := b.procs.startWorker(ctx, "decide-"+strconv.Itoa(i)+"-"+strconv.Itoa(keys),
				"decide", decideTask{name, keys}, nil)
			if err != nil {
				return err
			}

			defer w.close()

			var d decided

			// A quarter of a load's time: this has many parts, and only the processor limits it.
			if err := w.ask(ctx, int64(b.time/4), &d); err != nil {
				return err
			}

			nanos[name] = append(nanos[name], float64(d.Nanos)/float64(d.Checks))
			allocs[name] = append(allocs[name], float64(d.Allocs)/float64(d.Checks))
			return nil
		}})
	}

	if err := takeTurns(ctx, b.rounds, turns, b.progress); err != nil {
		return err
	}

	b.reportDecided(keys, nanos, allocs)
	return nil
}

func (b *bench) reportDecided(keys int, nanos, allocs map[string]series) {
	over1 := thousands(int64(keys)) + " keys"
	best := ""
	for _, name := range peerNames() {
		if best == "" || nanos[name].median() < nanos[best].median() {
			best = name
		}
	}

	most := atMost(1, "≤ 1")
	if keys <= 10_000 { // fits in the processor's caches
		most = atMost(2, "≤ 2")
	}

	b.report.add("S1", "one decision in process, "+over1+", ÷ the fastest peer", most,
		over(nanos[ownCheck], nanos[best]), best)

	// Ignores what the runtime allocates for itself: over millions of decisions,
	// that rounds to nothing.
	b.report.add("S1", "allocations a decision, "+over1, atMost(0.001, "0"), asRatio(allocs[ownCheck]), "")
	hot := noGoal()
	if keys <= 10_000 {
		hot = atMost(500, "≤ 500")
	}

	b.report.add("S12", "a node in the program, ns a check, "+over1, hot, asRatio(nanos[ownNode]), "")

	for _, name := range contestantNames() {
		b.report.figure("S1", name+", "+over1, "", "ns", nanos[name])
		if a := allocs[name]; a.median() >= 0.001 {
			b.report.figure("S1", name+", "+over1, "allocations", "a decision", a)
		}
	}
}
