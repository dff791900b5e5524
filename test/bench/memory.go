package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

// memoryTask makes a worker that fills a table with n counters.
type memoryTask struct{ Counters int }

// memoryUse is its measurement: the resident bytes of the counters, and how
// long forced collections stopped the program, in microseconds.
type memoryUse struct {
	Grown       int64
	PauseMedian float64
	PauseMax    float64
}

// serveMemory is that worker.
func serveMemory(c *conversation) error {
	var task memoryTask
	if ok, err := c.next(&task); !ok {
		return err
	}

	table := counters.New(tableBound(task.Counters))
	before, err := residentNow()
	if err != nil {
		return err
	}
	if err := fill(table, task.Counters); err != nil {
		return err
	}

	after, err := residentNow()
	if err != nil {
		return err
	}

	use := memoryUse{Grown: after - before}
	use.PauseMedian, use.PauseMax = pauses()

	if have := table.Stats().Counters; have != int64(task.Counters) {
		return fmt.Errorf("the table holds %d counters of %d", have, task.Counters)
	}

	return c.answer(use)
}

// fill makes counters of the four algorithms with fixed-size state, in turn.
// None of them expires for hours.
func fill(table *counters.Table, count int) error {
	var limits []algorithms.Limit
	for _, kind := range []algorithms.Kind{
		algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.FixedWindow, algorithms.SlidingWindow,
	} {
		limits = append(limits, algorithms.Limit{Kind: kind, Amount: 100, Burst: 100, Window: 24 * time.Hour})
	}

	now := algorithms.At(time.Now())
	ops := []counters.Op{{Cost: 50}}
	for i := range count {
		ops[0].Key, ops[0].Limit = scattered(uint64(i)), &limits[i%len(limits)]
		table.Take(now, ops)
		if !ops[0].Decision.Allowed {
			return fmt.Errorf("counter %d refuses its first check", i)
		}
	}

	return nil
}

// residentNow returns this process's resident memory in bytes, without garbage.
func residentNow() (int64, error) {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, fmt.Errorf("read resident memory: %w", err)
	}

	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read resident memory: have %q", text)
	}

	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read resident memory: %w", err)
	}

	return pages * int64(os.Getpagesize()), nil
}

// pauses forces collections, and returns for how many microseconds they stopped
// the program: the median and the maximum.
func pauses() (median, longest float64) {
	const collections = 50
	for range collections {
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	var all series
	for i := range uint32(collections) {
		all = append(all, micros(time.Duration(stats.PauseNs[(stats.NumGC-1-i)%uint32(len(stats.PauseNs))])))
	}
	return all.median(), all.max()
}

// memory measures S6: workers with an empty table and with full ones, in turn.
func (b *bench) memory(ctx context.Context) error {
	sizes := append([]int{0}, b.counters...)
	slices.Sort(sizes)
	perCounter := make(map[int]series)
	medians := make(map[int]series)
	longest := make(map[int]series)

	var turns []contender
	for _, size := range sizes {
		turns = append(turns, contender{"a table of " + thousands(int64(size)), func(ctx context.Context) error {
			var use memoryUse
			w, err := b.procs.startWorker(ctx, "memory", "memory", memoryTask{size}, &use)
			if err != nil {
				return err
			}

			w.close()
			perCounter[size] = append(perCounter[size], float64(use.Grown)/float64(size))
			medians[size] = append(medians[size], use.PauseMedian)
			longest[size] = append(longest[size], use.PauseMax)

			return nil
		}})
	}

	if err := takeTurns(ctx, min(b.rounds, 3), turns, b.progress); err != nil { // memory hardly varies between rounds
		return err
	}
	if err := b.memoryOfNode(ctx); err != nil {
		return err
	}

	for _, size := range sizes {
		of := thousands(int64(size)) + " counters"
		if size > 0 {
			bytes := perCounter[size]
			b.report.add("S6", "resident bytes a counter, "+of, atMost(64, "≤ 64"), asRatio(bytes), "")
			b.report.add("S6", "pause of the collector, "+of+", ÷ that of an empty table",
				atMost(1.25, "no growth: ≤ 1.25"),
				over(medians[size], medians[0]), "")
		}
		b.report.figure("S6", "pause of a forced collection, "+of, "", "µs", medians[size])
		b.report.figure("S6", "pause of a forced collection, "+of, "longest", "µs", longest[size])
	}

	return nil
}

// memoryOfNode is the second part of S6: a whole node, with its data directory and checkpoints.
func (b *bench) memoryOfNode(ctx context.Context) error {
	for _, size := range b.counters {
		var grown, anonymous, mapped series
		for r := range min(b.rounds, 3) {
			b.progress(fmt.Sprintf("round %d of %d: a node with %d counters", r+1, min(b.rounds, 3), size))
			before, after, err := b.fillNode(ctx, fmt.Sprintf("holding-%d-%d", size, r), size)
			if err != nil {
				return err
			}
			grown = append(grown, float64(after.resident()-before.resident())/float64(size))
			anonymous = append(anonymous, float64(after.anonymous-before.anonymous)/float64(size))
			mapped = append(mapped, float64(after.mapped-before.mapped)/float64(size))
		}

		of := thousands(int64(size)) + " counters"
		b.report.add("S6", "resident bytes a counter of a whole node, "+of, atMost(100, "≤ 100"), asRatio(grown), "")
		b.report.figure("S6", "a whole node, "+of, "", "bytes a counter", grown)
		b.report.figure("S6", "a whole node, "+of, "anonymous", "bytes a counter", anonymous)
		b.report.figure("S6", "a whole node, "+of, "of files", "bytes a counter", mapped)
	}

	return nil
}

// fillNode starts a node, creates counters with batches, and returns its memory
// before, and after the counters are on disk.
func (b *bench) fillNode(ctx context.Context, name string, size int) (before, after residence, err error) {
	n, err := b.startNode(b.program, name, b.host(1), benchRules, "--max-counters", strconv.FormatInt(tableBound(size), 10))
	if err != nil {
		return before, after, err
	}

	defer func() {
		n.stop()
		err = errors.Join(err, os.RemoveAll(filepath.Join(b.dir, name)))
	}()

	if err := n.awaitReady(ctx); err != nil {
		return before, after, err
	}
	if before, err = n.residence(); err != nil {
		return before, after, err
	}
	if err := (sweep{n.data, plenty, size}).run(ctx); err != nil {
		return before, after, err
	}
	if err := n.awaitSmallCheckpoint(ctx, size/100); err != nil {
		return before, after, err
	}

	m, err := n.metrics(ctx)
	if err != nil {
		return before, after, err
	}
	if have := m["rlnode_counters"]; have < float64(size) {
		return before, after, fmt.Errorf("the node has %.0f counters of %d", have, size)
	}

	after, err = n.residence()
	return before, after, err
}

// residence returns a process's resident memory, in bytes.
type residence struct{ anonymous, mapped int64 }

func (r residence) resident() int64 { return r.anonymous + r.mapped }

func (p *process) residence() (r residence, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return r, fmt.Errorf("read the memory of %s: %w", p.name, err)
	}

	for line := range strings.Lines(string(text)) {
		var name string
		var kilobytes int64
		if n, _ := fmt.Sscan(line, &name, &kilobytes); n < 2 {
			continue
		}

		switch name {
		case "RssAnon:":
			r.anonymous = kilobytes << 10
		case "RssFile:", "RssShmem:":
			r.mapped += kilobytes << 10
		}
	}

	return r, nil
}
