package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// keepAwake keeps all processors busy, with threads that run only when nothing
// else does, until the caller calls the returned function. An idle virtual
// processor gives its core back, and takes long to wake up.
func (b *bench) keepAwake(ctx context.Context) (rest func(), err error) {
	w, err := b.procs.startWorker(ctx, "awake", "awake", struct{}{}, &struct{}{})
	if err != nil {
		return nil, err
	}
	return w.close, nil
}

// stayAwake is a worker that uses up idle time.
func stayAwake(c *conversation) error {
	if _, err := c.next(&struct{}{}); err != nil {
		return err
	}

	var over atomic.Bool
	var spinning sync.WaitGroup

	failed := make(chan error, runtime.NumCPU())
	for range runtime.NumCPU() {
		spinning.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
			err := unix.SchedSetAttr(0, &attr, 0)
			failed <- err
			for err == nil && !over.Load() {
			}
		})
	}

	for range runtime.NumCPU() {
		if err := <-failed; err != nil {
			return fmt.Errorf("lower a thread's priority: %w", err)
		}
	}

	if err := c.answer(struct{}{}); err != nil {
		return err
	}

	_, err := c.next(&struct{}{}) // until the input ends
	over.Store(true)
	spinning.Wait()
	return err
}
