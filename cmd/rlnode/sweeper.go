package main

import (
	"context"
	"sync"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/limiter"
)

// Expired counters are dropped from a small part of the table at a time: all of it in under half a minute.
const (
	sweepInterval = 500 * time.Millisecond
	sweepPart     = 0.02
)

// sweeper drops expired counters in the background.
type sweeper struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func startSweeper(table *counters.Table, clock *limiter.Clock) *sweeper {
	ctx, cancel := context.WithCancel(context.Background())
	s := &sweeper{cancel: cancel}
	s.done.Go(func() {
		tick := time.NewTicker(sweepInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				table.Sweep(clock.Now(), sweepPart)
			}
		}
	})
	return s
}

// close returns when nothing touches the table any more.
func (s *sweeper) close() {
	s.cancel()
	s.done.Wait()
}
