package counters

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// groupsHint says where a subtable's groups lie, for those who do not hold the shard: the address in cache lines, and in the
// low bits the number of groups. It may be out of date, since nothing but a prefetch follows it, and a prefetch can't fault.
// Zero means that nothing is known.
type groupsHint struct{ word atomic.Uint64 }

const (
	hintCountBits = 22
	cacheLine     = 64
)

func (h *groupsHint) set(groups []group) {
	word := uint64(0)
	if n := len(groups); n > 0 && n < 1<<hintCountBits {
		word = uint64(uintptr(unsafe.Pointer(&groups[0])))/cacheLine<<hintCountBits | uint64(n)
	}
	h.word.Store(word)
}

// groupOf returns the address of the group where a search for k begins, as of firstGroup: a single subtable has no prefix.
func (h *groupsHint) groupOf(k Key) uintptr {
	word := h.word.Load()
	i, _ := bits.Mul64(k.Counter, word&(1<<hintCountBits-1))
	return uintptr(word>>hintCountBits*cacheLine) + uintptr(i)*uintptr(groupBytes)
}

// Prefetch has the processor begin to load k's counter, if this table decides it and the counter is where a search for it
// begins. It returns at once. A caller with other work to do calls it before, so that Take need not wait for memory.
func (t *Table) Prefetch(k Key) {
	if !t.gates.isShut(k.Partition()) {
		prefetchGroup(t.shardOf(k).single.hint.groupOf(k))
	}
}

// prefetchGroup loads whole groups, since one in two counters is not in its preferred slot.
var _ [0]struct{} = [groupBytes - 6*cacheLine]struct{}{}
