package counters

import "math/bits"

// evictionSample is how many groups an eviction compares before it takes the best victim among them.
const evictionSample = 6

// rescan is how long a table of records, or all of them, that holds only refused counters is not searched again: nanoseconds.
const rescan = 100_000_000

// victim is a candidate for eviction; lower ranks go first.
type victim struct {
	place
	key  Key
	rank uint64 // how far from fresh: 0 is expired
	some bool
}

// offer compares one more counter. How far it is from fresh is its level, as of its last change, times the magnitude
// of the time it has left: a bucket that is full again in a second comes before a month's quota half used, and that
// after one hardly used.
func (v *victim) offer(p place, k Key, m mark, freshAt uint32, second int64) {
	rank := uint64(0)
	if left := int64(freshAt) - second; left > 0 {
		rank = (1+uint64(m.level()))*uint64(bits.Len64(uint64(left)))<<32 | uint64(freshAt)
	}
	if !v.some || rank < v.rank {
		*v = victim{place: p, key: k, rank: rank, some: true}
	}
}

// makeRoom sees to it that s has room for one more counter, k, beside those reserved for others of ops. While the table
// has any, the shard takes of it. At the table's bound one counter is evicted, the closest to fresh of a sample of those
// beside k; where only such are left that are being decided as ops, or refused, another shard has to give room. It reports
// false if that has none either. The shard is held.
func (t *Table) makeRoom(s *shard, k Key, steady int64, reserved int, ops []Op) bool {
	if s.room > reserved || t.draw(s) {
		return true
	}
	return t.evict(s, s.of(k), steady, ops) || t.seek(s, steady, ops)
}

// draw takes room for s from the budget.
func (t *Table) draw(s *shard) bool {
	for {
		free := t.budget.Load()
		n := min(free, int64(t.step))
		if n < 1 {
			return false
		}
		if t.budget.CompareAndSwap(free, free-n) {
			s.room += int(n)
			return true
		}
	}
}

// evict drops one counter of r, of the shard s, which is held.
func (t *Table) evict(s *shard, r *records, steady int64, ops []Op) bool {
	if steady < r.fullUntil {
		return false
	}
	v := r.pick(steady, ops, t.unread())
	if !v.some {
		r.fullUntil = steady + rescan
		if r.freeAt <= r.fullUntil/1e9 {
			r.fullUntil = r.freeAt * 1e9
		}
		return false
	}
	if v.rank == 0 {
		s.expired++
	} else {
		s.evicted++
	}
	if v.log != nil {
		t.dropLog(s, v.key)
	} else {
		s.remove(v.place)
	}
	return true
}

// maxSearches is how many tables of other shards without a victim one check goes through; the next one goes on from there.
const maxSearches = 2

// seek takes room for s, which is held, from another shard: what that has to spare, or that of a counter evicted there.
// Nobody waits for a shard here: that could be for ever. Where all of the table has none, that is not asked again for a
// moment.
func (t *Table) seek(s *shard, steady int64, ops []Op) bool {
	if steady < t.fullUntil.Load() {
		return false
	}
	searches, missed := 0, false
	for range t.shards {
		o := &t.shards[t.seeker.Add(1)%uint64(len(t.shards))]
		if o == s {
			continue
		}
		if !o.mu.TryLock() {
			missed = true
			continue
		}
		given, searched := t.yield(o, steady, ops)
		o.mu.Unlock()
		if given > 0 {
			s.room += given
			return true
		}
		if searched {
			if searches++; searches >= maxSearches {
				return false
			}
		}
	}
	if !missed {
		t.fullUntil.Store(steady + rescan)
	}
	return false
}

// yield is how much room o, which is held, gives to another shard, and whether it looked for it in vain.
func (t *Table) yield(o *shard, steady int64, ops []Op) (given int, searched bool) {
	if o.room > 0 {
		given = min(o.room, t.step)
		o.room -= given
		return given, false
	}
	r := &o.one
	if o.many != nil {
		o.turn++
		r = o.many.list[o.turn%uint64(len(o.many.list))]
	}
	if steady < r.fullUntil {
		return 0, false
	}
	if !t.evict(o, r, steady, ops) {
		return 0, true
	}
	o.room--
	return 1, false
}

// pick searches a sample of the records, and all of them if the sample has no victim.
func (r *records) pick(steady int64, ops []Op, unread readers) victim {
	second := steady / 1e9
	var v victim
	r.freeAt = 1<<63 - 1
	for seen := 0; seen < len(r.groups) && !(v.some && seen >= evictionSample); seen++ {
		if r.hand++; r.hand >= len(r.groups) {
			r.hand = 0
		}
		g := &r.groups[r.hand]
		for slot, tag := range g.tags {
			if tag < tagUsed {
				continue
			}
			k := g.records[slot].key
			if g.marks[slot].level() == levelRefused && int64(g.freshAt[slot]) > second {
				r.freeAt = min(r.freeAt, int64(g.freshAt[slot]))
			} else if !among(k, ops) && !g.reset(slot, unread) {
				v.offer(r.at(r.hand, slot), k, g.marks[slot], g.freshAt[slot], second)
			}
		}
	}
	looked := 0
	for k, e := range r.logs { // in random order: a sample
		if looked++; v.some && looked > evictionSample*groupSlots {
			break
		}
		if e.mark.level() == levelRefused && int64(e.freshAt) > second {
			r.freeAt = min(r.freeAt, int64(e.freshAt))
		} else if !among(k, ops) && !(e.dirty&unread != 0 && e.log.Fresh()) {
			v.offer(place{index: -1, log: e}, k, e.mark, e.freshAt, second)
		}
	}
	return v
}

// reset reports whether a slot notes a reset that one of the readers has yet to be told. Only people reset counters,
// so there are few of them.
func (g *group) reset(slot int, unread readers) bool {
	return g.dirty>>slot&uint64(unread) != 0 && g.records[slot].state.Fresh()
}

func among(k Key, ops []Op) bool {
	for i := range ops {
		if ops[i].Key == k {
			return true
		}
	}
	return false
}
