package main

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stallLimit is how long the machine may stand still before a leader that has
// lost the lead, or a lease that has not arrived, proves nothing.
const stallLimit = 250 * time.Millisecond

// watchStalls returns a function that returns for how long this process has
// stood still at most since.
func watchStalls(t *testing.T) func() time.Duration {
	const pause = 20 * time.Millisecond
	var longest atomic.Int64
	var watcher sync.WaitGroup
	watcher.Go(func() {
		ticker := time.NewTicker(pause)
		defer ticker.Stop()

		for last := time.Now(); ; last = time.Now() {
			select {
			case <-ticker.C:
				longest.Store(max(longest.Load(), int64(time.Since(last)-pause)))
			case <-t.Context().Done():
				return
			}
		}
	})
	t.Cleanup(watcher.Wait)
	return func() time.Duration { return time.Duration(longest.Load()) }
}
