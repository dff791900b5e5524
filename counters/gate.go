package counters

import (
	"errors"
	"sync/atomic"

	"github.com/rlnode/rlnode/ring"
)

// Errors of changes to single counters.
var (
	// ErrShut means that the gate of the counter's partition is shut. Nothing was
	// changed. The partition's owner may still make the change.
	ErrShut = errors.New("the partition is shut")
	// ErrNoRoom means that the table has no room for another counter.
	ErrNoRoom = errors.New("there is no room for another counter")
)

// gates has one bit per partition, set while its gate is shut. A decision reads
// the bits while it holds the shards of its keys. So a goroutine that sets a
// bit, and then locks and unlocks each shard of the partition, knows that no
// earlier decision is still running.
type gates [ring.Partitions / 64]atomic.Uint64

func (gs *gates) isShut(p int) bool { return gs[p/64].Load()&(1<<(p%64)) != 0 }

// anyShut reports whether the partition of any of ops is shut.
func (gs *gates) anyShut(ops []Op) bool {
	for i := range ops {
		if gs.isShut(ops[i].Key.Partition()) {
			return true
		}
	}
	return false
}

// ShutAll shuts the gates of all partitions, with the same guarantee as Shut.
func (t *Table) ShutAll() {
	for i := range t.gates {
		t.gates[i].Store(^uint64(0))
	}

	// All gates are shut by now, so each shard is waited for only once.
	for i := range t.shards {
		t.shards[i].waitForHolders()
	}
	for p := range ring.Partitions {
		t.notes.Wait(p)
	}
}

// Open opens the gate of p: from now on this table decides its counters, which
// are of the given lineage. The lineage must not be 0. What was taken from
// counters of another lineage does not come back to these.
func (t *Table) Open(p int, lineage uint64) {
	// The lineage is set before the gate opens. If the gate opened first, what was
	// taken from the counters of the old lineage could come back to these.
	t.lineages[p].Store(lineage)
	t.gates[p/64].And(^(uint64(1) << (p % 64)))
}

// Lineage returns the lineage with which p was last opened.
func (t *Table) Lineage(p int) uint64 { return t.lineages[p].Load() }

// Shut shuts the gate of p. Once it has returned, no decision for p is running,
// and none starts until Open. Until then, only what ignores the gate changes
// p's counters and notes: TakeUngated, ForceCapped, Restore, Put, Merge, Drop,
// MarkSlotsLost, the methods of Notes, evictions and Sweep. Reads drop what has
// ended, such as slots.
func (t *Table) Shut(p int) {
	t.gates[p/64].Or(1 << (p % 64))
	shards := t.shardsOf(p)
	for i := range shards {
		shards[i].waitForHolders()
	}
	t.notes.Wait(p)
}

// IsOpen reports whether the gate of p is open.
func (t *Table) IsOpen(p int) bool { return !t.gates.isShut(p) }

// AllOpen reports whether the gates of all partitions of ops are open.
func (t *Table) AllOpen(ops []Op) bool { return !t.gates.anyShut(ops) }

// waitForHolders returns once all earlier holders have unlocked the shard.
func (s *shard) waitForHolders() {
	s.mu.Lock()
	defer s.mu.Unlock()
}
