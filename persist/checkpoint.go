package persist

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters"
)

const (
	// clockTolerance is how far, in nanoseconds, the wall clock may drift from the steady one before that counts as a step.
	// It is less than the amount by which expiries are rounded up.
	clockTolerance    = int64(time.Second)
	maxPauseIntervals = 2 // the most intervals to wait between attempts while checkpoints fail

	commitBytes   = 8 << 20 // bytes of frames in one transaction, which may exceed it by one frame
	maxKeptBuffer = 2 << 20 // bytes of buffer to keep for reuse; enough for frames without large logs

	// restFactor is the ratio of rest to work of the loop's checkpoints. They rest after each stretch of work longer than
	// minWork.
	restFactor = 9
	minWork    = 200 * time.Microsecond
)

// Start begins periodic checkpoints. Call Load first.
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
	go c.runLoop() // Close waits for it
	return nil
}

func (c *Counters) acquire(ctx context.Context) error {
	select {
	case c.lock <- struct{}{}: // succeed even if ctx has ended, as long as the lock is free
		return nil
	default:
	}
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	select {
	case c.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Counters) release() { <-c.lock }

func (c *Counters) runLoop() {
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
		// checkpointNow logs and records its error.
		_ = c.checkpointNow(c.ctx, true)
		// On a full disk, each attempt makes bbolt walk the whole file, so wait longer.
		pause := c.cfg.Interval * time.Duration(min(1+c.Status().Failures, maxPauseIntervals))
		timer.Reset(max(0, pause-time.Since(begin)))
	}
}

// Checkpoint writes what changed since the last one, as fast as it can. Whatever it can't write still counts as changed. When
// ctx ends, it stops between two frames.
func (c *Counters) Checkpoint(ctx context.Context) error { return c.checkpointNow(ctx, false) }

func (c *Counters) checkpointNow(ctx context.Context, paced bool) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	if c.closed {
		return ErrClosed
	}
	return c.checkpoint(ctx, paced)
}

func (c *Counters) checkpoint(ctx context.Context, paced bool) error {
	if !c.loaded {
		return ErrNotLoaded
	}
	begin := time.Now()
	c.paced, c.lastResumed = paced, begin
	n, err := c.writeChanges(ctx)
	if isDamaged(err) {
		err = errors.Join(err, c.setAside(err))
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	c.recordOutcome(begin, n, err)
	return err
}

// recordOutcome records the outcome of a checkpoint. It logs the first of several failures, and the recovery.
func (c *Counters) recordOutcome(begin time.Time, n int64, err error) {
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
		c.cfg.Logger.Error("checkpoint failed; counters stay in memory and checks continue", "path", c.path, "error", err)
	case err == nil && failed > 0:
		c.cfg.Logger.Info("checkpoints are written again", "path", c.path, "failures", failed)
	}
}

// writeChanges makes one checkpoint and returns how many counters it wrote.
func (c *Counters) writeChanges(ctx context.Context) (int64, error) {
	fresh := c.file == nil // the previous file was lost, or there was no room to create one
	if fresh {
		if err := c.open(); err != nil {
			return 0, fmt.Errorf("open new counter file: %w", err)
		}
	}
	if c.noticeClockStep(c.cfg.Now()) || fresh {
		c.beginFullBase() // after a step, the times in existing frames are wrong by as much
	}
	marked := c.continueBase()
	var n int64
	err := c.cfg.Source.Changed(func(records []counters.Record) error {
		if err := c.writeFrames(ctx, records); err != nil {
			return fmt.Errorf("write counters: %w", err)
		}
		n += int64(len(records))
		return nil
	})
	c.base.lastChanged = max(0, n-marked)
	if err == nil {
		err = c.completeBase()
	}
	return n, err
}

// writeFrames writes records as frames, in one transaction unless they are large logs.
func (c *Counters) writeFrames(ctx context.Context, records []counters.Record) error {
	for len(records) > 0 {
		frames, ends, n := c.buffer[:0], []int(nil), 0
		for n < len(records) && len(frames) < commitBytes {
			if err := ctx.Err(); err != nil {
				return err
			}
			begin, taken := len(frames), 0
			frames, taken = appendFrame(frames, records[n:], c.cfg.Now())
			if n += taken; len(frames) == begin+frameHeader {
				frames = frames[:begin] // every record has expired, so drop the empty frame
			} else {
				ends = append(ends, len(frames))
			}
			c.pace(ctx)
		}
		if err := c.commitFrames(frames, ends); err != nil {
			return err
		}
		if cap(frames) <= maxKeptBuffer {
			c.buffer = frames[:0]
		}
		c.base.add(int64(len(frames)), int64(n))
		records = records[n:]
	}
	return nil
}

// commitFrames writes frames under the next numbers. ends holds the offset at which each frame ends.
func (c *Counters) commitFrames(frames []byte, ends []int) error {
	if len(ends) == 0 {
		return nil
	}
	last, before := c.lastFrame, c.file.diskTime()
	err := c.file.update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(framesBucket)
		if err != nil {
			return err
		}
		b.FillPercent = 1 // frames are only ever appended
		begin := 0
		for _, end := range ends {
			last++
			number, frame := binary.BigEndian.AppendUint64(nil, last), frames[begin:end:end]
			addChecksum(number, frame)
			if err := b.Put(number, frame); err != nil {
				return err
			}
			begin = end
		}
		return b.SetSequence(last)
	})
	if err != nil {
		return err
	}
	c.lastFrame = last
	c.file.forgetPages()
	// Waiting for the disk does not count as work: it uses no processor time.
	c.lastResumed = c.lastResumed.Add(c.file.diskTime() - before)
	return nil
}

// pace leaves nine tenths of a core to other work, unless a caller is waiting for the store.
func (c *Counters) pace(ctx context.Context) {
	worked := time.Since(c.lastResumed)
	if !c.paced || worked < minWork {
		return
	}
	if c.waiting.Load() == 0 {
		select {
		case <-time.After(restFactor * worked):
		case <-ctx.Done():
		}
	}
	c.lastResumed = time.Now()
}

// noticeClockStep reports whether the wall clock has moved against the steady one by more than clockTolerance since Load or
// the last step that it noticed.
func (c *Counters) noticeClockStep(now algorithms.Instant) bool {
	lead := now.Wall - now.Steady
	if moved := lead - c.wallLead; -clockTolerance <= moved && moved <= clockTolerance {
		return false
	}
	c.wallLead = lead
	return true
}

// Close stops the checkpoints, writes a last one and closes the file. If ctx ends first, unwritten changes are lost. Later
// calls return the first call's result.
func (c *Counters) Close(ctx context.Context) error {
	c.closeOnce.Do(func() {
		c.closeErr = c.close(ctx)
		if c.closeErr != nil {
			c.closeErr = fmt.Errorf("close counters: %w", c.closeErr)
		}
	})
	return c.closeErr
}

func (c *Counters) close(ctx context.Context) error {
	// A checkpoint in progress stops at its next frame; the last one writes the rest.
	c.cancel()
	if err := c.acquire(ctx); err != nil {
		return err
	}
	var err error
	if c.loaded {
		err = c.checkpoint(ctx, false)
		if isDamaged(err) && ctx.Err() == nil {
			// The file was set aside, but there is still time to write all counters to a new one.
			err = c.checkpoint(ctx, false)
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
