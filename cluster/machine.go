package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
)

// machine is Raft's state machine: an immutable [agreement.State] behind a
// pointer. The machine never waits: the state feed prepares rules and informs
// the rest of the node.
//
// A machine that meets data that this build can't read is stuck for the life of
// the process: it applies no further entries and takes no snapshot. Raft still
// stores entries and votes, so that the cluster doesn't lose a voter, and
// another build finds everything in the log.
type machine struct {
	build      agreement.Build
	state      atomic.Pointer[agreement.State]
	entryBytes atomic.Int64 // size of the entries applied since the last snapshot
	onChange   func()       // called after each change of state; must not block
	// rulesIndex is the index of the last entry that changed the rules or the
	// agreed regions, or a later index. It is set before the state with the change.
	rulesIndex atomic.Uint64
	// reignMark describes the last reign entry that this process applied as an
	// entry, or is nil. Entries known only from a snapshot don't count.
	reignMark atomic.Pointer[reignStart]
	// lastPrepared is the last change of rules or regions that this node proposed
	// as the leader.
	lastPrepared atomic.Pointer[agreement.Prepared]

	stuck   atomic.Pointer[Stuck] // set once
	stopped chan struct{}         // closed when stuck has been set
}

// reignStart is the reign that a leader's first entry began, and the Raft term of that entry.
type reignStart struct{ reign, term uint64 }

// ErrStuck means that this node no longer applies entries. An error that wraps it is a [*Stuck].
var ErrStuck = errors.New("this node no longer applies what the cluster agrees on")

// Stuck is the reason why a node no longer applies entries.
type Stuck struct {
	Index uint64   // of the entry that the node can't apply; 0 if the problem is not an entry
	Hash  [32]byte // SHA-256 of that entry
	Err   error
}

// Error names the entry, if there is one, and the reason.
func (s *Stuck) Error() string {
	if s.Index == 0 {
		return fmt.Sprintf("%v: %v", ErrStuck, s.Err)
	}
	return fmt.Sprintf("%v: entry %d (hash %x) can't be applied: %v", ErrStuck, s.Index, s.Hash, s.Err)
}

// Unwrap returns ErrStuck and the reason.
func (s *Stuck) Unwrap() []error { return []error{ErrStuck, s.Err} }

func newMachine(build agreement.Build, wake func()) *machine {
	m := &machine{build: build, onChange: wake, stopped: make(chan struct{})}
	m.state.Store(agreement.New())
	return m
}

// stop makes the machine stuck and returns the reason: s, or an earlier one.
func (m *machine) stop(s *Stuck) *Stuck {
	if !m.stuck.CompareAndSwap(nil, s) {
		return m.stuck.Load()
	}
	close(m.stopped)
	m.onChange()
	return s
}

// Apply applies one entry. Raft calls it in order. It returns an agreement.Result or a *Stuck.
func (m *machine) Apply(l *raft.Log) any {
	if stuck := m.stuck.Load(); stuck != nil {
		return stuck
	}

	before := m.state.Load()
	next, result := m.build.Apply(before, l.Index, l.Data, m.lastPrepared.Load())
	if errors.As(result.Err, new(*agreement.Unreadable)) {
		return m.stop(&Stuck{Index: l.Index, Hash: sha256.Sum256(l.Data), Err: result.Err})
	}

	// These are set before the state, so that a reader that sees the new rules
	// finds an index that includes them.
	if next.History != before.History || next.Regions != before.Regions {
		m.rulesIndex.Store(next.Index)
	}
	if next.Reign != before.Reign {
		m.reignMark.Store(&reignStart{next.Reign, l.Term})
	}

	m.state.Store(next)
	m.entryBytes.Add(int64(len(l.Data)))
	m.onChange()
	return result
}

// Snapshot captures the current state; Persist encodes it later. A stuck
// machine takes none, because Raft would then drop the entries that it has not
// applied.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if stuck := m.stuck.Load(); stuck != nil {
		return nil, stuck
	}
	m.entryBytes.Store(0)
	return snapshot{&m.build, m.state.Load()}, nil
}

// maxSnapshot bounds the snapshots that Restore reads, in bytes: fifty
// documents of 8 MiB, with room to spare.
const maxSnapshot = 1 << 30

// Restore replaces the state with a snapshot's. An intact snapshot that this
// build can't read makes the machine stuck, but returns no error, so that Raft
// keeps the snapshot for another build.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()

	b, err := io.ReadAll(io.LimitReader(r, maxSnapshot+1))
	if err != nil {
		return fmt.Errorf("read a snapshot: %w", err)
	}
	if len(b) > maxSnapshot {
		return fmt.Errorf("read a snapshot: it is larger than %d bytes", maxSnapshot)
	}
	if m.stuck.Load() != nil {
		return nil
	}

	s, err := m.build.Parse(b)
	if errors.As(err, new(*agreement.Unreadable)) {
		m.stop(&Stuck{Err: fmt.Errorf("a snapshot can't be read: %w", err)})
		return nil
	}
	if err != nil {
		return fmt.Errorf("parse a snapshot: %w", err)
	}

	m.rulesIndex.Store(s.Index)
	m.state.Store(s)
	m.entryBytes.Store(0)
	m.onChange()

	return nil
}

// snapshot is a state being written to disk.
type snapshot struct {
	build *agreement.Build
	state *agreement.State
}

// Persist encodes the state; it runs concurrently with Apply.
func (snap snapshot) Persist(sink raft.SnapshotSink) error {
	b, err := snap.build.AppendSnapshot(nil, snap.state)
	if err == nil {
		_, err = sink.Write(b)
	}
	if err != nil {
		return fmt.Errorf("write a snapshot: %w", err) // Raft cancels the sink
	}
	return nil // Raft closes the sink and checks the error
}

// Release does nothing: the garbage collector frees the state.
func (snap snapshot) Release() {}
