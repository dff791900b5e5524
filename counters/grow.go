package counters

import "github.com/rlnode/rlnode/counters/notes"

// insert puts k, which must not be in the shard, into a slot. The caller has made room.
func (s *shard) insert(k Key) location {
	sub := s.subtableOf(k)
	for sub.growthLeft == 0 {
		s.grow(sub)
		sub = s.subtableOf(k)
	}
	s.room--
	s.inline += int(k.class())
	return sub.insert(k)
}

// remove frees the slot at loc.
func (s *shard) remove(loc location) {
	s.markClean(loc, allReaders)
	s.inline -= int(loc.group().inline >> loc.slot() & 1)
	loc.subtable.freeEntry(loc)
	s.room++
}

// grow ensures that sub, or the subtables that replace it, have more spare
// slots. It rehashes sub into a seventh more groups, or into as many as before
// if enough slots are only marked deleted: rehashing makes those empty. If the
// subtable would become too large, grow splits it instead. When the table is
// full, fewer deleted slots are enough, to keep the table small.
func (s *shard) grow(sub *subtable) {
	n := len(sub.groups)
	enough := sub.live / 8
	if s.room <= 1 && s.table.budget.Load() <= 0 {
		enough = sub.live / 16
	}
	if sub.dead <= enough {
		n = oneSeventhMore(n)
	}

	if n*groupSize > s.table.maxSubtableSlots && sub.prefixBits < maxPrefixBits {
		s.splitSubtable(sub)
		return
	}

	sub.rehash(n)
}

// growFor grows the shard once for n counters that are about to be inserted.
// Otherwise it would be rehashed again and again as they come. growFor does
// nothing for a shard that is split or would have to be.
func (s *shard) growFor(n int) {
	sub := &s.single
	if s.subtables != nil || n <= sub.growthLeft {
		return
	}

	// The subtable becomes at most seven eighths full, and at least a seventh
	// larger than before.
	groups := max(len(sub.groups)+len(sub.groups)/7, (sub.live+n)/(groupSize-1)+1)
	if groups*groupSize <= s.table.maxSubtableSlots {
		sub.rehash(groups)
	}
}

// groupsFor returns how many groups hold n counters so that the subtable must
// grow only after a seventh more have come.
func groupsFor(n int) int { return n*8/(7*(groupSize-1)) + 1 }

// maxPrefixBits bounds how often a subtable is split. Keys that were chosen to
// share more leading bits stay in one large subtable.
const maxPrefixBits = 12

// splitSubtable moves the halves of sub into subtables of their own.
func (s *shard) splitSubtable(sub *subtable) {
	lower := &subtable{shard: s, prefixBits: sub.prefixBits + 1, lowestCounter: sub.lowestCounter}
	upper := &subtable{shard: s, prefixBits: sub.prefixBits + 1,
		lowestCounter: sub.lowestCounter + 1<<(63-sub.prefixBits)}
	half := func(k Key) *subtable {
		if k.Counter >= upper.lowestCounter {
			return upper
		}
		return lower
	}

	var counts [2]int
	for loc := range sub.locations() {
		counts[loc.key().Counter>>(63-sub.prefixBits)&1]++
	}

	for i, h := range []*subtable{lower, upper} {
		h.allocate(groupsFor(counts[i]))

		// The list names groups of sub, which the halves don't have. So the next reader
		// scans the halves in full.
		h.unsentList.incomplete = sub.unsentList.hasChanges()
	}

	for loc := range sub.locations() {
		half(loc.key()).copySlot(loc.group(), loc.slot())
	}

	for k, e := range sub.logs {
		half(k).putLog(k, e)
	}

	sub.releaseAll()
	s.replaceSplit(lower, upper)
}

// replaceSplit replaces a subtable by its two halves.
func (s *shard) replaceSplit(lower, upper *subtable) {
	var old subtables
	if s.subtables != nil {
		old = *s.subtables
	}

	if lower.prefixBits > old.prefixBits {
		s.subtables = &subtables{prefixBits: lower.prefixBits, list: make([]*subtable, 1<<lower.prefixBits)}
		for i := range old.list {
			s.subtables.list[2*i], s.subtables.list[2*i+1] = old.list[i], old.list[i]
		}
	}

	for _, sub := range []*subtable{lower, upper} {
		at := sub.lowestCounter >> (64 - s.subtables.prefixBits)
		for i := range uint64(1) << (s.subtables.prefixBits - sub.prefixBits) {
			s.subtables.list[at+i] = sub
		}
	}
}

// joinSubtables moves all counters back into a single subtable, if it would be
// small. The caller must hold the shard.
func (s *shard) joinSubtables() {
	if s.subtables == nil {
		return
	}

	total := 0
	incomplete := false
	s.forEachLocked(func(sub *subtable) {
		total += sub.count()
		incomplete = incomplete || sub.unsentList.hasChanges()
	})

	// The bound is far below the size at which a subtable is split. So a shard does
	// not split and join in turn.
	if total > s.table.maxSubtableSlots/4 {
		return
	}

	first := &s.single
	first.allocate(groupsFor(total))
	first.unsentList.incomplete = incomplete
	s.forEachLocked(func(sub *subtable) {
		for loc := range sub.locations() {
			first.copySlot(loc.group(), loc.slot())
		}

		for k, e := range sub.logs {
			first.putLog(k, e)
		}

		sub.releaseAll()
	})
	s.subtables = nil

	// The count included logs, which need no groups.
	first.shrink()
}

// rehash moves all records to n groups, rounded up to the size of a piece of memory.
func (sub *subtable) rehash(n int) {
	old := sub.groups

	// The list of groups names groups before the move, so it is no longer valid.
	// The list of logs has keys, which stay valid.
	sub.unsentList.incomplete = sub.unsentList.incomplete || len(sub.unsentList.groups) > 0
	sub.unsentList.groups = sub.unsentList.groups[:0]
	sub.allocate(n)
	for i := range old {
		for slot, tag := range old[i].tags {
			if tag >= tagUsed {
				sub.copySlot(&old[i], slot)
			}
		}
	}
	sub.memory().release(sub.shard, old)
}

// memory returns the memory that sub's groups come from.
func (sub *subtable) memory() *memory { return &sub.shard.table.memory }

// allocate gives sub n empty groups, rounded up to the size of a piece of
// memory. The caller moves the records of the old groups.
func (sub *subtable) allocate(n int) {
	sub.setGroups(sub.memory().allocate(sub, n))
	sub.live = 0
	sub.dead = 0
	sub.growthLeft = len(sub.groups) * groupSize * 7 / 8
}

// copySlot copies a slot of g into sub, which must have a spare slot.
func (sub *subtable) copySlot(g *group, slot int) {
	loc := sub.insert(g.entries[slot].key)
	to := loc.group()
	to.kindFullnesses[loc.slot()] = g.kindFullnesses[slot]
	to.expiresAt[loc.slot()] = g.expiresAt[slot]
	to.dirty |= bitsOf(loc.slot(), notes.Readers(g.dirty>>slot)&allReaders)
	to.entries[loc.slot()] = g.entries[slot]
}

// releaseAll releases the memory and invalidates all locations.
func (sub *subtable) releaseAll() {
	sub.memory().release(sub.shard, sub.groups)
	sub.setGroups(nil)
	sub.live = 0
	sub.growthLeft = 0
	sub.dead = 0
	sub.logs = nil
	sub.unsentList = dirtyList{}
}

// shrink releases memory when less than a third of it is used.
func (sub *subtable) shrink() {
	if sub.live == 0 {
		sub.memory().release(sub.shard, sub.groups)
		sub.setGroups(nil)
		sub.growthLeft = 0
		sub.dead = 0
		sub.unsentList.groups = nil
		return
	}

	// The subtable shrinks until it is two thirds full, so that it neither grows
	// nor shrinks again soon. A subtable that takes less than a page is on the
	// heap, and not worth the move.
	n := len(sub.groups)
	if n*groupBytes > sub.memory().page && sub.live*3 < n*groupSize {
		sub.rehash(sub.live*3/2/groupSize + 1)
	}
}
