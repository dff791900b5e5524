package node

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/counters"
)

// testDisk is a store that outlives the process but not the test.
type testDisk struct {
	*raft.InmemStore
	snapshots *raft.InmemSnapshotStore
	table     []counters.Record // the last checkpoint

	probes atomic.Int64 // how often the node has probed it

	mu   sync.Mutex    // guards the fields below
	hung chan struct{} // closed when the disk answers again; nil if it does not hang
	full bool
}

func newTestDisk() *testDisk {
	return &testDisk{InmemStore: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore()}
}

// hang makes the disk stop answering until mend.
func (m *testDisk) hang() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hung = make(chan struct{})
}

// fill makes the disk full until mend.
func (m *testDisk) fill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = true
}

// mend undoes hang and fill.
func (m *testDisk) mend() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = false
	if m.hung != nil {
		close(m.hung)
		m.hung = nil
	}
}

func (m *testDisk) faults() (hung <-chan struct{}, full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hung, m.full
}

// diskHandle is one process's access to a testDisk. A broken disk behaves as it
// does through package persist: writes to the log fail after a timeout, and
// later ones at once. A term is saved even if the disk is full, but waits while
// the disk hangs.
type diskHandle struct {
	*testDisk
	ended   chan struct{} // closed when the process has ended: writes still waiting for the disk are dropped
	mu      sync.Mutex    // guards pending
	pending <-chan struct{}
}

func (m *testDisk) open() *diskHandle { return &diskHandle{testDisk: m, ended: make(chan struct{})} }

func (h *diskHandle) Logs() raft.LogStore           { return handleLogs{h.InmemStore, h} }
func (h *diskHandle) Stable() raft.StableStore      { return handleStable{h.InmemStore, h} }
func (h *diskHandle) Snapshots() raft.SnapshotStore { return handleSnapshots{h.snapshots, h} }
func (h *diskHandle) Close() error                  { return nil }

func (h *diskHandle) Probe() error {
	h.probes.Add(1)
	return h.logWrite()
}

var errDiskHangs = errors.New("disk does not respond")

// logWrite returns nil if the log may be written.
func (h *diskHandle) logWrite() error {
	hung, full := h.faults()
	switch {
	case full:
		return syscall.ENOSPC
	case hung == nil:
		return nil
	}
	h.mu.Lock()
	again := h.pending == hung
	h.pending = hung
	h.mu.Unlock()
	if again { // the first write is still waiting
		return errDiskHangs
	}
	select {
	case <-hung:
		return nil
	case <-h.ended:
	case <-time.After(2 * time.Second):
	}
	return errDiskHangs
}

// await waits while the disk hangs. It returns false if the process ends first.
func (h *diskHandle) await() bool {
	hung, _ := h.faults()
	if hung == nil {
		return true
	}
	select {
	case <-hung:
		return true
	case <-h.ended:
		return false
	}
}

type handleLogs struct {
	raft.LogStore
	h *diskHandle
}

func (l handleLogs) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

func (l handleLogs) StoreLogs(list []*raft.Log) error {
	if err := l.h.logWrite(); err != nil {
		return err
	}
	return l.LogStore.StoreLogs(list)
}

func (l handleLogs) DeleteRange(low, high uint64) error {
	if err := l.h.logWrite(); err != nil {
		return err
	}
	return l.LogStore.DeleteRange(low, high)
}

type handleStable struct {
	raft.StableStore
	h *diskHandle
}

func (s handleStable) Set(key, value []byte) error {
	if !s.h.await() {
		return nil // an error would make Raft panic, and the process has ended
	}
	return s.StableStore.Set(key, value)
}

func (s handleStable) SetUint64(key []byte, n uint64) error {
	if !s.h.await() {
		return nil
	}
	return s.StableStore.SetUint64(key, n)
}

type handleSnapshots struct {
	raft.SnapshotStore
	h *diskHandle
}

func (s handleSnapshots) Create(
	v raft.SnapshotVersion, index, term uint64, conf raft.Configuration, at uint64, t raft.Transport,
) (raft.SnapshotSink, error) {
	if !s.h.await() {
		return nil, io.ErrClosedPipe
	}
	if _, full := s.h.faults(); full {
		return nil, syscall.ENOSPC
	}
	return s.SnapshotStore.Create(v, index, term, conf, at, t)
}
