package counters

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// groupsHint says where the groups of a shard that is not split are, to callers
// that don't hold it. It packs the address, in cache lines, and the number of
// groups. It may be out of date: only prefetches use it, and a prefetch can't
// fault. Zero means that there are no groups.
//
// The hints of all shards lie together, so that most of them stay in the
// processor's caches. A prefetch that had to wait for the shard's own cache
// line would come late.
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

// Prefetch starts loading k's counter into the processor's caches, and returns
// at once. It does nothing if the gate of k's partition is shut. Call it as
// soon as the key is known and do other work before Take, which then waits less
// for memory.
func (t *Table) Prefetch(k Key) {
	if t.gates.isShut(k.Partition()) {
		return
	}
	n := t.shardIndex(k)
	if group := t.hints[n].groupOf(k); group != 0 {
		prefetch(&t.shards[n], group)
	}
}

// PrefetchPays reports whether the table is so large that Prefetch saves more time than it takes.
func (t *Table) PrefetchPays() bool { return t.outgrewCaches.Load() }

// cachedCounters is how many counters a processor's own caches hold, for PrefetchPays: some 3 MB.
const cachedCounters = 1 << 16

// prefetch loads the whole group, because only its first line tells which slot holds the counter.
var _ [0]struct{} = [groupBytes - 6*cacheLine]struct{}{}
