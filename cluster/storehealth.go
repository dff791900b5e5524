package cluster

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/internal/wake"
)

// electionDelayFactor multiplies the election timeout of a node whose store
// fails. Such a node could still be elected, because it may be able to save its
// term, and its log is as long as the others'. It would then lead again and
// again without being able to store an entry.
const electionDelayFactor = 20

// watchedLogs is a log store that tracks whether writes fail. It also probes
// the store, because a leader that writes nothing would not notice: heartbeats
// alone keep it in the lead.
type watchedLogs struct {
	raft.LogStore
	probe       func() error
	writeFailed atomic.Bool   // the last write failed
	probeFailed atomic.Bool   // the last probe failed
	changed     chan struct{} // capacity 1: writeFailed or probeFailed has changed

	lastWritten atomic.Uint64 // index of the last entry written
	mu          sync.Mutex    // guards waiter
	waiter      chan struct{} // closed after the next entry is written; nil without waiters
}

// StoreLog stores one entry. It implements raft.LogStore.
func (w *watchedLogs) StoreLog(l *raft.Log) error { return w.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores entries and records whether that failed. It implements raft.LogStore.
func (w *watchedLogs) StoreLogs(logs []*raft.Log) error {
	err := w.setFailed(&w.writeFailed, w.LogStore.StoreLogs(logs))

	n := len(logs)
	if err == nil && n > 0 {
		w.lastWritten.Store(logs[n-1].Index)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.waiter != nil {
			close(w.waiter)
			w.waiter = nil
		}
	}
	return err
}

// writtenAfter returns a channel that is closed once an entry after index has been written.
func (w *watchedLogs) writtenAfter(index uint64) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiter == nil {
		w.waiter = make(chan struct{})
	}
	waiter := w.waiter
	// StoreLogs stores the index before it takes the lock. So a write that is
	// missed here closes the waiter.
	if w.lastWritten.Load() > index {
		close(waiter)
		w.waiter = nil
	}
	return waiter
}

// setFailed records whether an operation failed, signals if that has changed, and returns err.
func (w *watchedLogs) setFailed(failed *atomic.Bool, err error) error {
	if failed.Swap(err != nil) != (err != nil) {
		wake.Signal(w.changed)
	}
	return err
}

// isFailing reports whether the last write or the last probe failed.
func (w *watchedLogs) isFailing() bool { return w.writeFailed.Load() || w.probeFailed.Load() }

// probeStore is the loop that checks whether the store responds.
func (c *Cluster) probeStore() {
	c.loop(c.config.Timings.Probe, nil, func() (last bool) {
		_ = c.logs.setFailed(&c.logs.probeFailed, c.logs.probe()) // the store logs the error
		return false
	})
}

// deferElections is the loop that keeps this node from leading while its store
// fails or it is stuck, if another voter could lead. If it leads, it hands over
// the lead. A failing store recovers with the next successful write and probe.
// A stuck node stays stuck.
func (nt *nodeTracker) deferElections() {
	t := time.NewTicker(nt.config.Timings.Reconcile)
	defer t.Stop()

	stopped := nt.machine.stopped

	deferred := false
	for {
		select {
		case <-nt.logs.changed:
		case <-stopped:
			stopped = nil // a closed channel would wake this loop all the time
			nt.noteStuck()
		case <-t.C: // other voters may have appeared
		case <-nt.ctx.Done():
			return
		}

		fails := nt.machine.stuck.Load() != nil || nt.logs.isFailing()

		want := fails && nt.hasOtherVoter()
		if want != deferred && nt.setElectionTimeouts(want) {
			deferred = want
		}
		if fails {
			nt.transferLead(nt.ctx)
		}
	}
}

// setElectionTimeouts sets this node's election timeouts, either delayed or
// normal. It reports whether that succeeded.
func (nt *nodeTracker) setElectionTimeouts(late bool) bool {
	r := nt.raft.Load()
	rc := r.ReloadableConfig()
	rc.HeartbeatTimeout = nt.config.Timings.Heartbeat
	rc.ElectionTimeout = nt.config.Timings.Election
	if late {
		rc.HeartbeatTimeout *= electionDelayFactor
		// Raft demands that the election timeout is not the shorter one.
		rc.ElectionTimeout = max(rc.HeartbeatTimeout, nt.config.Timings.Election)
	}

	if err := r.ReloadConfig(rc); err != nil {
		nt.config.Logger.Warn("can't change the election timeout", "error", err)
		return false
	}

	level := slog.LevelInfo
	message := "this node stands for election normally again"
	if late {
		level = slog.LevelWarn
		message = "this node stands for election late: its store fails, or it is stuck"
	}

	nt.config.Logger.Log(nt.ctx, level, message, "fails", nt.logs.isFailing(), "stuck", nt.machine.stuck.Load() != nil,
		"stands_for_election_after", rc.HeartbeatTimeout.Round(time.Millisecond))
	return true
}

// noteStuck logs that this node is stuck, and revokes its authority at once.
func (nt *nodeTracker) noteStuck() {
	nt.holder.Revoke()
	nt.config.Logger.Error("this node still stores and votes, but no longer acts as an owner",
		"error", nt.machine.stuck.Load())
}
