package counters

import "math/bits"

// evictionSample is how many groups an eviction compares before it takes the best victim among them.
const evictionSample = 6

// rescan is how long a shard that holds only refused counters is not searched again: nanoseconds.
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

// makeRoom evicts one counter, the closest to fresh of a sample, unless the shard has room. It spares the
// counters of ops, which are being decided, and those being refused. It reports false if only such are left.
func (t *Table) makeRoom(s *shard, steady int64, reserved int, ops []Op) bool {
	if s.live+len(s.logs)+reserved < s.max {
		return true
	}
	if steady < s.fullUntil {
		return false
	}
	v := s.pick(steady, ops, t.unread())
	if !v.some {
		s.fullUntil = steady + rescan
		if s.freeAt <= s.fullUntil/1e9 {
			s.fullUntil = s.freeAt * 1e9
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

// pick searches a sample of the shard, and all of it if the sample has no victim.
func (s *shard) pick(steady int64, ops []Op, unread readers) victim {
	second := steady / 1e9
	var v victim
	s.freeAt = 1<<63 - 1
	for seen := 0; seen < len(s.groups) && !(v.some && seen >= evictionSample); seen++ {
		if s.hand++; s.hand >= len(s.groups) {
			s.hand = 0
		}
		g := &s.groups[s.hand]
		for slot, tag := range g.tags {
			if tag < tagUsed {
				continue
			}
			k := g.records[slot].key
			if g.marks[slot].level() == levelRefused && int64(g.freshAt[slot]) > second {
				s.freeAt = min(s.freeAt, int64(g.freshAt[slot]))
			} else if !among(k, ops) && !g.reset(slot, unread) {
				v.offer(place{group: s.hand, slot: slot, moves: s.moves}, k, g.marks[slot], g.freshAt[slot], second)
			}
		}
	}
	looked := 0
	for k, e := range s.logs { // in random order: a sample
		if looked++; v.some && looked > evictionSample*groupSlots {
			break
		}
		if e.mark.level() == levelRefused && int64(e.freshAt) > second {
			s.freeAt = min(s.freeAt, int64(e.freshAt))
		} else if !among(k, ops) && !(e.dirty&unread != 0 && e.log.Fresh()) {
			v.offer(place{slot: -1, log: e}, k, e.mark, e.freshAt, second)
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
