package cluster

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/agreement"
)

// machine is Raft's state machine: an immutable [agreement.State] behind a pointer. It never waits: telling others and
// compiling rules is the follower's work.
type machine struct {
	state atomic.Pointer[agreement.State]
	bytes atomic.Int64 // of entries applied since the last snapshot was taken
	wake  func()       // must not block
	// ruled is the index of the last entry that changed the rules or what is agreed about regions, or a later one. It is
	// set before the state that has the change.
	ruled atomic.Uint64
	// prepared is the write of rules that this node has proposed last, as the leader.
	prepared atomic.Pointer[agreement.Prepared]
}

func newMachine(wake func()) *machine {
	m := &machine{wake: wake}
	m.state.Store(agreement.New())
	return m
}

// Apply is called by Raft, for one entry at a time, in order.
func (m *machine) Apply(l *raft.Log) any {
	before := m.state.Load()
	next, result := before.ApplyPrepared(l.Index, l.Data, m.prepared.Load())
	if next.History != before.History || next.Regions != before.Regions {
		m.ruled.Store(next.Index)
	}
	m.state.Store(next)
	m.bytes.Add(int64(len(l.Data)))
	m.wake()
	return result
}

// Snapshot takes the pointer; nothing is encoded here.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	m.bytes.Store(0)
	return snapshot{m.state.Load()}, nil
}

// maxSnapshot bounds what is read of one: fifty documents of 8 MiB, and some.
const maxSnapshot = 1 << 30

// Restore takes a snapshot's state in place of the present one.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxSnapshot+1))
	if err != nil {
		return fmt.Errorf("read a snapshot: %w", err)
	}
	if len(b) > maxSnapshot {
		return fmt.Errorf("read a snapshot: it is larger than %d bytes", maxSnapshot)
	}
	s, err := agreement.Parse(b)
	if err != nil {
		return fmt.Errorf("parse a snapshot: %w", err)
	}
	m.ruled.Store(s.Index)
	m.state.Store(s)
	m.bytes.Store(0)
	m.wake()
	return nil
}

// snapshot is a state on its way to disk.
type snapshot struct{ state *agreement.State }

// Persist encodes; it runs beside Apply.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	b, err := s.state.AppendBinary(nil)
	if err == nil {
		_, err = sink.Write(b)
	}
	if err != nil {
		return fmt.Errorf("write a snapshot: %w", err) // Raft cancels the sink
	}
	return nil // Raft closes it, and looks at what that says
}

// Release does nothing: the garbage collector does.
func (s snapshot) Release() {}
