package counters

import (
	"sync"

	"github.com/rlnode/rlnode/algorithms"
)

// shard holds the counters of a range of Key.Subject, under one lock.
//
// Usually a single subtable holds all of them. But anyone who can predict where
// subjects land can put millions into one shard, and rehashing that many at
// once would stall the shard's other subjects. So a subtable that outgrows
// Table.maxSubtableSlots is split in two by the next bit of Key.Counter, and
// each half grows on its own. So the lock is never held for moving or scanning
// more slots than that.
type shard struct {
	// A Take of an existing counter touches only the first of these cache lines, up
	// to the groups of single.

	mu          sync.Mutex                // guards everything below
	latest      algorithms.Instant        // the latest readings of this process's clocks; see advance
	aheadClocks map[int]algorithms.Course // partitions that follow a clock that is ahead; see Follow
	subtables   *subtables                // nil if single holds all counters
	single      subtable

	table      *Table
	hint       *groupsHint // where the groups of single are
	room       int         // counters that may be added before the shard must draw on the table's budget
	unsaved    int         // changed slots and logs, for checkpoints
	unsent     int         // changed slots and logs, for replicas
	searchTurn uint64      // selects the subtable that was last searched on behalf of another shard

	evicted, expired int64
	refused          [numClasses]int64

	inline int // inline counters, logs included; at most Table.maxInline

	_ [72]byte // gives each lock its own cache lines
}

// subtables are the parts of a large shard.
type subtables struct {
	prefixBits int         // number of leading bits of Key.Counter that select a subtable
	list       []*subtable // indexed by these bits; a subtable that was split fewer times appears more than once
}

func (subs *subtables) at(counter uint64) *subtable { return subs.list[counter>>(64-subs.prefixBits)] }

// maxPrefixBits bounds splitting: if keys are chosen to share more leading
// bits, their subtable stays large.
const maxPrefixBits = 12

// subtableOf returns the subtable that k belongs to.
func (s *shard) subtableOf(k Key) *subtable {
	if s.subtables == nil {
		return &s.single
	}
	return s.subtables.at(k.Counter)
}

// find looks k up. It does not find logs.
func (s *shard) find(k Key) location { return s.subtableOf(k).find(k) }

// log returns k's log, or nil if it has none.
func (s *shard) log(k Key) *logSlot { return s.subtableOf(k).logs[k] }

// subtableAt returns the subtable that holds the keys from counter on, and the
// Key.Counter at which the next subtable begins; 0 if there is none.
func (s *shard) subtableAt(counter uint64) (sub *subtable, next uint64) {
	if s.subtables == nil {
		return &s.single, 0
	}
	sub = s.subtables.at(counter)
	return sub, sub.lowestCounter + 1<<(64-sub.prefixBits)
}

// forEach calls f for each subtable in turn. It holds the shard during each
// call, but not between calls. If a subtable is split in the meantime, forEach
// visits its halves, unless it has already visited the whole.
func (s *shard) forEach(f func(sub *subtable)) {
	for counter, more := uint64(0), true; more; more = counter != 0 {
		s.mu.Lock()
		var sub *subtable
		sub, counter = s.subtableAt(counter)
		f(sub)
		s.mu.Unlock()
	}
}

// forEachLocked calls f for each subtable. The caller must hold the shard.
func (s *shard) forEachLocked(f func(sub *subtable)) {
	for counter, more := uint64(0), true; more; more = counter != 0 {
		var sub *subtable
		sub, counter = s.subtableAt(counter)
		f(sub)
	}
}

// insert puts k, which must not be in the shard, into a slot. The caller has made room.
func (s *shard) insert(k Key) location {
	sub := s.subtableOf(k)
	for sub.spare == 0 {
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
	loc.subtable.freeSlot(loc)
	s.room++
}

// grow ensures that sub, or the subtables that replace it, have more spare
// slots. It rehashes sub with a seventh more groups, or with the same number if
// enough slots are only marked deleted. If the subtable would become too large,
// grow splits it instead. At the bound on counters, fewer deleted slots
// suffice, to keep the table small.
func (s *shard) grow(sub *subtable) {
	n := len(sub.groups)
	enough := sub.live / 8
	if s.room <= 1 && s.table.budget.Load() <= 0 {
		enough = sub.live / 16
	}
	if sub.dead <= enough {
		n = oneSeventhMore(n)
	}

	if n*groupSlots > s.table.maxSubtableSlots && sub.prefixBits < maxPrefixBits {
		s.splitSubtable(sub)
		return
	}

	sub.rehash(n)
}

// growFor grows the shard once for n counters that are about to be inserted,
// instead of letting each growth step rehash it. A shard that is split, or
// would have to be, grows by itself.
func (s *shard) growFor(n int) {
	sub := &s.single
	if s.subtables != nil || n <= sub.spare {
		return
	}

	// The subtable becomes at most seven eighths full, and at least a seventh
	// larger than before.
	groups := max(len(sub.groups)+len(sub.groups)/7, (sub.live+n)/(groupSlots-1)+1)
	if groups*groupSlots <= s.table.maxSubtableSlots {
		sub.rehash(groups)
	}
}

// groupsFor returns how many groups hold n counters at most seven eighths full,
// with room for a seventh more before the subtable must grow.
func groupsFor(n int) int { return n*8/(7*(groupSlots-1)) + 1 }

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
	for loc := range sub.used() {
		counts[loc.key().Counter>>(63-sub.prefixBits)&1]++
	}

	for i, h := range []*subtable{lower, upper} {
		h.allocate(groupsFor(counts[i]))

		// The list names groups of sub, so the halves can't use it: the next reader
		// scans them.
		h.unsentList.incomplete = sub.unsentList.incomplete || len(sub.unsentList.groups)+len(sub.unsentList.logs) > 0
	}

	for loc := range sub.used() {
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

	live := 0
	lost := false
	s.forEachLocked(func(sub *subtable) {
		live += sub.count()
		lost = lost || sub.unsentList.incomplete || len(sub.unsentList.groups)+len(sub.unsentList.logs) > 0
	})

	// The bound is far below the size at which the subtable would be split
	// again.
	if live > s.table.maxSubtableSlots/4 {
		return
	}

	first := &s.single
	first.allocate(groupsFor(live))
	first.unsentList.incomplete = lost
	s.forEachLocked(func(sub *subtable) {
		for loc := range sub.used() {
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
