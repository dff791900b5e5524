package counters

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rlnode/rlnode/algorithms"
	"github.com/rlnode/rlnode/ring"
)

// shard holds the counters of a range of Key.Subject, under one lock.
//
// Usually a single subtable holds all of them. But anyone who can predict where
// subjects land can put millions into one shard, and rehashing that many at
// once would stall the shard's other subjects. Therefore a subtable that
// outgrows Table.maxSubtableSlots is split in two by the next bit of Key.Counter,
// and each half grows on its own, which bounds how long the lock is held.
type shard struct {
	// A Take of an existing counter reads only the first of these cache lines: the
	// fields from here to the groups of single.

	mu             sync.Mutex                     // guards everything below
	latest         algorithms.Instant             // the latest readings of this process's clocks; see advance
	followedClocks map[int]algorithms.SlewedClock // partitions that follow a clock that is ahead; see FollowClock
	subtables      *subtables                     // nil if single holds all counters
	single         subtable

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

func (t *Table) shardOf(k Key) *shard { return &t.shards[t.shardIndex(k)] }

// shardIndex also works for a single shard: shifting by 64 gives 0.
func (t *Table) shardIndex(k Key) int { return int(k.Subject >> t.shift) }

// shardsOf returns the shards that hold the counters of p: either one, which p
// may share with its neighbours, or several of its own.
func (t *Table) shardsOf(p int) []shard {
	begin := uint64(p) << (64 - ring.PartitionBits)
	end := begin + (1<<(64-ring.PartitionBits) - 1)
	return t.shards[t.shardIndex(Key{Subject: begin}) : t.shardIndex(Key{Subject: end})+1]
}

// subtableOf returns the subtable that k belongs to.
func (s *shard) subtableOf(k Key) *subtable {
	if s.subtables == nil {
		return &s.single
	}
	return s.subtables.at(k.Counter)
}

// firstGroup returns the index of the group of sub, the subtable of k, at which
// the search for k begins. A shard that is not split has no prefix. firstGroup
// then does not read sub.prefixBits, which is on another cache line.
func (s *shard) firstGroup(sub *subtable, k Key) int {
	if s.subtables != nil {
		return sub.firstGroup(k)
	}
	hi, _ := bits.Mul64(k.Counter, uint64(len(sub.groups)))
	return int(hi)
}

// find looks k up. It does not find logs.
func (s *shard) find(k Key) location { return s.subtableOf(k).find(k) }

// log returns k's log, or nil if it has none.
func (s *shard) log(k Key) *storedLog { return s.subtableOf(k).logs[k] }

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

// groupsHint tells callers that don't hold a shard where its groups are, if the
// shard is not split. It packs the address, in cache lines, and the number of
// groups; 0 means that there are no groups. A hint may be out of date. That is
// harmless, because only prefetches use it, and a prefetch can't fault.
//
// The hints of all shards lie together, so most of them stay in the processor's
// caches. If the hint were in the shard, a prefetch would first have to wait
// for the shard's cache line.
type groupsHint struct{ word atomic.Uint64 }

const (
	hintCountBits = 22
	cacheLine     = 64
)

func (gh *groupsHint) set(groups []group) {
	word := uint64(0)
	if n := len(groups); n > 0 && n < 1<<hintCountBits {
		word = uint64(uintptr(unsafe.Pointer(&groups[0])))/cacheLine<<hintCountBits | uint64(n)
	}
	gh.word.Store(word)
}

// groupOf returns the address of the group where a search for k begins, or 0 if
// that is not known. It computes the same group as firstGroup for a subtable
// without a prefix.
func (gh *groupsHint) groupOf(k Key) uintptr {
	word := gh.word.Load()
	i, _ := bits.Mul64(k.Counter, word&(1<<hintCountBits-1))
	return uintptr(word>>hintCountBits*cacheLine) + uintptr(i)*uintptr(groupBytes)
}

// setGroups replaces the groups, which invalidates all locations.
func (sub *subtable) setGroups(groups []group) {
	sub.groups = groups
	if s := sub.shard; sub == &s.single {
		s.hint.set(groups)
	}
	sub.moves++
}
