package main

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
)

// Expired counters are dropped from a small part of each table at a time: all of it in under half a minute.
const (
	sweepInterval = 500 * time.Millisecond
	sweepPart     = 0.02
	// muchGarbage is how many log entries are dropped before their memory, unlike the table's on the heap, is given
	// back rather than left until an idle node's next collection.
	muchGarbage = 500_000
)

// sweeper drops expired counters in the background.
type sweeper struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func startSweeper(clock *limiter.Clock, tables ...*counters.Table) *sweeper {
	ctx, cancel := context.WithCancel(context.Background())
	s := &sweeper{cancel: cancel}
	s.done.Go(func() {
		dropped := int64(0) // log entries, since memory was given back
		tick := time.NewTicker(sweepInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for _, table := range tables {
				before := table.Stats().LogEntries
				table.Sweep(clock.Now(), sweepPart)
				dropped += max(0, before-table.Stats().LogEntries)
			}
			if dropped > muchGarbage {
				debug.FreeOSMemory()
				dropped = 0
			}
		}
	})
	return s
}

// close returns when nothing touches the tables any more.
func (s *sweeper) close() {
	s.cancel()
	s.done.Wait()
}
