package counters

import (
	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/counters/notes"
)

// store puts a counter's new state into its slot, and marks it as changed.
func (s *shard) store(loc location, l *algorithms.Limit, state algorithms.State, fullness uint8, expiresAt uint32) {
	loc.group().set(loc.slot(), l.Kind, state, fullness, expiresAt)
	s.markDirty(loc, allReaders)
}

func (s *shard) markDirty(loc location, readers notes.Readers) {
	g := loc.group()
	added := bitsOf(loc.slot(), readers) &^ g.dirty
	if added == 0 {
		return
	}

	// The group is listed only once, with the first of its slots that is unsent.
	if added&replicasByte != 0 && g.dirty&replicasByte == 0 {
		loc.subtable.unsentList.addGroup(loc.groupIndex(), len(loc.subtable.groups))
	}
	g.dirty |= added
	s.adjustUnread(notes.Readers(added>>loc.slot()), 1)
}

func (s *shard) markClean(loc location, readers notes.Readers) {
	g := loc.group()
	gone := bitsOf(loc.slot(), readers) & g.dirty
	g.dirty &^= gone
	s.adjustUnread(notes.Readers(gone>>loc.slot()), -1)
}

func (s *shard) markLogDirty(k Key, e *storedLog, readers notes.Readers) {
	added := readers &^ e.dirty
	if added&notes.Replicas != 0 {
		s.subtableOf(k).unsentList.addLog(k)
	}
	e.dirty |= added
	s.adjustUnread(added, 1)
}

func (s *shard) markLogClean(e *storedLog, readers notes.Readers) {
	s.adjustUnread(readers&e.dirty, -1)
	e.dirty &^= readers
}

// adjustUnread adds n to the number of unread slots and logs for each of readers.
func (s *shard) adjustUnread(readers notes.Readers, n int) {
	if readers&notes.Checkpoints != 0 {
		s.unsaved += n
	}
	if readers&notes.Replicas != 0 {
		s.unsent += n
	}
}

// activeReaders returns the readers that must receive a reset before its record may be dropped.
func (t *Table) activeReaders() notes.Readers {
	if t.replicated.Load() {
		return allReaders
	}
	return notes.Checkpoints
}
