package counters

import "sync"

// shard holds the counters of a range of Key.Hi, under one lock.
//
// Usually they are all in one table of records. But anyone who can predict where subjects land can put millions into one
// shard, and moving that many at once would stall the shard's other subjects. So a table that is much larger than those of
// other shards is split in two by the next bit of Key.Lo, and each half grows separately. At most Table.maxSubtableSlots records are
// ever moved or scanned at once under the lock.
type shard struct {
	// A Take of an existing counter only touches the first of these cache lines.

	mu        sync.Mutex // guards everything below
	subtables *subtables // nil if all counters are in one
	single    subtable

	table      *Table
	room       int    // counters that may be added before drawing on the table's budget
	unsaved    int    // changed slots and logs, for checkpoints
	unsent     int    // changed slots and logs, for replicas
	searchTurn uint64 // selects the part where the next search for room for another shard begins

	evicted, expired int64
	refused          [numClasses]int64

	inline int // inline counters and logs; at most Table.maxInline

	_ [48]byte // gives each lock its own cache lines
}

// subtables holds the tables of records of a large shard.
type subtables struct {
	prefixBits int         // how many leading bits of Key.Lo select a table
	list       []*subtable // indexed by these bits; a table that was split less often appears several times
}

func (s *subtables) at(lo uint64) *subtable { return s.list[lo>>(64-s.prefixBits)] }

// maxPrefixBits bounds splitting: keys chosen to share more bits than this stay in large tables.
const maxPrefixBits = 12

// subtableOf returns the table that k belongs to.
func (s *shard) subtableOf(k Key) *subtable {
	if s.subtables == nil {
		return &s.single
	}
	return s.subtables.at(k.Lo)
}

// find looks k up among the records.
func (s *shard) find(k Key) place { return s.subtableOf(k).find(k) }

// log returns k's log, nil if it has none.
func (s *shard) log(k Key) *logSlot { return s.subtableOf(k).logs[k] }

// subtableAt returns the table that holds the keys from lo on, and where the next table's keys begin; zero if there is none.
func (s *shard) subtableAt(lo uint64) (sub *subtable, next uint64) {
	if s.subtables == nil {
		return &s.single, 0
	}
	sub = s.subtables.at(lo)
	return sub, sub.lowestLo + 1<<(64-sub.prefixBits)
}

// forEach calls f for each table of records in turn. It holds the shard during each call, but not between calls. A table that
// is split meanwhile is visited in halves, or was visited as a whole.
func (s *shard) forEach(f func(sub *subtable)) {
	for lo, more := uint64(0), true; more; more = lo != 0 {
		s.mu.Lock()
		var sub *subtable
		sub, lo = s.subtableAt(lo)
		f(sub)
		s.mu.Unlock()
	}
}

// forEachHeld calls f for each table of records. The shard must be held.
func (s *shard) forEachHeld(f func(sub *subtable)) {
	for lo, more := uint64(0), true; more; more = lo != 0 {
		var sub *subtable
		sub, lo = s.subtableAt(lo)
		f(sub)
	}
}

// insert puts k, which is not in the shard, into a slot. The caller has made room.
func (s *shard) insert(k Key) place {
	sub := s.subtableOf(k)
	for sub.spare == 0 {
		s.grow(sub)
		sub = s.subtableOf(k)
	}
	s.room--
	s.inline += int(k.class())
	return sub.insert(k)
}

// remove frees a slot.
func (s *shard) remove(p place) {
	s.markClean(p, allReaders)
	s.inline -= int(p.group().inline >> p.slot() & 1)
	p.subtable.freeSlot(p)
	s.room++
}

// grow lays r out anew with room for at least one more record. It grows r by a seventh. If enough slots are only marked
// deleted, it keeps the size instead, and if the table would become too large, it splits it in two. At the bound on
// counters, fewer deleted slots are enough, to keep the table small.
func (s *shard) grow(sub *subtable) {
	n := len(sub.groups)
	enough := sub.live / 8
	if s.room <= 1 && s.table.budget.Load() <= 0 {
		enough = sub.live / 16
	}
	if sub.dead <= enough {
		n += max(1, n/7)
	}
	if n*groupSlots > s.table.maxSubtableSlots && sub.prefixBits < maxPrefixBits {
		s.split(sub)
		return
	}
	sub.rehash(n)
}

// growFor grows the shard once for n counters that are about to be inserted, where inserting them would move it several times.
// A shard that is split, or is to be, grows by itself.
func (s *shard) growFor(n int) {
	sub := &s.single
	if s.subtables != nil || n <= sub.spare {
		return
	}
	groups := max(len(sub.groups)+len(sub.groups)/7, (sub.live+n)/(groupSlots-1)+1) // at most seven eighths full
	if groups*groupSlots <= s.table.maxSubtableSlots {
		sub.rehash(groups)
	}
}

// split moves the halves of r into tables of their own.
func (s *shard) split(sub *subtable) {
	lower := &subtable{prefixBits: sub.prefixBits + 1, lowestLo: sub.lowestLo}
	upper := &subtable{prefixBits: sub.prefixBits + 1, lowestLo: sub.lowestLo + 1<<(63-sub.prefixBits)}
	half := func(k Key) *subtable {
		if k.Lo >= upper.lowestLo {
			return upper
		}
		return lower
	}
	var counts [2]int
	for i := range sub.groups {
		for slot, tag := range sub.groups[i].tags {
			if tag >= tagUsed {
				counts[sub.groups[i].records[slot].key.Lo>>(63-sub.prefixBits)&1]++
			}
		}
	}
	for i, h := range []*subtable{lower, upper} {
		h.allocate(counts[i]*8/49 + 1) // room for a seventh more before it must grow
		h.unsentList.incomplete = sub.unsentList.incomplete || len(sub.unsentList.groups)+len(sub.unsentList.logs) > 0
	}
	for i := range sub.groups {
		g := &sub.groups[i]
		for slot, tag := range g.tags {
			if tag >= tagUsed {
				half(g.records[slot].key).copySlot(g, slot)
			}
		}
	}
	for k, e := range sub.logs {
		half(k).putLog(k, e)
	}
	sub.releaseAll()
	s.replaceSplit(lower, upper)
}

// replaceSplit replaces a table by the two it was split into.
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
		at := sub.lowestLo >> (64 - s.subtables.prefixBits)
		for i := range uint64(1) << (s.subtables.prefixBits - sub.prefixBits) {
			s.subtables.list[at+i] = sub
		}
	}
}

// join moves all records back into one table, if that would be a small one. The shard must be held.
func (s *shard) join() {
	if s.subtables == nil {
		return
	}
	live, lost := 0, false
	s.forEachHeld(func(sub *subtable) {
		live += sub.count()
		lost = lost || sub.unsentList.incomplete || len(sub.unsentList.groups)+len(sub.unsentList.logs) > 0
	})
	if live > s.table.maxSubtableSlots/4 {
		return
	}
	one := &s.single
	one.allocate(live*8/49 + 1)
	one.unsentList.incomplete = lost
	s.forEachHeld(func(sub *subtable) {
		for i := range sub.groups {
			for slot, tag := range sub.groups[i].tags {
				if tag >= tagUsed {
					one.copySlot(&sub.groups[i], slot)
				}
			}
		}
		for k, e := range sub.logs {
			one.putLog(k, e)
		}
		sub.releaseAll()
	})
	s.subtables = nil
	one.shrink()
}
