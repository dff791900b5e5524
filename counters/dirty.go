package counters

import (
	"math/bits"

	"github.com/rlnode/rlnode/algorithms"
)

// readers is a set of readers of changes. Each reader has a byte of
// group.dirty, in which bit i stands for slot i.
type readers uint64

const (
	checkpoints readers = 1      // read by Changed
	replicas    readers = 1 << 8 // read by Replicate
	allReaders          = checkpoints | replicas
	noReaders   readers = 0

	replicasByte = 0xff << 8 // the replicas' byte of group.dirty
)

// maxDirtyList bounds each part of a dirtyList. The groups are also limited to
// about an eighth of all groups: visiting more than that in random order costs
// as much as scanning them all.
const maxDirtyList = 256

// dirtyList lists where a subtable changed since replicas last received its
// changes, to save a full scan. An entry may appear twice, or be clean again.
type dirtyList struct {
	groups     []uint32
	logs       []Key
	incomplete bool // some changes are not listed, so a full scan is needed
}

// addGroup adds group i of the n groups.
func (dl *dirtyList) addGroup(i, n int) {
	dl.incomplete = dl.incomplete || len(dl.groups) >= min(maxDirtyList, n/8+8)
	if !dl.incomplete {
		dl.groups = append(dl.groups, uint32(i))
	}
}

func (dl *dirtyList) addLog(k Key) {
	dl.incomplete = dl.incomplete || len(dl.logs) >= maxDirtyList
	if !dl.incomplete {
		dl.logs = append(dl.logs, k)
	}
}

// isDirty reports whether a slot is marked for all of by.
func (g *group) isDirty(slot int, by readers) bool { return uint64(by)<<slot&^g.dirty == 0 }

// markDirty marks a record as changed.
func (s *shard) markDirty(loc location, by readers) {
	g := loc.group()
	added := uint64(by) << loc.slot() &^ g.dirty
	if added == 0 {
		return
	}

	// A group is listed with the first of its slots that is unsent.
	if added&replicasByte != 0 && g.dirty&replicasByte == 0 {
		loc.subtable.unsentList.addGroup(loc.groupIndex(), len(loc.subtable.groups))
	}
	g.dirty |= added
	s.adjustUnread(readers(added>>loc.slot()), 1)
}

// markClean marks a record as unchanged.
func (s *shard) markClean(loc location, by readers) {
	g := loc.group()
	gone := uint64(by) << loc.slot() & g.dirty
	g.dirty &^= gone
	s.adjustUnread(readers(gone>>loc.slot()), -1)
}

// markLogDirty marks a log as changed.
func (s *shard) markLogDirty(k Key, e *logSlot, by readers) {
	added := by &^ e.dirty
	if added&replicas != 0 {
		s.subtableOf(k).unsentList.addLog(k)
	}
	e.dirty |= added
	s.adjustUnread(added, 1)
}

// markLogClean marks a log as unchanged.
func (s *shard) markLogClean(e *logSlot, by readers) {
	s.adjustUnread(by&e.dirty, -1)
	e.dirty &^= by
}

// adjustUnread adds n to the number of unread slots and logs for each reader in by.
func (s *shard) adjustUnread(by readers, n int) {
	if by&checkpoints != 0 {
		s.unsaved += n
	}
	if by&replicas != 0 {
		s.unsent += n
	}
}

// activeReaders returns the readers that must receive a reset before its record may be dropped.
func (t *Table) activeReaders() readers {
	if t.replicated.Load() {
		return allReaders
	}
	return checkpoints
}

// record returns a slot as a Record.
func (g *group) record(slot int) Record {
	return Record{
		Key: g.records[slot].key, Kind: g.kindFullnesses[slot].kind(), State: g.records[slot].state,
		Fullness: g.kindFullnesses[slot].recordFullness(), FreshAt: int64(g.freshAt[slot]),
	}
}

// record returns k's log as a Record, with a copy of its entries.
func (ls *logSlot) record(k Key) Record {
	return Record{
		Key: k, Kind: algorithms.SlidingLog, Log: ls.log.Entries(),
		Fullness: ls.kindFullness.recordFullness(), FreshAt: int64(ls.freshAt),
	}
}

// dirtySlots returns the slots marked for one reader, one bit each.
func (g *group) dirtySlots(by readers) uint64 {
	return g.dirty >> bits.TrailingZeros64(uint64(by)) & (1<<groupSlots - 1)
}
