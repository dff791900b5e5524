package notes

import (
	"maps"
	"math"
	"slices"

	"github.com/rlnode/rlnode/ring"
)

// Copy returns all notes of p.
func (s *Store) Copy(p int) []Note {
	// replicated is set before the notes are read, so every change from now on is
	// listed for replicas.
	s.replicated.Store(true)
	part := s.partitions[p].Load()
	if part == nil {
		return nil
	}

	part.mu.Lock()
	defer part.mu.Unlock()
	list := make([]Note, 0, len(part.notes))
	for k, e := range part.notes {
		list = append(list, e.note(k))
	}
	return list
}

// Changes appends to list the notes of p that changed since reader last
// received changes, and marks them as received. A note that was removed has
// only its key. If wanted is not nil, notes of the kinds that it rejects stay
// for a later call.
func (s *Store) Changes(p int, reader Readers, wanted func(Kind) bool, list []Note) []Note {
	if reader == Replicas {
		s.replicated.Store(true)
	}
	part := s.partitions[p].Load()
	if part == nil {
		return list
	}

	part.mu.Lock()
	defer part.mu.Unlock()

	changed := &part.unsaved
	if reader == Replicas {
		changed = &part.unsent
	} else if !part.hasCheckpoints {
		// Nothing was listed before this first call, so all notes are listed now. Those
		// from disk are not marked as changed, and are left out below.
		part.hasCheckpoints = true
		part.unsaved = slices.Collect(maps.Keys(part.notes))
	}

	keys := *changed
	*changed = nil
	for _, k := range keys {
		e, found := part.notes[k]
		switch {
		case wanted != nil && !wanted(k.Kind):
			*changed = append(*changed, k)
		case !found && reader == Replicas:
			list = append(list, Note{Key: k})
		case e.dirty&reader != 0:
			e.dirty &^= reader
			e.isOnDisk = e.isOnDisk || reader == Checkpoints
			part.notes[k] = e
			list = append(list, e.note(k))
		}
	}

	if reader == Checkpoints && (wanted == nil || wanted(Slot)) {
		for _, k := range part.released {
			if _, found := part.notes[k]; !found {
				list = append(list, Note{Key: k})
			}
		}
		part.released = nil
	}
	return list
}

// MarkChanged marks a note as changed again for a reader, even if it was removed.
func (s *Store) MarkChanged(k Key, reader Readers) {
	lp := s.Lock(k.Partition(), 0)
	defer lp.Unlock()

	e, found := lp.part.notes[k]
	switch {
	case found:
		lp.mark(k, e, reader)
	case reader == Replicas:
		lp.part.unsent = append(lp.part.unsent, k)
	case k.Kind == Slot:
		lp.part.released = append(lp.part.released, k)
	}
}

// MarkAllChanged marks all notes of p as changed for checkpoints, and returns how many there are.
func (s *Store) MarkAllChanged(p int) int {
	if s.partitions[p].Load() == nil {
		return 0
	}
	lp := s.Lock(p, 0)
	defer lp.Unlock()
	for k, e := range lp.part.notes {
		lp.mark(k, e, Checkpoints)
	}
	return len(lp.part.notes)
}

// Replace sets a note of the standby's copy to n, the owner's. It removes the
// note if n was removed or has expired.
func (s *Store) Replace(n *Note, steady int64) {
	lp := s.Lock(n.Partition(), steady)
	defer lp.Unlock()

	if n.UntilSecond <= lp.second {
		lp.Remove(n.Key)
		return
	}

	if stored, found := lp.Get(n.Key); found && n.Kind == Resets {
		// If this node owned the partition before, it may have forgotten resets that
		// the owner still knows.
		merged := *n
		merged.mergeForgotten(&stored)
		n = &merged
	}

	lp.put(n, Checkpoints)
}

// Merge combines n with the store's own copy when neither is known to be newer.
// It keeps the one that yieldsTo prefers, for as long as either would be kept.
func (s *Store) Merge(n *Note, steady int64) {
	lp := s.Lock(n.Partition(), steady)
	defer lp.Unlock()
	if n.UntilSecond <= lp.second {
		return
	}

	merged := *n
	if stored, found := lp.Get(n.Key); found {
		if n.yieldsTo(&stored) {
			merged = stored
		}
		merged.UntilSecond = max(n.UntilSecond, stored.UntilSecond)
		if n.Kind == Resets {
			merged.mergeForgotten(n)
			merged.mergeForgotten(&stored)
		}
	}
	lp.Put(&merged)
}

// Restore puts back a note read from disk, and reports whether it did. It skips
// an expired note, and one whose key is in use.
func (s *Store) Restore(n *Note, steady int64) bool {
	lp := s.Lock(n.Partition(), steady)
	defer lp.Unlock()
	if _, found := lp.part.notes[n.Key]; found || n.UntilSecond <= lp.second {
		return false
	}
	lp.put(n, 0)
	e := lp.part.notes[n.Key]
	e.isOnDisk = true
	lp.part.notes[n.Key] = e
	return true
}

// Drop removes all notes of p. It reports whether there were any.
func (s *Store) Drop(p int) bool {
	part := s.partitions[p].Load()
	if part == nil {
		return false
	}

	lp := s.Lock(p, 0)
	defer lp.Unlock()
	hadNotes := len(part.notes) > 0
	for k := range part.notes {
		lp.forget(k)
	}
	part.unsaved = nil
	part.unsent = nil
	part.released = nil
	part.shrink()
	part.resets.Store(0)
	return hadNotes
}

// forget removes a note without telling any reader.
func (lp LockedPartition) forget(k Key) {
	e := lp.part.notes[k]
	lp.count(e.note(k), -1)
	delete(lp.part.notes, k)
}

// Sweep drops expired notes from the next fraction (0…1) of the partitions, and
// the answers of settlements that are older than AnswerRetention. While
// reservations take more than half of their room, Sweep also drops those that
// are over but were not settled, and shortens the life of rates that only late
// settlements need. If this node owns a partition, Sweep also ends its slots,
// and counts them as expired.
func (s *Store) Sweep(steady int64, fraction float64, owned func(p int) bool) {
	for range int(fraction * ring.Partitions) {
		p := int(uint64(s.sweepNext.Add(1)) % ring.Partitions)
		if s.partitions[p].Load() != nil {
			s.sweep(p, steady, owned(p))
		}
	}
	s.compactEvictable(steady)
}

func (s *Store) sweep(p int, steady int64, owned bool) {
	lp := s.Lock(p, steady)
	defer lp.Unlock()

	if owned {
		lp.endSlotsOf(math.MaxInt, steady)
	}

	for k, e := range lp.part.notes {
		switch {
		// Readers receive nothing: copies and records on disk expire by themselves.
		case int64(e.until) <= lp.second:
			lp.forget(k)
		case k.Kind == Reservation:
			lp.sweepReservation(e.note(k), steady)
		case k.Kind == Rate:
			lp.sweepRate(e.note(k), steady)
		}
	}

	lp.part.shrink()
}

// sweepReservation drops the answer of a reservation once it is old, or the
// whole reservation if others need its room. An old answer is dropped without
// telling the standby, which sweeps its copy by itself.
func (lp LockedPartition) sweepReservation(n Note, steady int64) {
	isOver := n.Status() == Ended || n.IsDue(steady) && n.Body == ""
	switch {
	case isOver && lp.isCrowdedFor(&n):
		lp.Remove(n.Key)
	case n.Status() != Open && n.Body != "" && steady-n.At > AnswerRetention:
		n.Body = ""
		lp.put(&n, 0)
	}
}

// sweepRate shortens the life of a rate that only late settlements need, if
// others need its room. What those settlements would put back is then lost.
func (lp LockedPartition) sweepRate(n Note, steady int64) {
	shorter := lp.second + RateRetention
	isLate := n.MaxRate() > 0 && n.UntilSecond-LateSettling <= lp.second && n.UntilSecond > shorter
	if !isLate || !lp.isCrowdedFor(&n) {
		return
	}
	n.UntilSecond = shorter
	lp.Put(&n)
	lp.markRatesForgotten(n.Subject, steady)
}

// isCrowdedFor reports whether n, which is kept for late settlements, must give
// way: more than half of the room is taken, and n's rule has more than a little
// of it.
func (lp LockedPartition) isCrowdedFor(n *Note) bool {
	lp.store.mu.Lock()
	defer lp.store.mu.Unlock()
	b := &lp.store.budgets[n.Kind.purpose()]
	return b.used > b.capacity/2 && b.byRule[n.Group] > b.capacity/littleDivisor
}

// smallPartition is the number of notes up to which a partition's memory is not worth freeing.
const smallPartition = 64

// shrink frees the memory that a flood of notes has left, once the map is
// nearly empty. The caller must hold p.
func (p *partition) shrink() {
	if p.peak > smallPartition && p.peak > 4*len(p.notes) {
		smaller := make(map[Key]entry, len(p.notes))
		maps.Copy(smaller, p.notes)
		p.notes = smaller
		p.peak = len(smaller)
	}
}

// compactEvictable compacts the lists of what this node made, once about half
// of the notes listed are gone or were made anew since. So the cost for each
// note stays small.
func (s *Store) compactEvictable(steady int64) {
	for i := range s.budgets {
		b := &s.budgets[i]
		s.mu.Lock()
		isDue := int64(b.evictable.count+b.evictableInline.count) > 2*b.used/Overhead
		s.mu.Unlock()

		if isDue {
			s.compactList(&b.evictable, steady)
			s.compactList(&b.evictableInline, steady)
		}
	}
}

// compactList drops from m what is gone or was made anew since.
func (s *Store) compactList(m *evictableNotes, steady int64) {
	s.mu.Lock()
	old := m.byGroup
	*m = evictableNotes{byGroup: make(map[uint32][]evictableNote), isPartial: true}
	s.mu.Unlock()

	for group, list := range old {
		// The store is unlocked here, because isUnchanged locks a partition, which must come
		// first.
		var kept []evictableNote
		for _, one := range list {
			if s.isUnchanged(one, steady) {
				kept = append(kept, one)
			}
		}
		if len(kept) == 0 {
			continue
		}

		s.mu.Lock()
		m.byGroup[group] = append(kept, m.byGroup[group]...)
		m.count += len(kept)
		s.mu.Unlock()
	}

	s.mu.Lock()
	m.isPartial = false
	s.mu.Unlock()
}

// isUnchanged reports whether a note is stored as it was made then.
func (s *Store) isUnchanged(one evictableNote, steady int64) bool {
	lp := s.Lock(one.Partition(), steady)
	defer lp.Unlock()
	n, found := lp.Get(one.Key)
	return found && n.At == one.at
}

// Stats describes a store.
type Stats struct {
	Open             int64 // reservations whose end was not carried out, and which are not settled
	Reservations     int64 // bytes that reservations take
	MaxReservations  int64
	Answers          int64 // bytes that answers to checks with a request id take
	WritesAndRetries int64 // bytes that answers to writes and to nodes take
	RefusedReserves  int64 // since the start
	Slots            int64 // bytes that slots take
	RefusedSlots     int64 // since the start
	RefusedWrites    int64 // since the start
}

// Stats returns the current figures.
func (s *Store) Stats() (st Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Open = s.budgets[reservations].open
	st.Reservations = s.budgets[reservations].used
	st.MaxReservations = s.budgets[reservations].capacity
	st.Answers = s.budgets[answers].used
	st.WritesAndRetries = s.budgets[writes].used + s.budgets[retries].used
	st.RefusedReserves = s.budgets[reservations].refused.Load()
	st.Slots = s.budgets[slots].used
	st.RefusedSlots = s.budgets[slots].refused.Load()
	st.RefusedWrites = s.budgets[writes].refused.Load()
	return st
}
