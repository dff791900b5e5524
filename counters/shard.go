package counters

import "sync"

// shard holds the counters of a range of Key.Hi, under one lock.
//
// Usually they are all in one table of records. But anyone who can predict where subjects land can put millions into one
// shard, and moving that many at once would stall the shard's other subjects. So a table that is much larger than those of
// other shards is split in two by the next bit of Key.Lo, and each half grows separately. At most Table.maxPart records are
// ever moved or scanned at once under the lock.
type shard struct {
	// A Take of an existing counter only touches the first of these cache lines.

	mu   sync.Mutex // guards everything below
	many *subtables // nil if all counters are in one
	one  records

	table   *Table
	room    int    // counters that may be added before drawing on the table's budget
	unsaved int    // changed slots and logs, for checkpoints
	unsent  int    // changed slots and logs, for replicas
	turn    uint64 // selects the part where the next search for room for another shard begins

	evicted, expired int64
	refused          [classes]int64

	inline int // inline counters and logs; at most Table.maxInline

	_ [48]byte // gives each lock its own cache lines
}

// subtables holds the tables of records of a large shard.
type subtables struct {
	bits int        // how many leading bits of Key.Lo select a table
	list []*records // indexed by these bits; a table that was split less often appears several times
}

func (s *subtables) at(lo uint64) *records { return s.list[lo>>(64-s.bits)] }

// maxBits bounds splitting: keys chosen to share more bits than this stay in large tables.
const maxBits = 12

// of returns the table that k belongs to.
func (s *shard) of(k Key) *records {
	if s.many == nil {
		return &s.one
	}
	return s.many.at(k.Lo)
}

// find looks k up among the records.
func (s *shard) find(k Key) place { return s.of(k).find(k) }

// log returns k's log, nil if it has none.
func (s *shard) log(k Key) *logSlot { return s.of(k).logs[k] }

// part returns the table that holds the keys from lo on, and where the next table's keys begin; zero if there is none.
func (s *shard) part(lo uint64) (r *records, next uint64) {
	if s.many == nil {
		return &s.one, 0
	}
	r = s.many.at(lo)
	return r, r.first + 1<<(64-r.bits)
}

// visit calls f for each table of records in turn. It holds the shard during each call, but not between calls. A table that
// is split meanwhile is visited in halves, or was visited as a whole.
func (s *shard) visit(f func(r *records)) {
	for lo, more := uint64(0), true; more; more = lo != 0 {
		s.mu.Lock()
		var r *records
		r, lo = s.part(lo)
		f(r)
		s.mu.Unlock()
	}
}

// all calls f for each table of records. The shard must be held.
func (s *shard) all(f func(r *records)) {
	for lo, more := uint64(0), true; more; more = lo != 0 {
		var r *records
		r, lo = s.part(lo)
		f(r)
	}
}

// insert puts k, which is not in the shard, into a slot. The caller has made room.
func (s *shard) insert(k Key) place {
	r := s.of(k)
	for r.spare == 0 {
		s.grow(r)
		r = s.of(k)
	}
	s.room--
	s.inline += int(k.class())
	return r.insert(k)
}

// remove frees a slot.
func (s *shard) remove(p place) {
	s.markClean(p, everyone)
	s.inline -= int(p.home().inline >> p.slot() & 1)
	p.in.free(p)
	s.room++
}

// grow lays r out anew with room for at least one more record. It grows r by a seventh. If enough slots are only marked
// deleted, it keeps the size instead, and if the table would become too large, it splits it in two. At the bound on
// counters, fewer deleted slots are enough, to keep the table small.
func (s *shard) grow(r *records) {
	n := len(r.groups)
	enough := r.live / 8
	if s.room <= 1 && s.table.budget.Load() <= 0 {
		enough = r.live / 16
	}
	if r.dead <= enough {
		n += max(1, n/7)
	}
	if n*groupSlots > s.table.maxPart && r.bits < maxBits {
		s.split(r)
		return
	}
	r.layOut(n)
}

// expect grows the shard once for n counters that are about to be inserted, where inserting them would move it several times.
// A shard that is split, or is to be, grows by itself.
func (s *shard) expect(n int) {
	r := &s.one
	if s.many != nil || n <= r.spare {
		return
	}
	groups := max(len(r.groups)+len(r.groups)/7, (r.live+n)/(groupSlots-1)+1) // at most seven eighths full
	if groups*groupSlots <= s.table.maxPart {
		r.layOut(groups)
	}
}

// split moves the halves of r into tables of their own.
func (s *shard) split(r *records) {
	lower := &records{bits: r.bits + 1, first: r.first}
	upper := &records{bits: r.bits + 1, first: r.first + 1<<(63-r.bits)}
	half := func(k Key) *records {
		if k.Lo >= upper.first {
			return upper
		}
		return lower
	}
	var counts [2]int
	for i := range r.groups {
		for slot, tag := range r.groups[i].tags {
			if tag >= tagUsed {
				counts[r.groups[i].records[slot].key.Lo>>(63-r.bits)&1]++
			}
		}
	}
	for i, h := range []*records{lower, upper} {
		h.allocate(counts[i]*8/49 + 1) // room for a seventh more before it must grow
		h.trail.lost = r.trail.lost || len(r.trail.groups)+len(r.trail.logs) > 0
	}
	for i := range r.groups {
		g := &r.groups[i]
		for slot, tag := range g.tags {
			if tag >= tagUsed {
				half(g.records[slot].key).copySlot(g, slot)
			}
		}
	}
	for k, e := range r.logs {
		half(k).putLog(k, e)
	}
	r.releaseAll()
	s.replaceSplit(lower, upper)
}

// replaceSplit replaces a table by the two it was split into.
func (s *shard) replaceSplit(lower, upper *records) {
	var old subtables
	if s.many != nil {
		old = *s.many
	}
	if lower.bits > old.bits {
		s.many = &subtables{bits: lower.bits, list: make([]*records, 1<<lower.bits)}
		for i := range old.list {
			s.many.list[2*i], s.many.list[2*i+1] = old.list[i], old.list[i]
		}
	}
	for _, r := range []*records{lower, upper} {
		at := r.first >> (64 - s.many.bits)
		for i := range uint64(1) << (s.many.bits - r.bits) {
			s.many.list[at+i] = r
		}
	}
}

// join moves all records back into one table, if that would be a small one. The shard must be held.
func (s *shard) join() {
	if s.many == nil {
		return
	}
	live, lost := 0, false
	s.all(func(r *records) {
		live += r.count()
		lost = lost || r.trail.lost || len(r.trail.groups)+len(r.trail.logs) > 0
	})
	if live > s.table.maxPart/4 {
		return
	}
	one := &s.one
	one.allocate(live*8/49 + 1)
	one.trail.lost = lost
	s.all(func(r *records) {
		for i := range r.groups {
			for slot, tag := range r.groups[i].tags {
				if tag >= tagUsed {
					one.copySlot(&r.groups[i], slot)
				}
			}
		}
		for k, e := range r.logs {
			one.putLog(k, e)
		}
		r.releaseAll()
	})
	s.many = nil
	one.shrink()
}
