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
	// clockTolerance is how far, in nanoseconds, the wall clock may drift from the
	// steady one before that counts as a step. A smaller drift ends no counter too
	// early, because expiries are rounded up by more.
	clockTolerance    = int64(time.Second)
	maxPauseIntervals = 2 // the most intervals to wait between attempts while checkpoints fail

	commitBytes   = 8 << 20 // bytes of frames in one transaction, which may exceed it by one frame
	maxKeptBuffer = 2 << 20 // bytes of buffer to keep for reuse; enough for frames without large logs

	// restFactor is the ratio of rest to work of the loop's checkpoints. They rest
	// after each stretch of work longer than minWork, but for at most maxRest: a
	// stretch that would need a longer rest was not work, because the process or
	// the disk stood still.
	restFactor = 9
	maxRest    = time.Second
	minWork    = 200 * time.Microsecond
)

// Start begins periodic checkpoints. Call Load first.
func (cf *CounterFile) Start() error {
	if err := cf.lockUntil(cf.ctx); err != nil {
		return err
	}
	defer cf.unlock()

	switch {
	case cf.closed:
		return ErrClosed
	case !cf.loaded:
		return ErrNotLoaded
	case cf.started:
		return nil
	}

	cf.started = true
	go cf.runLoop() // Close waits for it
	return nil
}

// lockUntil waits for the lock until ctx ends. If the lock is free, lockUntil
// takes it even if ctx has ended. It wakes a holder that rests.
func (cf *CounterFile) lockUntil(ctx context.Context) error {
	select {
	case cf.lock <- struct{}{}:
		return nil
	default:
	}

	for {
		select {
		case cf.lock <- struct{}{}:
			return nil
		case cf.hurry <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (cf *CounterFile) unlock() { <-cf.lock }

func (cf *CounterFile) runLoop() {
	defer close(cf.done)
	timer := time.NewTimer(cf.config.Interval)
	defer timer.Stop()

	for {
		select {
		case <-cf.ctx.Done():
			return
		case <-timer.C:
		}

		begin := time.Now()
		_ = cf.lockAndCheckpoint(cf.ctx, true) // checkpoint logs and records its error

		// On a full disk, each attempt makes bbolt walk the whole file, so wait longer.
		pause := cf.config.Interval * time.Duration(min(1+cf.Status().Failures, maxPauseIntervals))
		timer.Reset(max(0, pause-time.Since(begin)))
	}
}

// Checkpoint writes what changed since the last one, as fast as it can. When
// ctx ends, it stops between two frames. What it did not write still counts as
// changed. It fails with ErrNotLoaded before Load, with ErrClosed after Close.
func (cf *CounterFile) Checkpoint(ctx context.Context) error { return cf.lockAndCheckpoint(ctx, false) }

func (cf *CounterFile) lockAndCheckpoint(ctx context.Context, paced bool) error {
	if err := cf.lockUntil(ctx); err != nil {
		return err
	}
	defer cf.unlock()

	if cf.closed {
		return ErrClosed
	}
	return cf.checkpoint(ctx, paced)
}

// checkpoint makes a checkpoint. The caller must hold the lock.
func (cf *CounterFile) checkpoint(ctx context.Context, paced bool) error {
	if !cf.loaded {
		return ErrNotLoaded
	}

	begin := time.Now()
	cf.paced = paced
	cf.lastResumed = begin

	n, err := cf.writeChanges(ctx)
	if isDamaged(err) {
		err = errors.Join(err, cf.setAside(err))
	}

	// If the caller gave up, that says nothing about the disk: it is no failure.
	if err != nil && ctx.Err() != nil {
		return err
	}
	cf.recordOutcome(begin, n, err)
	return err
}

// recordOutcome records the outcome of a checkpoint. It logs the first of
// several failures, and the recovery.
func (cf *CounterFile) recordOutcome(begin time.Time, n int64, err error) {
	cf.statusMu.Lock()
	s := &cf.status
	failuresBefore := s.Failures
	s.Err = err
	if err != nil {
		s.Failures++
	} else {
		s.Failures = 0
		s.Completed = begin
		s.Duration = time.Since(begin)
		s.Counters = n
	}

	if cf.file != nil {
		if info, err := cf.file.handle.Stat(); err == nil {
			s.FileSize = info.Size()
		}
	}
	cf.statusMu.Unlock()

	switch {
	case err != nil && failuresBefore == 0:
		cf.config.Logger.Error("checkpoint failed; counters stay in memory and checks continue",
			"path", cf.path, "error", err)
	case err == nil && failuresBefore > 0:
		cf.config.Logger.Info("checkpoints are written again", "path", cf.path, "failures", failuresBefore)
	}
}

// writeChanges makes one checkpoint and returns how many counters it wrote.
func (cf *CounterFile) writeChanges(ctx context.Context) (int64, error) {
	isNew := cf.file == nil // the previous file was lost, or there was no room to create one
	if isNew {
		if err := cf.open(); err != nil {
			return 0, fmt.Errorf("open new counter file: %w", err)
		}
	}

	// After a step of the wall clock, the times in existing frames are wrong by as
	// much. So all counters are written anew.
	stepped := cf.noticeClockStep(cf.config.Now())
	if stepped || isNew || !cf.complete && cf.base.firstFrame == 0 {
		cf.beginFullBase()
	}

	marked := cf.continueBase()
	var n int64
	err := cf.config.Source.DrainChanges(func(records []counters.Record) error {
		if err := cf.writeFrames(ctx, records); err != nil {
			return fmt.Errorf("write counters: %w", err)
		}
		n += int64(len(records))
		return nil
	})

	cf.base.lastChanged = max(0, n-marked)

	// Only without an error is all that was marked in a frame. After a failure, a
	// later checkpoint completes the base.
	if err == nil {
		err = cf.completeBase()
	}
	return n, err
}

// writeFrames writes records as frames: in one transaction, unless they are
// more than commitBytes, as large logs may be.
func (cf *CounterFile) writeFrames(ctx context.Context, records []counters.Record) error {
	for len(records) > 0 {
		frames := cf.buffer[:0]
		var ends []int // the offset at which each frame ends
		n := 0         // records in frames
		for n < len(records) && len(frames) < commitBytes {
			if err := ctx.Err(); err != nil {
				return err
			}

			begin := len(frames)
			now := cf.config.Now()
			var taken int
			frames, taken = appendFrame(frames, records[n:], now, cf.config.Source.MaxClockLead(now))
			n += taken

			if len(frames) == begin+frameHeader {
				frames = frames[:begin] // every record has expired, so drop the empty frame
			} else {
				ends = append(ends, len(frames))
			}
			cf.pace(ctx)
		}

		if err := cf.commitFrames(frames, ends); err != nil {
			return err
		}

		if cap(frames) <= maxKeptBuffer {
			cf.buffer = frames[:0]
		}
		cf.base.add(int64(len(frames)), int64(n))
		records = records[n:]
	}
	return nil
}

// commitFrames writes frames under the next numbers. ends holds the offset at
// which each frame ends.
func (cf *CounterFile) commitFrames(frames []byte, ends []int) error {
	if len(ends) == 0 {
		return nil
	}

	// lastFrame moves only once the transaction is committed. After a failure, the
	// next transaction uses the same numbers.
	last := cf.lastFrame
	waitedBefore := cf.file.diskTime()
	err := cf.file.update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(framesBucket)
		if err != nil {
			return err
		}
		b.FillPercent = 1 // frames are only ever appended

		begin := 0
		for _, end := range ends {
			last++
			number := binary.BigEndian.AppendUint64(nil, last)
			frame := frames[begin:end:end]
			addChecksum(number, frame)
			if err := b.Put(number, frame); err != nil {
				return err
			}
			begin = end
		}

		// The bucket's sequence says two things. If it is above zero, the file is
		// complete. And it is the last frame's number, which inspect finds even if a new
		// base drops all frames.
		if !cf.complete {
			return nil
		}
		return b.SetSequence(last)
	})
	if err != nil {
		return err
	}

	cf.lastFrame = last
	cf.file.forgetPages()

	// Waiting for the disk needs no rest, because it uses no processor time.
	cf.lastResumed = cf.lastResumed.Add(cf.file.diskTime() - waitedBefore)
	return nil
}

// pace leaves nine tenths of a core to other work, as long as no caller waits for the file.
func (cf *CounterFile) pace(ctx context.Context) {
	worked := time.Since(cf.lastResumed)
	if !cf.paced || worked < minWork {
		return
	}

	select {
	case <-time.After(min(restFactor*worked, maxRest)):
	case <-cf.hurry:
	case <-ctx.Done():
	}
	cf.lastResumed = time.Now()
}

// noticeClockStep reports whether the wall clock has moved against the steady
// one by more than clockTolerance since Load or the last step that it noticed.
func (cf *CounterFile) noticeClockStep(now algorithms.Instant) bool {
	lead := now.Wall - now.Steady
	moved := lead - cf.wallLead
	if -clockTolerance <= moved && moved <= clockTolerance {
		return false
	}
	cf.wallLead = lead
	return true
}

// Close stops the checkpoints, writes a last one and closes the file. If ctx
// ends first, unwritten changes are lost. Later calls return the first call's
// result.
func (cf *CounterFile) Close(ctx context.Context) error {
	cf.closeOnce.Do(func() {
		cf.closeErr = cf.close(ctx)
		if cf.closeErr != nil {
			cf.closeErr = fmt.Errorf("close counters: %w", cf.closeErr)
		}
	})
	return cf.closeErr
}

func (cf *CounterFile) close(ctx context.Context) error {
	// A checkpoint in progress stops at its next frame. The last one writes the
	// rest.
	cf.cancel()
	if err := cf.lockUntil(ctx); err != nil {
		return err
	}

	var err error
	if cf.loaded {
		err = cf.checkpoint(ctx, false)
		if isDamaged(err) && ctx.Err() == nil {
			// The file was set aside, but there is still time to write all counters to a
			// new one.
			err = cf.checkpoint(ctx, false)
		}
	}

	if cf.file != nil {
		err = errors.Join(err, cf.file.close())
		cf.file = nil
	}

	cf.closed = true
	started := cf.started
	cf.unlock()

	if started {
		<-cf.done
	}
	return err
}
