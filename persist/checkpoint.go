package persist

import (
	"context"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

const (
	dropsEach = 8 // expired buckets dropped in one checkpoint; at most one more expires every 16 s
	// tolerance is how far, in nanoseconds, the wall clock may move against the steady one unnoticed: less than what
	// expiries are rounded up by.
	tolerance  = int64(time.Second)
	maxBackoff = 2 // intervals between two tries while checkpoints fail
	// Writing that many counters leaves garbage of tens of megabytes, more than all else that a node has on the
	// heap. It is given back at once rather than at the collector's leisure.
	muchGarbage = 50_000
)

// Start begins the checkpoints. Load comes before it.
func (c *Counters) Start() error {
	if err := c.acquire(c.ctx); err != nil {
		return err
	}
	defer c.release()
	switch {
	case c.closed:
		return ErrClosed
	case !c.loaded:
		return ErrNotLoaded
	case c.started:
		return nil
	}
	c.started = true
	go c.loop() // Close waits for it
	return nil
}

func (c *Counters) acquire(ctx context.Context) error {
	select {
	case c.lock <- struct{}{}: // also when ctx has ended, if nobody is in the way
		return nil
	default:
	}
	select {
	case c.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Counters) release() { <-c.lock }

func (c *Counters) loop() {
	defer close(c.done)
	timer := time.NewTimer(c.cfg.Interval)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-timer.C:
		}
		begin := time.Now()
		// Checkpoint logs and records its error.
		_ = c.Checkpoint(c.ctx)
		// On a full disk each try makes bbolt walk the whole file.
		pause := c.cfg.Interval * time.Duration(min(1+c.Status().Failures, maxBackoff))
		timer.Reset(max(0, pause-time.Since(begin)))
	}
}

// Checkpoint writes what changed since the last one. What could not be written counts as changed still. When ctx
// ends, it stops between two batches.
func (c *Counters) Checkpoint(ctx context.Context) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	if c.closed {
		return ErrClosed
	}
	return c.checkpoint(ctx)
}

func (c *Counters) checkpoint(ctx context.Context) error {
	if !c.loaded {
		return ErrNotLoaded
	}
	begin := time.Now()
	n, err := c.write(ctx)
	if damaged(err) {
		if again := c.discard(err); again != nil {
			err = errors.Join(err, again)
		}
		c.cfg.Source.MarkAll()
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	c.report(begin, n, err)
	if n == 0 {
		c.giveBack(0) // what is left of busier times
	}
	return err
}

// giveBack returns memory that writing or reading n counters took.
func (c *Counters) giveBack(n int64) {
	if n > 0 && c.file != nil {
		c.file.forgetPages(c.used)
	}
	idle := n == 0 && c.garbage >= muchGarbage/10
	if c.garbage += n; c.garbage >= muchGarbage || idle {
		if c.cfg.FreeMemory != nil {
			c.cfg.FreeMemory()
		}
		c.garbage = 0
	}
}

// report records the outcome of a checkpoint, and logs the first of several failures and the recovery.
func (c *Counters) report(begin time.Time, n int64, err error) {
	c.statusMu.Lock()
	s := &c.status
	failed := s.Failures
	s.Err = err
	if err != nil {
		s.Failures++
	} else {
		s.Failures = 0
		s.Completed, s.Duration, s.Counters = begin, time.Since(begin), n
	}
	if c.file != nil {
		if info, err := c.file.handle.Stat(); err == nil {
			s.FileSize = info.Size()
		}
	}
	c.statusMu.Unlock()
	switch {
	case err != nil && failed == 0:
		c.cfg.Logger.Error("checkpoint failed; counters are kept in memory and checks go on", "path", c.path, "error", err)
	case err == nil && failed > 0:
		c.cfg.Logger.Info("checkpoints are written again", "path", c.path, "failures", failed)
	}
}

// write makes one checkpoint and returns how many counters it wrote.
func (c *Counters) write(ctx context.Context) (int64, error) {
	if c.file == nil {
		if err := c.open(); err != nil {
			return 0, fmt.Errorf("open new counter file: %w", err)
		}
	}
	now := c.cfg.Now()
	if c.stepped(now) {
		// What the file says of expiries is off by the step: all is written anew before anything is dropped.
		c.cfg.Source.MarkAll()
	} else if err := c.dropExpired(now); err != nil {
		return 0, fmt.Errorf("drop expired counters: %w", err)
	}
	c.seq++
	var n int64
	err := c.cfg.Source.Changed(func(records []counters.Record) error {
		for len(records) > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			taken := c.batch.fill(now, c.seq, records, c.buckets)
			if err := c.put(); err != nil {
				return fmt.Errorf("write counters: %w", err)
			}
			n += int64(taken)
			c.giveBack(int64(taken))
			records = records[taken:]
		}
		return nil
	})
	return n, err
}

// stepped reports whether the wall clock has moved against the steady one since this was last asked, by more than
// rounding.
func (c *Counters) stepped(now algorithms.Now) bool {
	lead := now.Wall - now.Steady
	if moved := lead - c.lead; -tolerance <= moved && moved <= tolerance {
		return false
	}
	c.lead = lead
	return true
}

// dropExpired drops some of the buckets that have expired.
func (c *Counters) dropExpired(now algorithms.Now) error {
	for range dropsEach {
		if len(c.buckets) == 0 || c.buckets[0] > seconds(now.Wall) {
			break
		}
		if err := c.drop(); err != nil {
			return err
		}
		c.file.forgetPages(c.used)
	}
	return nil
}

// update runs one guarded transaction.
func (c *Counters) update(f func(tx *bolt.Tx) error) error {
	if err := c.file.intact(c.used); err != nil {
		return err
	}
	var used int64
	err := c.file.update(func(tx *bolt.Tx) error {
		used = tx.Size()
		return f(tx)
	})
	if err == nil {
		// The size before this transaction's own pages: a lower bound is enough.
		c.used = used
	}
	return err
}

// drop removes the first bucket, which has expired.
func (c *Counters) drop() error {
	name := bucketName(c.buckets[0])
	err := c.update(func(tx *bolt.Tx) error { return tx.DeleteBucket(name) })
	if err == nil {
		delete(c.filters, c.buckets[0])
		c.buckets = c.buckets[1:]
	}
	return err
}

// Close stops the checkpoints, writes a last one and closes the file. When ctx ends first, what was not written
// is lost. Further calls return what the first did.
func (c *Counters) Close(ctx context.Context) error {
	c.once.Do(func() {
		c.result = c.close(ctx)
		if c.result != nil {
			c.result = fmt.Errorf("close counters: %w", c.result)
		}
	})
	return c.result
}

func (c *Counters) close(ctx context.Context) error {
	// A checkpoint under way stops at its next batch; the last one writes the rest.
	c.cancel()
	if err := c.acquire(ctx); err != nil {
		return err
	}
	var err error
	if c.loaded {
		err = c.checkpoint(ctx)
		if damaged(err) && ctx.Err() == nil {
			// The file was set aside; there is still time for all counters to go into a new one.
			err = c.checkpoint(ctx)
		}
	}
	if c.file != nil {
		err = errors.Join(err, c.file.close())
		c.file = nil
	}
	c.closed = true
	started := c.started
	c.release()
	if started {
		<-c.done
	}
	return err
}
