package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	watchInterval   = 50 * time.Millisecond
	checkpointBound = 60 * time.Second // for the checkpoints of one round
)

// checkpoint is one that the node has completed.
type checkpoint struct {
	began, ended time.Time
	counters     float64
}

// since estimates how many counters it has written since a time.
func (c checkpoint) since(t time.Time) float64 {
	whole := c.ended.Sub(c.began)
	return c.counters * min(1, max(0, float64(c.ended.Sub(t))/float64(max(whole, 1))))
}

// underCheckpoints measures S8: checks on one node during a checkpoint of many
// changed counters, compared with checks just before, when checkpoints hold
// only what these checks change.
func (b *bench) underCheckpoints(ctx context.Context) error {
	n, err := b.startOne(ctx, b.program, "saving", b.host(1), benchRules)
	if err != nil {
		return err
	}

	defer n.stop()

	s := &saving{bench: b, node: n, all: sweep{n.data, plenty, b.changed}}
	s.target = target{n.data, checks(plenty, keysUpTo(min(singleKeys, b.changed/20)))}
	b.progress(fmt.Sprintf("filling %d counters", b.changed))

	if err := s.all.run(ctx); err != nil {
		return err
	}

	for r := range b.rounds {
		b.progress(fmt.Sprintf("round %d of %d: a checkpoint of %d counters", r+1, b.rounds, b.changed))
		if err := s.round(ctx); err != nil {
			return err
		}
	}

	part := over(s.during, s.without)
	note := fmt.Sprintf("checkpoints of %s counters, %.1f s each", short(s.written.median()), s.took.median())
	b.report.add("S8", "checks while a checkpoint runs ÷ without", atLeast(0.9, "≥ 0.9"), part, note)
	b.report.figure("S8", "one node, small checkpoints", "", "checks/s", s.without)
	b.report.figure("S8", "one node, small checkpoints", "processor time of the server", "µs a check", s.withoutCPU)
	b.report.figure("S8", "one node, a large checkpoint", "", "checks/s", s.during)
	b.report.figure("S8", "one node, a large checkpoint", "processor time of the server", "µs a check", s.duringCPU)
	b.report.figure("S8", "counters of the checkpoint", "", "counters", s.written)
	b.report.figure("S8", "time that it took", "", "s", s.took)

	return nil
}

// saving is a node whose checkpoints are observed.
type saving struct {
	*bench
	node   *node
	target target // the load
	all    sweep  // changes every counter

	without, during, written, took series
	withoutCPU, duringCPU          series // microseconds per check
}

// round measures without and with a large checkpoint. Before the load begins,
// all counters change twice: the first checkpoint begins when some have
// changed; the next one, while that still writes, finds nearly all.
func (s *saving) round(ctx context.Context) error {
	if err := s.node.awaitSmallCheckpoint(ctx, s.changed/20); err != nil {
		return err
	}

	from := time.Now().Add(s.warm())
	to := from.Add(s.time)
	_, moments, err := s.load(ctx, func([]checkpoint) bool { return time.Now().After(to) })
	if err != nil {
		return err
	}

	without, withoutCPU := between(moments, from, to)

	for range 2 {
		if err := s.all.run(ctx); err != nil {
			return err
		}
	}

	begin := time.Now()
	seen, moments, err := s.load(ctx, s.largeAndSmall)
	if err != nil {
		return err
	}

	c := slices.MaxFunc(seen, func(a, b checkpoint) int { return cmp.Compare(a.since(begin), b.since(begin)) })
	during, duringCPU := between(moments, c.began, c.ended)
	s.without, s.withoutCPU = append(s.without, without), append(s.withoutCPU, withoutCPU)
	s.during, s.duringCPU = append(s.during, during), append(s.duringCPU, duringCPU)
	s.written = append(s.written, c.counters)
	s.took = append(s.took, c.ended.Sub(c.began).Seconds())

	return nil
}

// moment is a time, with the number of checks answered by then and the processor time used.
type moment struct {
	at     time.Time
	checks int64
	cpu    time.Duration // of the node
}

// load loads the node until done, which gets the checkpoints that ended under
// the load. It returns these, and the moments.
func (s *saving) load(ctx context.Context, done func([]checkpoint) bool) ([]checkpoint, []moment, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var checks atomic.Int64
	l := load{targets: []target{s.target}, connections: connections, duration: checkpointBound, progress: &checks}
	loaded := make(chan error, 1)
	var group sync.WaitGroup
	group.Go(func() {
		_, err := l.run(ctx)
		loaded <- err
	})
	seen, moments, err := s.watch(ctx, &checks, done)
	cancel()
	group.Wait()

	if failed := <-loaded; err == nil && failed != nil && !errors.Is(failed, context.Canceled) &&
		!errors.Is(failed, net.ErrClosed) {
		err = failed
	}

	return seen, moments, err
}

// watch is the observing part of load. It asks the node for its metrics, which
// costs some speed, so both loads of a comparison have to be watched.
func (s *saving) watch(
	ctx context.Context, checks *atomic.Int64, done func([]checkpoint) bool,
) (seen []checkpoint, moments []moment, err error) {
	begin := time.Now()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()

	for !done(seen) {
		if time.Since(begin) > checkpointBound-5*time.Second {
			return nil, nil,
				fmt.Errorf("no checkpoint of a good part of %d counters was followed by a small one within %v: have %d",
					s.changed, checkpointBound, len(seen))
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}

		cpu, err := s.node.cpu()
		if err != nil {
			return nil, nil, err
		}

		moments = append(moments, moment{time.Now(), checks.Load(), cpu})
		c, err := s.node.lastCheckpoint(ctx)
		if err != nil {
			return nil, nil, err
		}

		if !c.ended.Before(begin) && (len(seen) == 0 || c.began.Sub(seen[len(seen)-1].began) >= watchInterval) {
			seen = append(seen, c)
		}
	}

	return seen, moments, nil
}

// largeAndSmall reports whether a large checkpoint was followed by a small one.
func (s *saving) largeAndSmall(seen []checkpoint) bool {
	// changing all takes a while, so several checkpoints may share them
	large := func(c checkpoint) bool { return c.counters >= float64(s.changed)/8 }
	return slices.ContainsFunc(seen, large) && !large(seen[len(seen)-1])
}

// between returns the rate of checks between two times, as far as moments
// reach, and the node's processor time per check, in microseconds.
func between(moments []moment, from, to time.Time) (rate, cpu float64) {
	first, last := 0, 0
	for i, m := range moments {
		if !m.at.After(from) {
			first = i
		}
		if !m.at.After(to) {
			last = i
		}
	}
	a, b := moments[first], moments[last]
	checks := float64(b.checks - a.checks)
	return checks / b.at.Sub(a.at).Seconds(), micros(b.cpu-a.cpu) / checks
}

// lastCheckpoint returns the last checkpoint that the node has completed.
func (n *node) lastCheckpoint(ctx context.Context) (checkpoint, error) {
	m, err := n.metrics(ctx)
	if err != nil {
		return checkpoint{}, err
	}

	age, ok := m["rlnode_checkpoint_age_seconds"]
	if !ok {
		return checkpoint{}, nil // none yet
	}

	seconds := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	began := time.Now().Add(-seconds(age))
	return checkpoint{
		began: began, ended: began.Add(seconds(m["rlnode_checkpoint_duration_seconds"])),
		counters: m["rlnode_checkpoint_counters"],
	}, nil
}

// awaitSmallCheckpoint waits for a checkpoint that begins from now on and
// writes fewer counters than most.
func (n *node) awaitSmallCheckpoint(ctx context.Context, most int) error {
	var err error
	begin := time.Now()
	waited := n.await(ctx, "a small checkpoint", func() bool {
		var c checkpoint
		c, err = n.lastCheckpoint(ctx)
		return err != nil || c.began.After(begin) && c.counters < float64(most)
	})
	return errors.Join(waited, err)
}
