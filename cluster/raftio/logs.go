package raftio

import (
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/internal/wake"
)

// LogStore is a log store that tracks whether writes fail. It can also probe the
// store: a leader that writes nothing would not notice a failing store, because
// heartbeats alone keep it in the lead.
type LogStore struct {
	raft.LogStore
	probe       func() error
	writeFailed atomic.Bool   // the last write failed
	probeFailed atomic.Bool   // the last probe failed
	changed     chan struct{} // capacity 1: writeFailed or probeFailed has changed

	lastWritten atomic.Uint64 // index of the last entry written
	mu          sync.Mutex    // guards waiter
	waiter      chan struct{} // closed after the next entry is written; nil without waiters
}

// NewLogStore watches a log store. probe writes a test record.
func NewLogStore(store raft.LogStore, probe func() error) *LogStore {
	return &LogStore{LogStore: store, probe: probe, changed: make(chan struct{}, 1)}
}

// StoreLog stores one entry. It implements raft.LogStore.
func (w *LogStore) StoreLog(l *raft.Log) error { return w.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores entries and records whether that failed. It implements raft.LogStore.
func (w *LogStore) StoreLogs(logs []*raft.Log) error {
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

// WrittenAfter returns a channel that is closed at the next write of entries,
// or at once if an entry after index has been written already.
func (w *LogStore) WrittenAfter(index uint64) <-chan struct{} {
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

// setFailed records whether err is nil, signals a change, and returns err.
func (w *LogStore) setFailed(failed *atomic.Bool, err error) error {
	if failed.Swap(err != nil) != (err != nil) {
		wake.Signal(w.changed)
	}
	return err
}

// Probe writes a test record to check whether the store works.
func (w *LogStore) Probe() {
	_ = w.setFailed(&w.probeFailed, w.probe()) // the store logs the error
}

// Changed returns a channel that has a value if IsFailing may have changed.
func (w *LogStore) Changed() <-chan struct{} { return w.changed }

// IsFailing reports whether the last write or the last probe failed.
func (w *LogStore) IsFailing() bool { return w.writeFailed.Load() || w.probeFailed.Load() }
