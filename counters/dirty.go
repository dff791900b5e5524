package counters

import (
	"math/bits"

	"github.com/rlnode/rlnode/algorithms"
)

// readers is a set of readers of changes. Each has a byte of group.dirty, in which bit i stands for slot i.
type readers uint64

const (
	checkpoints readers = 1      // read by Changed
	replicas    readers = 1 << 8 // read by Replicate
	everyone            = checkpoints | replicas
	nobody      readers = 0

	replicasByte = 0xff << 8 // the replicas' byte of group.dirty
)

// maxTrail bounds each list of a trail. A list of groups is also bounded to about an eighth of all groups: visiting more
// than that at random costs as much as scanning them all.
const maxTrail = 256

// trail lists where a table of records changed since replicas were last told, to save a full scan. An entry may appear
// twice, or be clean again.
type trail struct {
	groups []uint32
	logs   []Key
	lost   bool // the lists are incomplete
}

// addGroup adds group i of n.
func (t *trail) addGroup(i, n int) {
	if t.lost = t.lost || len(t.groups) >= min(maxTrail, n/8+8); !t.lost {
		t.groups = append(t.groups, uint32(i))
	}
}

func (t *trail) addLog(k Key) {
	if t.lost = t.lost || len(t.logs) >= maxTrail; !t.lost {
		t.logs = append(t.logs, k)
	}
}

// markDirty marks a record as changed.
func (s *shard) markDirty(p place, by readers) {
	g := p.home()
	added := uint64(by) << p.slot() &^ g.dirty
	if added == 0 {
		return
	}
	if added&replicasByte != 0 && g.dirty&replicasByte == 0 {
		p.in.trail.addGroup(p.group(), len(p.in.groups))
	}
	g.dirty |= added
	s.count(readers(added>>p.slot()), 1)
}

// markClean marks a record as unchanged.
func (s *shard) markClean(p place, by readers) {
	g := p.home()
	gone := uint64(by) << p.slot() & g.dirty
	g.dirty &^= gone
	s.count(readers(gone>>p.slot()), -1)
}

// markLogDirty marks a log as changed.
func (s *shard) markLogDirty(k Key, e *logSlot, by readers) {
	added := by &^ e.dirty
	if added&replicas != 0 {
		s.of(k).trail.addLog(k)
	}
	e.dirty |= added
	s.count(added, 1)
}

// markLogClean marks a log as unchanged.
func (s *shard) markLogClean(e *logSlot, by readers) {
	s.count(by&e.dirty, -1)
	e.dirty &^= by
}

// count adds n to the number of changed slots and logs for each reader in by.
func (s *shard) count(by readers, n int) {
	if by&checkpoints != 0 {
		s.unsaved += n
	}
	if by&replicas != 0 {
		s.unsent += n
	}
}

// unread returns the readers that must be told of a reset before its record may be dropped.
func (t *Table) unread() readers {
	if t.replicated.Load() {
		return everyone
	}
	return checkpoints
}

// record returns a slot as a Record.
func (g *group) record(slot int) Record {
	return Record{
		Key: g.records[slot].key, Kind: g.marks[slot].kind(), State: g.records[slot].state,
		Level: g.marks[slot].publicLevel(), FreshAt: int64(g.freshAt[slot]),
	}
}

// record returns k's log as a Record, with a copy of its entries.
func (l *logSlot) record(k Key) Record {
	return Record{
		Key: k, Kind: algorithms.SlidingLog, Log: l.log.Entries(),
		Level: l.mark.publicLevel(), FreshAt: int64(l.freshAt),
	}
}

// dirtySlots returns the slots marked for one reader, one bit each.
func (g *group) dirtySlots(by readers) uint64 {
	return g.dirty >> bits.TrailingZeros64(uint64(by)) & (1<<groupSlots - 1)
}
