package limiter

import (
	"cmp"
	"context"
	"crypto/rand"
	"time"

	"github.com/rlnode/rlnode/counters"
	"github.com/rlnode/rlnode/counters/notes"
	"github.com/rlnode/rlnode/internal/tasks"
	"github.com/rlnode/rlnode/limiter/top"
	"github.com/rlnode/rlnode/localcache"
	"github.com/rlnode/rlnode/rules/entries"
)

// New returns a limiter over table for a standalone node; for a cluster see
// NewInCluster. Call SetRules before the first check. If clock is nil, callers
// may only use the methods that take the time as an argument.
func New(table *counters.Table, clock *Clock) *Limiter {
	l := &Limiter{table: table, clock: clock, nearLimits: top.NewNearLimits(), entries: entries.New(),
		startedAt: time.Now()}
	l.fullSamplesLeft.Store(exactSamples)

	for by := range l.tops {
		l.tops[by] = top.NewList()
	}

	l.reservations.limiter = l
	if clock != nil {
		l.wallClock = l.wallMillis
	}

	l.requests.deciding = make(map[notes.Key]chan struct{})
	_, _ = rand.Read(l.reservations.processKey[:]) // never fails
	l.markRatesChanging()                          // nobody knows the rates before this process began
	return l
}

// NewInCluster returns a limiter over table that decides together with other
// nodes. It decides a check itself if table's gates are open for the check, and
// otherwise asks the owners. The error is Validate's. The caller must Close it.
func NewInCluster(table *counters.Table, clock *Clock, config ClusterConfig) (*Limiter, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}

	cp := &clusterPart{ClusterConfig: config, background: tasks.Group{Most: maxBackground}}
	if cp.Boottime == nil {
		start := time.Now()
		cp.Boottime = func() time.Duration { return time.Since(start) + 1 }
	}

	bound := cmp.Or(config.Leases, defaultLeases)
	cp.ctx, cp.stop = context.WithCancel(context.Background())
	l := New(table, clock)
	l.boot = config.Boot
	l.cluster = cp
	cp.loans.init(l)
	cp.leases = leases{limiter: l, held: localcache.NewLeases(bound), granted: localcache.NewLeaseLedger(bound)}
	cp.refunds = l.newBacklog(maxWaitingRefunds, maxRetryPause)
	cp.slotTasks = l.newBacklog(maxSlotTasks, taskPause)
	cp.debtTasks = l.newBacklog(maxDebtTasks, taskPause)
	cp.maintenance.Go(cp.leases.maintain)
	cp.maintenance.Go(func() { l.carryOutEnds(table) })
	cp.maintenance.Go(func() { l.carryOutEnds(config.Fallback) })

	return l, nil
}

// Close stops answering other nodes, and waits until all work in the background
// has ended. The limiter still decides checks. Checks in flight wait for
// replies no longer than any check may take. The error is always nil.
func (l *Limiter) Close() error {
	cp := l.cluster
	if cp == nil {
		return nil
	}

	// The owner may already have counted a question that this node forwarded. Wait
	// for the answer: without it the asker would ask again, and the owner would
	// count the question twice. No question takes longer than checkTimeout.
	finished := cp.background.Close()
	select {
	case <-finished:
	case <-time.After(checkTimeout):
	}

	cp.stop()
	<-finished
	cp.maintenance.Wait()
	return nil
}
