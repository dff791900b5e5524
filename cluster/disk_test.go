package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// disk holds the data that a node's Raft has stored. It outlives the node's processes.
type disk struct {
	mu   sync.Mutex // guards the fields below
	logs map[uint64]raft.Log
	keys map[string][]byte
	meta *raft.SnapshotMeta
	data []byte
}

func newDisk() *disk { return &disk{logs: map[uint64]raft.Log{}, keys: map[string][]byte{}} }

func (d *disk) clone() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &disk{logs: maps.Clone(d.logs), keys: maps.Clone(d.keys), meta: d.meta, data: d.data}
}

// store is one process's view of a disk: raft.LogStore, StableStore and
// SnapshotStore in one. A test can make it die at a certain write: the disk
// then stays as it was before, and the process continues on its own copy until
// it is stopped.
type store struct {
	mu      sync.Mutex // guards the fields below
	disk    *disk
	writes  int64
	dieAt   int64
	onDeath func()

	hung, full atomic.Bool
}

func (s *store) Logs() raft.LogStore           { return s }
func (s *store) Stable() raft.StableStore      { return s }
func (s *store) Snapshots() raft.SnapshotStore { return s }

// died reports whether the process is dead.
func (s *store) died() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dieAt > 0 && s.writes >= s.dieAt
}

func (s *store) write(do func(*disk)) {
	s.mu.Lock()
	s.writes++
	dies := s.writes == s.dieAt
	if dies {
		s.disk = s.disk.clone()
	}
	d := s.disk
	s.mu.Unlock()
	if dies {
		s.onDeath()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	do(d)
}

func (s *store) read(do func(*disk)) {
	s.mu.Lock()
	d := s.disk
	s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	do(d)
}

func (d *disk) bounds() (low, high uint64) {
	for i := range d.logs {
		if low == 0 || i < low {
			low = i
		}
		high = max(high, i)
	}
	return low, high
}

func (s *store) FirstIndex() (i uint64, err error) {
	s.read(func(d *disk) { i, _ = d.bounds() })
	return i, nil
}

func (s *store) LastIndex() (i uint64, err error) {
	s.read(func(d *disk) { _, i = d.bounds() })
	return i, nil
}

func (s *store) GetLog(i uint64, to *raft.Log) (err error) {
	s.read(func(d *disk) {
		l, ok := d.logs[i]
		*to = l
		if !ok {
			err = raft.ErrLogNotFound
		}
	})
	return err
}

func (s *store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs fails after two seconds while the disk hangs, as persist's does.
func (s *store) StoreLogs(logs []*raft.Log) error {
	if s.hung.Load() {
		time.Sleep(2 * time.Second)
		return errors.New("the disk hangs")
	}
	if s.full.Load() {
		return syscall.ENOSPC
	}
	s.write(func(d *disk) {
		for _, l := range logs {
			c := *l
			c.Data = bytes.Clone(l.Data)
			d.logs[l.Index] = c
		}
	})
	return nil
}

// Probe fails in the same way as StoreLogs.
func (s *store) Probe() error {
	if s.hung.Load() {
		time.Sleep(2 * time.Second)
		return errors.New("the disk hangs")
	}
	return nil
}

func (s *store) DeleteRange(low, high uint64) error {
	s.write(func(d *disk) {
		for i := range d.logs {
			if low <= i && i <= high {
				delete(d.logs, i)
			}
		}
	})
	return nil
}

func (s *store) Set(k, v []byte) error {
	s.write(func(d *disk) { d.keys[string(k)] = bytes.Clone(v) })
	return nil
}

func (s *store) Get(k []byte) (v []byte, err error) {
	s.read(func(d *disk) {
		var ok bool
		v, ok = d.keys[string(k)]
		if !ok {
			err = errors.New("not found")
		}
	})
	return v, err
}

func (s *store) SetUint64(k []byte, n uint64) error {
	return s.Set(k, binary.BigEndian.AppendUint64(nil, n))
}

func (s *store) GetUint64(k []byte) (uint64, error) {
	v, err := s.Get(k)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), nil
}

// sink is a snapshot being written; it counts once it is closed.
type sink struct {
	bytes.Buffer
	store *store
	meta  raft.SnapshotMeta
	over  bool
}

func (s *store) Create(
	v raft.SnapshotVersion, index, term uint64, conf raft.Configuration, at uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	return &sink{store: s, meta: raft.SnapshotMeta{
		Version: v, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term,
		Configuration: conf, ConfigurationIndex: at,
	}}, nil
}

func (s *store) List() (list []*raft.SnapshotMeta, err error) {
	s.read(func(d *disk) {
		if d.meta != nil {
			meta := *d.meta
			list = append(list, &meta)
		}
	})
	return list, nil
}

func (s *store) Open(id string) (meta *raft.SnapshotMeta, r io.ReadCloser, err error) {
	err = errors.New("no such snapshot")
	s.read(func(d *disk) {
		if d.meta != nil && d.meta.ID == id {
			m := *d.meta
			meta, r, err = &m, io.NopCloser(bytes.NewReader(d.data)), nil
		}
	})
	return meta, r, err
}

func (s *sink) ID() string { return s.meta.ID }

func (s *sink) Cancel() error {
	s.over = true
	return nil
}

func (s *sink) Close() error {
	if s.over {
		return nil
	}
	s.over = true
	meta, data := s.meta, bytes.Clone(s.Bytes())
	meta.Size = int64(len(data))
	s.store.write(func(d *disk) { d.meta, d.data = &meta, data })
	return nil
}
