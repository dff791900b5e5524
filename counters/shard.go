package counters

import "sync"

// shard is the counters of a range of Key.Hi, under one lock.
//
// Mostly they are in one table of records. Whoever knows where subjects lie can put millions into one shard; to lay out so
// many anew would keep the others there waiting. So a table that is much larger than those of other shards is split in two
// by the next bit of Key.Lo, and each half grows by itself: under the lock no more than Table.maxPart records are ever
// moved, or gone through, at once.
type shard struct {
	// A Take of a counter that is there looks at the first of these cache lines only.

	mu   sync.Mutex // guards everything below
	many *parts     // nil: all are in one
	one  records

	table   *Table
	room    int    // counters that may be added before the table's budget is asked
	unsaved int    // slots and logs changed, for checkpoints
	unsent  int    // and for replicas
	turn    uint64 // the part at which the next search for room for another shard begins

	evicted, expired, refused int64

	_ [16]byte // cache lines of its own for each lock
}

// parts are the tables of records of a large shard.
type parts struct {
	bits int        // how many bits of Key.Lo pick one
	list []*records // by these bits, each table as often as it has to stand there
}

func (p *parts) at(lo uint64) *records { return p.list[lo>>(64-p.bits)] }

// maxBits bounds the splitting: keys that were chosen by many of their bits are left with large tables.
const maxBits = 12

// of is the table that k belongs to.
func (s *shard) of(k Key) *records {
	if s.many == nil {
		return &s.one
	}
	return s.many.at(k.Lo)
}

// find looks k up among the records.
func (s *shard) find(k Key) place { return s.of(k).find(k) }

// log is k's log, nil if it has none.
func (s *shard) log(k Key) *logSlot { return s.of(k).logs[k] }

// part is the table that has the keys from lo on, and where those of the next one begin; 0: there is none.
func (s *shard) part(lo uint64) (r *records, next uint64) {
	if s.many == nil {
		return &s.one, 0
	}
	r = s.many.at(lo)
	return r, r.first + 1<<(64-r.bits)
}

// visit calls f for each table of records, one after another; the shard is held during each call, and not between them.
// What is split meanwhile is visited in its halves, or was visited as a whole.
func (s *shard) visit(f func(r *records)) {
	for lo, more := uint64(0), true; more; more = lo != 0 {
		s.mu.Lock()
		var r *records
		r, lo = s.part(lo)
		f(r)
		s.mu.Unlock()
	}
}

// all calls f for each table of records. The shard is held.
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
	return r.insert(k)
}

// remove frees a slot.
func (s *shard) remove(p place) {
	s.clean(p, everyone)
	p.in.free(p)
	s.room++
}

// grow lays r out anew with room for at least one more record: by a seventh, or, when enough slots are merely deleted, at
// its size, or in two halves. At the bound of counters fewer deleted ones are enough, to keep it small.
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

// split puts the halves of r into tables of their own.
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
		h.begin(counts[i]*8/49 + 1) // a seventh more than would be full
		h.trail.lost = r.trail.lost || len(r.trail.groups)+len(r.trail.logs) > 0
	}
	for i := range r.groups {
		g := &r.groups[i]
		for slot, tag := range g.tags {
			if tag >= tagUsed {
				half(g.records[slot].key).take(g, slot)
			}
		}
	}
	for k, e := range r.logs {
		half(k).putLog(k, e)
	}
	r.end()
	s.enlist(lower, upper)
}

// enlist puts two tables into the place of the one that they were.
func (s *shard) enlist(lower, upper *records) {
	var old parts
	if s.many != nil {
		old = *s.many
	}
	if lower.bits > old.bits {
		s.many = &parts{bits: lower.bits, list: make([]*records, 1<<lower.bits)}
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

// join puts all records into one table again when that would be a small one. The shard is held.
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
	one.begin(live*8/49 + 1)
	one.trail.lost = lost
	s.all(func(r *records) {
		for i := range r.groups {
			for slot, tag := range r.groups[i].tags {
				if tag >= tagUsed {
					one.take(&r.groups[i], slot)
				}
			}
		}
		for k, e := range r.logs {
			one.putLog(k, e)
		}
		r.end()
	})
	s.many = nil
	one.shrink()
}
