package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	sweepBatch      = 1000
	sweepLanes      = 8
	watchInterval   = 50 * time.Millisecond
	checkpointBound = 60 * time.Second // for the checkpoints of one round
)

// checkpoint is one that the node has completed.
type checkpoint struct {
	began, ended time.Time
	counters     float64
}

// since is about how many counters it wrote from a time on.
func (c checkpoint) since(t time.Time) float64 {
	whole := c.ended.Sub(c.began)
	return c.counters * min(1, max(0, float64(c.ended.Sub(t))/float64(max(whole, 1))))
}

// underCheckpoints measures S8: checks on one node while a checkpoint of many changed counters runs, beside the same just
// before, when checkpoints hold no more than what these checks change.
func (b *bench) underCheckpoints(ctx context.Context) error {
	n, err := b.startOne(ctx, b.program, "saving", b.host(1))
	if err != nil {
		return err
	}
	defer n.stop()
	s := &saving{bench: b, node: n, sweep: sweeps(sweepBatch, plenty, b.changed)}
	s.target = target{n.data, checks(plenty, keysUpTo(min(singleKeys, b.changed/20)))}
	b.progress(fmt.Sprintf("filling %d counters", b.changed))
	if err := s.changeAll(ctx); err != nil {
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
	b.report.add("S8", "checks while a checkpoint runs ÷ without", atLeast(0.95, "≥ 0.95"), part, note)
	b.report.figure("S8", "one node, small checkpoints", "", "checks/s", s.without)
	b.report.figure("S8", "one node, a large checkpoint", "", "checks/s", s.during)
	b.report.figure("S8", "counters of the checkpoint", "", "counters", s.written)
	b.report.figure("S8", "time that it took", "", "s", s.took)
	return nil
}

// saving is a node whose checkpoints are watched.
type saving struct {
	*bench
	node   *node
	target target   // the load
	sweep  [][]byte // batches that change every counter

	without, during, written, took series
}

// round measures without and with a large checkpoint. The load begins when all counters have changed, twice: the first time a
// checkpoint begins when some have, the next one, while that still writes, finds nearly all.
func (s *saving) round(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	quiet := load{targets: []target{s.target}, connections: connections, duration: s.time, warm: s.warm()}
	o, err := quiet.run(ctx)
	if err != nil {
		return err
	}
	for range 2 {
		if err := s.changeAll(ctx); err != nil {
			return err
		}
	}
	c, rate, err := s.loadThroughCheckpoint(ctx)
	if err != nil {
		return err
	}
	s.without = append(s.without, o.rate())
	s.during = append(s.during, rate)
	s.written = append(s.written, c.counters)
	s.took = append(s.took, c.ended.Sub(c.began).Seconds())
	return nil
}

// moment is how many checks had been answered at a time.
type moment struct {
	at     time.Time
	checks int64
}

// loadThroughCheckpoint loads the node until its large checkpoints are over. It returns the one of them that wrote most under
// the load, and the rate of checks while it ran, as far as the load was there.
func (s *saving) loadThroughCheckpoint(ctx context.Context) (checkpoint, float64, error) {
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
	begin := moment{at: time.Now()}
	seen, moments, err := s.watch(ctx, begin, &checks)
	cancel()
	group.Wait()
	if failed := <-loaded; err == nil && failed != nil && !errors.Is(failed, context.Canceled) && !errors.Is(failed, net.ErrClosed) {
		err = failed
	}
	if err != nil {
		return checkpoint{}, 0, err
	}
	largest := slices.MaxFunc(seen, func(a, b checkpoint) int { return cmp.Compare(a.since(begin.at), b.since(begin.at)) })
	return largest, rateBetween(moments, largest.began, largest.ended), nil
}

// watch notes how many checks were answered when, until a large checkpoint was followed by a small one.
func (s *saving) watch(ctx context.Context, begin moment, checks *atomic.Int64) (seen []checkpoint, moments []moment, err error) {
	moments = []moment{begin}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	large := false
	for time.Since(begin.at) < checkpointBound-5*time.Second {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		moments = append(moments, moment{time.Now(), checks.Load()})
		c, err := s.lastCheckpoint(ctx)
		if err != nil {
			return nil, nil, err
		}
		if c.ended.Before(begin.at) || len(seen) > 0 && c.began.Sub(seen[len(seen)-1].began) < watchInterval {
			continue
		}
		seen = append(seen, c)
		if c.counters >= float64(s.changed)/8 { // changing all takes a while, so that several may share them
			large = true
		} else if large {
			return seen, moments, nil
		}
	}
	return nil, nil, fmt.Errorf("no checkpoint of a good part of %d counters was followed by a small one within %v: have %d", s.changed, checkpointBound, len(seen))
}

// rateBetween is the rate of checks from one time to another, as far as moments reach.
func rateBetween(moments []moment, from, to time.Time) float64 {
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
	return float64(b.checks-a.checks) / b.at.Sub(a.at).Seconds()
}

// lastCheckpoint is the last one that the node has completed.
func (s *saving) lastCheckpoint(ctx context.Context) (checkpoint, error) {
	m, err := s.node.metrics(ctx)
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
		began: began, ended: began.Add(seconds(m["rlnode_checkpoint_duration_seconds"])), counters: m["rlnode_checkpoint_counters"],
	}, nil
}

// settle waits for a checkpoint that has next to nothing to write.
func (s *saving) settle(ctx context.Context) error {
	var err error
	waited := s.node.await(ctx, "a small checkpoint", func() bool {
		var c checkpoint
		c, err = s.lastCheckpoint(ctx)
		return err != nil || !c.began.IsZero() && c.counters < float64(s.changed)/10
	})
	return errors.Join(waited, err)
}

// changeAll changes every counter once, as fast as it goes.
func (s *saving) changeAll(ctx context.Context) error {
	errs := make([]error, sweepLanes)
	var next atomic.Int64
	var group sync.WaitGroup
	for i := range sweepLanes {
		group.Go(func() { errs[i] = s.changeSome(ctx, &next) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// changeSome sends one batch after another, as long as there are some that nobody has sent.
func (s *saving) changeSome(ctx context.Context, next *atomic.Int64) error {
	l, err := newLane(ctx, 0, &s.target, nil)
	if err != nil {
		return err
	}
	defer l.conn.Close()
	defer context.AfterFunc(ctx, func() { _ = l.conn.Close() })()
	for {
		i := int(next.Add(1) - 1)
		if i >= len(s.sweep) {
			return nil
		}
		if err := l.conn.SetDeadline(time.Now().Add(stallTime)); err != nil {
			return fmt.Errorf("set a deadline: %w", err)
		}
		if _, err := l.conn.Write(s.sweep[i]); err != nil {
			return fmt.Errorf("send a batch: %w", err)
		}
		status, _, err := l.replies.read(l.conn)
		if err != nil {
			return fmt.Errorf("read the answer to a batch: %w", err)
		}
		if status != 200 {
			return errors.New("a batch is answered with status " + strconv.Itoa(status))
		}
	}
}
